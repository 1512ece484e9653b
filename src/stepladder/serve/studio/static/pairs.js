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
  let chosen = null;
  let detail = null;
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
    if (!rows.length) $("detail").replaceChildren(element("p", { class: "note" }, "No pair matches."));
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

  async function choose(id, focus = false) {
    chosen = id;
    for (const each of $("list").children) each.setAttribute("aria-selected", String(each.id === `pair-${id}`));
    if (!id) return;
    const at = $(`pair-${id}`);
    if (at) {
      $("list").setAttribute("aria-activedescendant", at.id);
      at.scrollIntoView({ block: "nearest" });
    }
    history.replaceState(null, "", `${location.search}#${id}`);
    try {
      const found = await fetched(`/pairs/one.json?${new URLSearchParams({ run, stage, id })}`);
      if (chosen !== id) return;
      detail = found;
      showDetail();
      if (focus) $("detail").focus();
    } catch (error) {
      if (chosen === id) $("detail").replaceChildren(element("p", { class: "notice", role: "alert" }, error.message));
    }
  }

  function showDetail() {
    const [better, worse] = detail.sides;
    const at = rows.findIndex((row) => row.id === detail.id);
    $("detail").replaceChildren(
      element(
        "div",
        { class: "head" },
        element("h2", {}, `Question ${detail.question_id}`),
        element("span", { class: "note" }, `${detail.depth ? `after ${counted(detail.depth, "step")}` : "first step"} · ${detail.split} · agent ${detail.agent}`),
        element(
          "span",
          { class: "turns" },
          element("button", { type: "button", disabled: at <= 0, title: "Previous pair (k)", onclick: () => move(-1) }, "↑"),
          element("button", { type: "button", disabled: at < 0 || at >= list.matching - 1, title: "Next pair (j)", onclick: () => move(1) }, "↓"),
        ),
      ),
      markBox(),
      element("h3", {}, "State"),
      element("div", { class: "context" }, detail.context.map((segment) => passage(segment))),
      element("div", { class: "sides" }, side(better, "chosen"), side(worse, "rejected")),
      judged(),
    );
  }

  function passage({ author, text }) {
    const long = text.length > 900 || text.split("\n").length > 14;
    const shown = element("pre", { class: "text" }, text.replace(/^\n+|\n+$/g, ""));
    if (!long) return element("div", { class: `segment ${author}` }, element("span", { class: "label" }, author), shown);
    const details = element("details", { class: `segment ${author}` }, element("summary", {}, `${author}, ${counted(text.length, "character")}`), shown);
    if (author !== "prompt") details.open = true;
    return details;
  }

  function side(data, name) {
    const scores = data.scores.filter((each) => each.score !== null && each.name !== detail.judge);
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
        data.value === null ? null : [element("dt", {}, `value (${detail.judge})`), element("dd", {}, data.value.toFixed(2))],
        scores.map((each) => [element("dt", { title: each.about }, each.name), element("dd", {}, each.score.toFixed(2))]),
        [element("dt", {}, "visits"), element("dd", {}, whole(data.visits))],
      ),
    );
  }

  function judged() {
    const margin = detail.margin === null ? "only the order is known" : `margin ${detail.margin.toFixed(2)}`;
    return element(
      "div",
      { class: "judged" },
      element("p", {}, "Judged by ", element("b", {}, detail.judge), `, ${margin}. `, detail.judge === "gold" ? null : ["The gold judge ", element("span", { class: detail.gold === "disagrees" ? "bad" : "" }, GOLD[detail.gold]), "."]),
      detail.reason ? element("blockquote", {}, detail.reason) : null,
    );
  }

  function markBox() {
    const { mark } = detail;
    const box = element("div", { id: "mark", class: `mark-box ${mark ? "marked" : ""}` });
    const buttons = mark
      ? [
          element("span", { class: "tag wrong" }, "marked as wrong"),
          element("span", { class: "note" }, new Date(mark.time).toLocaleString()),
          element("button", { type: "button", onclick: edit }, "Edit note"),
          element("button", { type: "button", onclick: () => change("/pairs/unmark") }, "Remove the mark"),
        ]
      : [element("button", { type: "button", onclick: edit }, "Mark as wrong")];
    box.append(element("div", { class: "buttons" }, buttons), mark?.note ? element("p", { class: "saved" }, mark.note) : "");
    return box;
  }

  function edit() {
    const note = element("textarea", { name: "note", rows: 2, maxLength: 2000, "aria-label": "Note", placeholder: "Why? (optional)" });
    note.value = detail.mark?.note ?? "";
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
            showDetail();
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
        element("button", { type: "submit", class: "main" }, detail.mark ? "Save" : "Mark as wrong"),
        element("button", { type: "button", onclick: () => showDetail() }, "Cancel"),
        element("span", { class: "note keys" }, "Enter saves · Esc cancels"),
      ),
    );
    $("mark").replaceChildren(form);
    note.focus();
  }

  async function change(url, note = "") {
    const { id } = detail;
    try {
      const changed = await fetched(url, { run, stage, ids: [id], note });
      Object.assign(list, { marked: changed.marked, readers: changed.readers });
      const row = rows.find((each) => each.id === id);
      if (row) row.mark = changed.marks[id];
      $(`pair-${id}`)?.classList.toggle("marked", Boolean(changed.marks[id]));
      if (detail.id === id) {
        detail.mark = changed.marks[id];
        showDetail();
      }
      showCounts();
      showUse();
      $("list").focus();
    } catch (error) {
      $("mark").append(element("p", { class: "notice", role: "alert" }, error.message));
    }
  }

  function move(by) {
    const at = rows.findIndex((row) => row.id === chosen);
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
          ? `leaves marked pairs out, and is stale: it was trained without ${whole(each.left_out)} of the ${whole(marked)} marked pairs`
          : each.done
            ? `was trained without the ${whole(each.left_out)} marked pairs`
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
    else if (event.key === "m" && detail) edit();
    else if (event.key === "u" && detail?.mark) change("/pairs/unmark");
    else if (event.key === "/") filters.text.focus();
    else return;
    event.preventDefault();
  });
  load();
}
