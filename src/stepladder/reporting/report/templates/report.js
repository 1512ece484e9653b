// Search trees: one at a time. Without this script all trees are shown.
const controls = document.getElementById("tree-controls");
if (controls) {
  const select = document.getElementById("tree-choice");
  const articles = [...document.querySelectorAll(".tree")];
  const trees = articles.map(prepareTree);
  const show = () => articles.forEach((article, index) => { article.hidden = index !== Number(select.value); });
  select.addEventListener("change", show);
  for (const [name, folded] of [["tree-fold", true], ["tree-unfold", false]]) {
    document.getElementById(name).addEventListener("click", () => trees[Number(select.value)].foldAll(folded));
  }
  controls.hidden = false;
  show();
}
