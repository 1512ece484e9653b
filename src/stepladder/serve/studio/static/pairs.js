// The pairs of a run: a list that can be filtered, one pair in detail, and marks.

import { KINDS, counted, element, whole } from "/static/elements.js";
import { problemOf } from "/static/posted_events.js";

const $ = (id) => document.getElementById(id);
const root = $("pairs");
const GOLD = {
  agrees: "agrees",
  disagrees: "prefers the rejected step",
  neither: "grades both alike",
  unknown: "did not grade both",
};

if (root) start(root.dataset);

async function fetched(url, body) {
  let response;
  try {
    response = await fetch(
      url,
      body && { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) },
    );
  } catch {
    throw new Error("The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw new Error(await problemOf(response));
  return response.json();
}

function start({ run, stage, folder }) {
  const filters = $("filters").elements;
  const names = ["kind", "judge", "gold", "split", "marks", "text"];
  let rows = [];
  let list = null;
  // The row of the pair that is shown; what is behind it is loaded.
  let shown = null;
  let newest = 0;

  const parameters = (more = {}) => {
    const query = new URLSearchParams({ run, stage, ...more });
    for (const name of names) if (filters[name].value) query.set(name, filters[name].value);
    return query;
  };

  async function load(offset = 0) {
    const turn = ++newest;
    try {
      const found = await fetched(`/pairs/list.json?${parameters({ offset })}`);
      if (turn !== newest) return;
      list = found;
      rows = offset ? [...rows, ...found.rows] : found.rows;
      offerFilters();
      showList(offset);
      showCounts();
      showUse();
      const query = parameters();
      query.delete("run");
      history.replaceState(null, "", `?${query}${location.hash}`);
      if (!offset) await choose(rows.find((row) => `#${row.id}` === location.hash)?.id ?? rows[0]?.id ?? null);
    } catch (error) {
      $("counts").textContent = error.message;
      $("counts").className = "notice";
    }
  }

  function offerFilters() {
    for (const name of ["kind", "judge", "gold", "split"]) {
      const select = filters[name];
      if (select.options.length > 1) continue;
      const label = (value) => (name === "kind" ? KINDS[value] : name === "gold" ? GOLD[value] : value);
      for (const [value, count] of Object.entries(list.facets[name])) {
        select.append(element("option", { value }, `${label(value) ?? value} (${whole(count)})`));
      }
      select.value = new URLSearchParams(location.search).get(name) ?? "";
    }
  }

  function showCounts() {
    const parts = [`${whole(list.matching)} of ${counted(list.total, "pair")}`, `${whole(list.marked)} marked as wrong`];
    if (list.marks_of_others) parts.push(`${whole(list.marks_of_others)} marks of pairs that no longer exist`);
    $("counts").className = "note";
    $("counts").textContent = parts.join(" · ");
    $("more").hidden = rows.length >= list.matching;
  }

  function showList(offset) {
    if (!offset) $("list").replaceChildren();
    $("list").append(...rows.slice(offset).map(item));
    if (rows.length) return;
    shown = null;
    $("detail").replaceChildren(element("p", { class: "note" }, "No pair matches."));
  }

  function item(row) {
    return element(
      "li",
      { id: `pair-${row.id}`, role: "option", class: row.mark ? "marked" : "", "aria-selected": "false", onclick: () => choose(row.id) },
      element(
        "span",
        { class: "line" },
        element("span", { class: "kind" }, KINDS[row.kind]),
        element("span", { class: "tag wrong" }, "wrong"),
        element("span", { class: "margin" }, row.margin === null ? "" : `+${row.margin.toFixed(2)}`),
      ),
      element("span", { class: "one" }, row.chosen || "(nothing)"),
      element("span", { class: "other" }, row.rejected || "(nothing)"),
    );
  }

  /** Show a pair: at once what the list knows, so that it can be marked, and the rest when it is loaded. */
  async function choose(id) {
    const row = rows.find((each) => each.id === id);
    if (!row) return;
    shown = row;
    for (const each of $("list").children) each.setAttribute("aria-selected", String(each.id === `pair-${id}`));
    $("list").setAttribute("aria-activedescendant", `pair-${id}`);
    $(`pair-${id}`).scrollIntoView({ block: "nearest" });
    history.replaceState(null, "", `${location.search}#${id}`);
    const rest = element("div", { class: "rest" });
    $("detail").replaceChildren(head(row), element("div", { id: "mark" }), rest);
    showMark();
    try {
      const detail = await fetched(`/pairs/one.json?${new URLSearchParams({ run, stage, id })}`);
      const [better, worse] = detail.sides;
      rest.replaceChildren(
        element("h3", {}, "State"),
        element("div", { class: "context" }, detail.context.map((segment) => passage(segment))),
        element("div", { class: "sides" }, side(better, "chosen", detail.judge), side(worse, "rejected", detail.judge)),
        judged(detail),
      );
    } catch (error) {
      rest.replaceChildren(element("p", { class: "notice", role: "alert" }, error.message));
    }
  }

  function head(row) {
    const at = rows.indexOf(row);
    return element(
      "div",
      { class: "head" },
      element("h2", {}, `Question ${row.question_id}`),
      element("span", { class: "note" }, `${row.depth ? `after ${counted(row.depth, "step")}` : "first step"} · ${row.split}`),
      element(
        "span",
        { class: "turns" },
        element("button", { type: "button", disabled: at <= 0, title: "Previous pair (k)", onclick: () => move(-1) }, "↑"),
        element("button", { type: "button", disabled: at < 0 || at >= list.matching - 1, title: "Next pair (j)", onclick: () => move(1) }, "↓"),
      ),
    );
  }

  function passage({ author, text }) {
    const long = text.length > 900 || text.split("\n").length > 14;
    const body = element("pre", { class: "text" }, text.replace(/^\n+|\n+$/g, ""));
    if (!long) return element("div", { class: `segment ${author}` }, element("span", { class: "label" }, author), body);
    const details = element("details", { class: `segment ${author}` }, element("summary", {}, `${author}, ${counted(text.length, "character")}`), body);
    if (author !== "prompt") details.open = true;
    return details;
  }

  function side(data, name, judge) {
    const scores = data.scores.filter((each) => each.score !== null && each.name !== judge);
    return element(
      "section",
      { class: `side ${name}`, "aria-label": `${name} step` },
      element("p", { class: "eyebrow" }, name, " ", element("span", { class: "kind" }, KINDS[data.kind])),
      data.thought ? element("p", { class: "thought" }, data.thought) : null,
      element("p", { class: "content" }, data.content || "(nothing)"),
      data.problem ? element("p", { class: "note bad" }, data.problem) : null,
      element(
        "dl",
        { class: "scores" },
        data.value === null ? null : [element("dt", {}, `value (${judge})`), element("dd", {}, data.value.toFixed(2))],
        scores.map((each) => [element("dt", { title: each.about }, each.name), element("dd", {}, each.score.toFixed(2))]),
        [element("dt", {}, "visits"), element("dd", {}, whole(data.visits))],
      ),
    );
  }

  function judged(detail) {
    const margin = detail.margin === null ? "only the order is known" : `margin ${detail.margin.toFixed(2)}`;
    return element(
      "div",
      { class: "judged" },
      element("p", {}, "Judged by ", element("b", {}, detail.judge), `, ${margin}. `, detail.judge === "gold" ? null : ["The gold judge ", element("span", { class: detail.gold === "disagrees" ? "bad" : "" }, GOLD[detail.gold]), "."]),
      detail.reason ? element("blockquote", {}, detail.reason) : null,
    );
  }

  function showMark() {
    const { mark } = shown;
    const box = element("div", { class: `mark-box ${mark ? "marked" : ""}` });
    const buttons = mark
      ? [
          element("span", { class: "tag wrong" }, "marked as wrong"),
          element("span", { class: "note" }, new Date(mark.time).toLocaleString()),
          element("button", { type: "button", onclick: edit }, "Edit note"),
          element("button", { type: "button", onclick: () => change("/pairs/unmark") }, "Remove the mark"),
        ]
      : [element("button", { type: "button", onclick: edit }, "Mark as wrong")];
    box.append(element("div", { class: "buttons" }, buttons), mark?.note ? element("p", { class: "saved" }, mark.note) : "");
    $("mark").replaceChildren(box);
  }

  function edit() {
    const note = element("textarea", { name: "note", rows: 2, maxLength: 2000, "aria-label": "Note", placeholder: "Why? (optional)" });
    note.value = shown.mark?.note ?? "";
    const form = element(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          change("/pairs/mark", note.value);
        },
        onkeydown: (event) => {
          if (event.key === "Escape") {
            event.stopPropagation();
            showMark();
            $("list").focus();
          } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            form.requestSubmit();
          }
        },
      },
      note,
      element(
        "div",
        { class: "buttons" },
        element("button", { type: "submit", class: "main" }, shown.mark ? "Save" : "Mark as wrong"),
        element("button", { type: "button", onclick: () => showMark() }, "Cancel"),
        element("span", { class: "note keys" }, "Enter saves · Esc cancels"),
      ),
    );
    $("mark").replaceChildren(form);
    note.focus();
  }

  async function change(url, note = "") {
    const row = shown;
    const { id } = row;
    try {
      const changed = await fetched(url, { run, stage, ids: [id], note });
      Object.assign(list, { marked: changed.marked, readers: changed.readers });
      row.mark = changed.marks[id];
      $(`pair-${id}`)?.classList.toggle("marked", Boolean(row.mark));
      if (shown === row) showMark();
      showCounts();
      showUse();
      $("list").focus();
    } catch (error) {
      $("mark")?.append(element("p", { class: "notice", role: "alert" }, error.message));
    }
  }

  function move(by) {
    const at = rows.indexOf(shown);
    const next = rows[at + by];
    if (next) return choose(next.id);
    if (by > 0 && rows.length < list.matching) return load(rows.length).then(() => rows[at + 1] && choose(rows[at + 1].id));
    return null;
  }

  function showUse() {
    const command = (text) => element("pre", {}, text);
    const { readers, marked } = list;
    const lines = readers.map((each) => {
      const does = each.excludes
        ? each.stale
          ? `leaves marked pairs out, and is stale: it was trained without ${whole(each.left_out)} of the ${counted(marked, "marked pair")}`
          : each.done
            ? `was trained without ${counted(each.left_out, "marked pair")}`
            : "will leave the marked pairs out"
        : "trains on all pairs, marked ones too";
      return element("li", {}, element("b", {}, each.stage), ` ${does}.`);
    });
    const off = readers.find((each) => !each.excludes);
    const stale = readers.find((each) => each.stale);
    const train = off
      ? `stepladder run ${folder}/recipe.yaml --out ${folder} --set stages.${off.stage}.exclude_marked=true --update`
      : stale
        ? `stepladder run ${folder}/recipe.yaml --out ${folder} --update`
        : readers.length
          ? ""
          : `stepladder train dpo --run ${folder} --set exclude_marked=true`;
    $("use").replaceChildren(
      element("h2", {}, "Use the marks"),
      readers.length ? element("ul", {}, lines) : element("p", {}, "No stage of this run trains on these pairs yet."),
      train ? element("div", {}, element("p", { class: "note" }, "Train without the marked pairs:"), command(train)) : "",
      element("p", { class: "note" }, "Export without them; the marks and notes are exported as marked.jsonl:"),
      command(`stepladder export --run ${folder} --stage ${stage} --to trl --exclude-marked --out DIR`),
      element("p", { class: "note" }, "The marks are saved in ", element("code", {}, `${folder}/${stage}/marks.json`), "; the pairs stay as they are."),
    );
  }

  for (const name of names) {
    const value = new URLSearchParams(location.search).get(name);
    if (value && (name === "marks" || name === "text")) filters[name].value = value;
  }
  let typing = 0;
  $("filters").addEventListener("input", (event) => {
    if (event.target.name === "stage") {
      location.search = new URLSearchParams({ stage: event.target.value });
      return;
    }
    clearTimeout(typing);
    typing = setTimeout(() => load(), event.target.name === "text" ? 200 : 0);
  });
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  $("more").addEventListener("click", () => load(rows.length));
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select");
    if (typing) {
      if (event.key === "Escape") $("list").focus();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || !list) return;
    const onList = document.activeElement === $("list");
    if (event.key === "j" || (onList && event.key === "ArrowDown")) move(1);
    else if (event.key === "k" || (onList && event.key === "ArrowUp")) move(-1);
    else if (event.key === "m" && shown) edit();
    else if (event.key === "u" && shown?.mark) change("/pairs/unmark");
    else if (event.key === "/") filters.text.focus();
    else return;
    event.preventDefault();
  });
  load();
}
