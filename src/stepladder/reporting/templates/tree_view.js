// A search tree (tree.html): steps closed, branches foldable, walked with the arrow keys.
const childNodes = (node) => [...node.querySelectorAll(":scope > ul > .node")];
const rowOf = (node) => node.querySelector(":scope > .step > summary");

/** Prepares one tree; without this all of it is shown unfolded. */
export function prepareTree(tree) {
  const fold = (node, folded) => {
    const button = node.querySelector(":scope > .fold");
    if (!button) return;
    node.classList.toggle("folded", folded);
    button.setAttribute("aria-expanded", String(!folded));
  };
  const rows = () => [...tree.querySelectorAll(".step > summary")].filter((row) => row.offsetParent !== null);

  for (const node of tree.querySelectorAll(".node")) {
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
  tree.addEventListener("keydown", (event) => {
    if (!event.target.matches(".step > summary") || event.ctrlKey || event.metaKey || event.altKey) return;
    const visible = rows(), index = visible.indexOf(event.target);
    const node = event.target.closest(".node");
    const folded = node.classList.contains("folded"), children = childNodes(node);
    if (event.key === "ArrowDown") visible[index + 1]?.focus();
    else if (event.key === "ArrowUp") visible[index - 1]?.focus();
    else if (event.key === "Home") visible[0]?.focus();
    else if (event.key === "End") visible.at(-1)?.focus();
    else if (event.key === "ArrowLeft") {
      if (children.length && !folded) fold(node, true);
      else rowOf(node.parentElement.closest(".node") ?? node)?.focus();
    } else if (event.key === "ArrowRight") {
      if (folded) fold(node, false);
      else if (children.length) rowOf(children[0]).focus();
    } else return;
    event.preventDefault();
  });
  return {
    foldAll: (folded) => tree.querySelectorAll(".node").forEach((node) => fold(node, folded)),
    rows,
    /** Shows a node: unfolds what is above it, and moves the focus there. */
    goTo: (id, open = false) => {
      const node = [...tree.querySelectorAll(".node")].find((each) => each.dataset.node === String(id));
      if (!node) return false;
      for (let above = node.parentElement.closest(".node"); above; above = above.parentElement.closest(".node")) {
        fold(above, false);
      }
      if (open) node.querySelector(":scope > .step").open = true;
      rowOf(node).focus();
      return true;
    },
  };
}
