// All search trees of a run: a filtered list, and a viewer that is walked by keyboard. The address names what is shown:
// ?stage=explore&show=disputed&q=words#tree=QUESTION&node=5
import { counted } from "/static/elements.js";
import { listen, parsePart } from "/static/live.js";
import { prepareTree } from "/static/tree_view.js";

const byId = (id) => document.getElementById(id);
const base = location.pathname.replace(/\/$/, "");
const filters = byId("filters");
let page = 1, pages = 1, ids = [], version = null;
let chosen = null, viewer = null;
let sought = ""; // the tree that the address names, until the list, which may still be read, has it

const settings = () => Object.fromEntries(new FormData(filters));
const deepLink = () => new URLSearchParams(location.hash.slice(1));

async function get(path, parameters) {
  const answer = await fetch(`${base}/${path}?${new URLSearchParams(parameters)}`, { headers: { accept: "application/json" } });
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.detail ?? answer.statusText);
  return data;
}

function fail(error) {
  byId("problem").textContent = error.message;
  byId("problem").hidden = false;
}

function tell({ total, judged, reading, growing, scored_by: scoredBy, problem, counts }) {
  for (const each of document.querySelectorAll("[data-count]")) each.textContent = counts[each.dataset.count].toLocaleString("en");
  const words = [counted(total, "tree")];
  if (growing) words.push("more are being grown");
  if (reading) words.push(judged < total ? `looked for disputes in ${judged.toLocaleString("en")} so far` : "reading more");
  if (scoredBy) words.push(`PRM scores of ${scoredBy}`);
  byId("told").textContent = words.join(" · ");
  byId("problem").textContent = problem;
  byId("problem").hidden = !problem;
}

/** Loads a page of the list; without its number, the same again, or the one that has the tree of the address. */
async function load(to = null) {
  if (to !== null) sought = "";
  const { stage, show, q } = settings();
  const data = await get("list", { stage, show, q, page: to ?? page, around: sought });
  ({ page, pages, ids, version } = data);
  if (ids.includes(sought)) sought = "";
  const list = byId("list"), focused = list.contains(document.activeElement) ? document.activeElement.dataset.tree : null;
  list.replaceChildren(parsePart(data.html));
  if (!ids.length) list.textContent = data.total ? "No tree is like this." : "No trees yet.";
  byId("page").textContent = pages > 1 ? `${page} of ${pages}` : "";
  byId("page-before").hidden = byId("page-after").hidden = pages < 2;
  byId("page-before").disabled = page <= 1;
  byId("page-after").disabled = page >= pages;
  mark();
  if (focused) entry(focused)?.focus();
  tell(data);
}

const entry = (id) => [...byId("list").querySelectorAll("a")].find((each) => each.dataset.tree === id);

function mark() {
  for (const each of byId("list").querySelectorAll("a")) {
    if (each.dataset.tree === chosen) each.setAttribute("aria-current", "true");
    else each.removeAttribute("aria-current");
  }
}

/** Shows a tree; `node` is the step to go to. */
async function show(id, node = null) {
  if (id !== chosen || !viewer) {
    const data = await get("tree", { stage: settings().stage, id });
    chosen = id;
    const article = parsePart(data.html);
    byId("tree").replaceChildren(article);
    viewer = prepareTree(article);
    byId("tools").hidden = false;
    byId("problem").hidden = true;
    article.addEventListener("focusin", (event) => {
      const step = event.target.closest(".node");
      if (step && event.target.matches(".step > summary")) address(id, step.dataset.node);
    });
    mark();
    const current = entry(id), list = byId("list");
    if (current && list.scrollHeight > list.clientHeight) list.scrollTop = current.offsetTop - list.clientHeight / 3;
  }
  if (node !== null) viewer.goTo(node, true);
}

/** Puts what is shown into the address. */
function address(id = chosen, node = null) {
  const { stage, show: shown, q } = settings();
  const query = new URLSearchParams({ stage });
  if (shown !== "all") query.set("show", shown);
  if (q) query.set("q", q);
  const hash = id ? `#${new URLSearchParams({ tree: id, ...(node === null ? {} : { node }) })}` : "";
  history.replaceState(null, "", `${base}?${query}${hash}`);
}

/** Goes to the tree so many places further in the list, on its next page too. */
async function move(by) {
  let at = ids.indexOf(chosen) + by;
  if (ids.indexOf(chosen) < 0) at = by > 0 ? 0 : ids.length - 1;
  if (at < 0 || at >= ids.length) {
    if (page + by < 1 || page + by > pages) return;
    await load(page + by);
    at = by > 0 ? 0 : ids.length - 1;
  }
  await show(ids[at]);
  address();
  viewer.rows()[0]?.focus({ preventScroll: true });
}

const guarded = (action) => (...given) => Promise.resolve(action(...given)).catch(fail);

async function filter() {
  await load(1);
  if (ids.length && !ids.includes(chosen)) await show(ids[0]);
  address();
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  const typing = event.target.matches("input[type=search], select, textarea");
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "n" || event.key === "j") guarded(move)(1);
  else if (event.key === "p" || event.key === "k") guarded(move)(-1);
  else if (event.key === "?") byId("keys").showModal();
  else if (event.key === "/") filters.elements.q.focus();
  else if (event.key === "ArrowDown" && event.target === document.body) viewer?.rows()[0]?.focus();
  else return;
  event.preventDefault();
}

/** Shows the tree that the address names, or else the first one. */
async function showFirst() {
  const link = deepLink(), wanted = link.get("tree");
  if (wanted) await show(wanted, link.get("node"));
  else if (ids.length) await show(ids[0]);
}

async function start() {
  filters.elements.q.value = new URLSearchParams(location.search).get("q") ?? "";
  sought = deepLink().get("tree") ?? "";
  await load();

  let waiting = null;
  listen(`${base}/events?${new URLSearchParams({ stage: settings().stage })}`, {
    trees: (numbers) => {
      tell(numbers);
      if (numbers.version === version || waiting) return;
      waiting = setTimeout(guarded(async () => {
        waiting = null;
        await load();
        if (!viewer) await showFirst();
      }), 500);
    },
  });
  await showFirst(); // where its tree has not been read yet, it is tried again when more have been
}

if (filters) {
  let typed = null;
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("change", (event) => {
    if (event.target.name === "stage") location.assign(`${base}?${new URLSearchParams({ stage: event.target.value })}`);
    else if (event.target.name === "show") guarded(filter)();
  });
  filters.elements.q.addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(guarded(filter), 250);
  });
  addEventListener("hashchange", guarded(() => {
    const link = deepLink();
    if (link.get("tree")) return show(link.get("tree"), link.get("node"));
  }));
  document.addEventListener("keydown", press);
  for (const [id, action] of Object.entries({
    before: () => move(-1),
    after: () => move(1),
    "page-before": () => load(page - 1),
    "page-after": () => load(page + 1),
    fold: () => viewer.foldAll(true),
    unfold: () => viewer.foldAll(false),
    help: () => byId("keys").showModal(),
  })) byId(id).addEventListener("click", guarded(action));
  guarded(start)();
} else {
  listen(`${base}/events`, { begun: () => location.reload() });
}
