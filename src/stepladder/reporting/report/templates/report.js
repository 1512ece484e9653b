// Search trees: one at a time, steps closed, branches foldable. Without this script all trees are shown unfolded.
(() => {
  "use strict";
  const controls = document.getElementById("tree-controls");
  if (!controls) return;
  const select = document.getElementById("tree-choice");
  const trees = [...document.querySelectorAll(".tree")];

  const fold = (node, folded) => {
    const button = node.querySelector(":scope > .fold");
    if (!button) return;
    node.classList.toggle("folded", folded);
    button.setAttribute("aria-expanded", String(!folded));
  };
  const show = () => trees.forEach((tree, index) => { tree.hidden = index !== Number(select.value); });
  const chosen = () => trees[Number(select.value)];
  const rows = () => [...chosen().querySelectorAll(".step > summary")].filter((row) => row.offsetParent !== null);

  for (const node of document.querySelectorAll(".tree .node")) {
    node.querySelector(":scope > .step").open = false;
    if (!node.querySelector(":scope > ul")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "fold";
    button.setAttribute("aria-label", "fold the steps below");
    button.setAttribute("aria-expanded", "true");
    button.addEventListener("click", () => fold(node, !node.classList.contains("folded")));
    node.classList.add("folds");
    node.prepend(button);
  }
  select.addEventListener("change", show);
  for (const [name, folded] of [["tree-fold", true], ["tree-unfold", false]]) {
    document.getElementById(name).addEventListener("click", () => {
      chosen().querySelectorAll(".node").forEach((node) => fold(node, folded));
    });
  }
  document.addEventListener("keydown", (event) => {
    if (!event.target.matches(".tree .step > summary")) return;
    const visible = rows(), index = visible.indexOf(event.target);
    const node = event.target.closest(".node");
    if (event.key === "ArrowDown") visible[index + 1]?.focus();
    else if (event.key === "ArrowUp") visible[index - 1]?.focus();
    else if (event.key === "ArrowLeft") fold(node, true);
    else if (event.key === "ArrowRight") fold(node, false);
    else return;
    event.preventDefault();
  });
  controls.hidden = false;
  show();
})();
