// The playground: one column per policy, all asked the same question.

import { AnswerView } from "/static/answer_view.js";
import { element } from "/static/elements.js";
import { postedEvents, problemOf } from "/static/posted_events.js";

const $ = (id) => document.getElementById(id);
const question = $("question");
const namesPolicies = $("columns").dataset.namesPolicies === "true";
const columns = [];
let runs = new Map();

class Column {
  constructor() {
    this.section = $("column").content.firstElementChild.cloneNode(true);
    this.form = this.section.querySelector("form.policy");
    this.view = new AnswerView(
      this.section.querySelector(".about"),
      this.section.querySelector(".outcome"),
      (steps, step) => this.proceed(steps, step),
    );
    this.form?.elements.policy.addEventListener("input", () => this.adapt());
    this.form?.addEventListener("submit", (event) => {
      event.preventDefault();
      $("ask").requestSubmit();
    });
    $("columns").append(this.section);
  }

  /** Show the fields that the typed policy has. */
  adapt() {
    const { policy, stage } = this.form.elements;
    const typed = policy.value.trim();
    const stages = runs.get(typed);
    this.form.querySelector("[data-for=server]").hidden = !/^https?:\/\//.test(typed);
    this.form.querySelector("[data-for=run]").hidden = !stages;
    const shown = [...stage.options].slice(1).map((option) => option.value);
    if (String(shown) !== String(stages ?? [])) {
      stage.replaceChildren(stage.options[0], ...(stages ?? []).map((name) => element("option", { value: name }, name)));
    }
  }

  policy() {
    if (!this.form) return { policy: "" };
    const value = (name) => this.form.elements[name].value.trim();
    const hidden = (name) => this.form.querySelector(`[data-for=${name}]`).hidden;
    return {
      policy: value("policy"),
      model: hidden("server") ? "" : value("model"),
      stage: hidden("run") ? "" : value("stage"),
      agent: value("agent"),
      index: value("index"),
      reward: value("reward"),
    };
  }

  sampling() {
    if (!this.form) return {};
    const { temperature, seed } = this.form.elements;
    return { temperature: Number(temperature.value) || 0, seed: Number(seed.value) || 0 };
  }

  ask() {
    this.view.withoutEdits();
    this.view.begin();
    return this.run("/playground/ask", { question: question.value });
  }

  proceed(steps, step) {
    this.view.begin(steps, step);
    let { seed = 0 } = this.sampling();
    const temperature = this.sampling().temperature ?? 0;
    if (step === null && this.form && temperature > 0) seed = this.form.elements.seed.value = seed + 1;
    return this.run("/playground/continue", { answer: this.view.id, steps, step, seed });
  }

  async run(url, body) {
    this.stop();
    const asking = new AbortController();
    this.asking = asking;
    showRunning();
    try {
      const sent = { policy: this.policy(), ...this.sampling(), ...body };
      let ended = false;
      for await (const [name, data] of postedEvents(url, sent, asking.signal)) {
        if (this.asking !== asking) return;
        this.view.show(name, data);
        ended ||= name === "answer" || name === "error";
        announce(name, data);
      }
      if (!ended) this.view.fail("The connection to the server was lost in the middle of the answer.");
    } catch (error) {
      if (this.asking !== asking) return;
      if (asking.signal.aborted) this.view.stop();
      else this.view.fail(error.message);
    } finally {
      if (this.asking === asking) this.asking = null;
      showRunning();
    }
  }

  stop() {
    this.asking?.abort();
  }
}

function announce(name, data) {
  if (name === "step") $("status").textContent = `Step ${data.number}: ${data.content}`;
  else if (name === "answer") $("status").textContent = data.text;
  else if (name === "error") $("status").textContent = data.message;
}

function showRunning() {
  const running = columns.some((column) => column.asking);
  $("stop").hidden = !running;
}

function addColumn() {
  const column = new Column();
  columns.push(column);
  $("columns").dataset.count = columns.length;
  return column;
}

/** Two columns or one. The second starts with the settings of the first. */
function compare(both) {
  if (both && columns.length === 1) {
    const first = columns[0];
    const second = addColumn();
    fillChoices(second);
    for (const field of second.form.elements) {
      if (["agent", "index", "reward", "temperature", "seed"].includes(field.name)) {
        field.value = first.form.elements[field.name].value;
      }
    }
    // Both search the same: what the first run searches.
    const { policy, index } = first.form.elements;
    if (!index.value && runs.has(policy.value.trim())) second.form.elements.index.value = policy.value.trim();
    second.adapt();
    second.form.elements.policy.focus();
  } else if (!both && columns.length === 2) {
    const second = columns.pop();
    second.stop();
    second.section.remove();
  }
  $("columns").dataset.count = columns.length;
  $("compare").setAttribute("aria-pressed", String(both));
}

let choices = null;

function fillChoices(column) {
  if (!choices) return;
  const { agent } = column.form.elements;
  agent.replaceChildren(
    agent.options[0],
    ...Object.entries(choices.agents).map(([name, summary]) => element("option", { value: name, title: summary }, name)),
  );
  column.adapt();
}

async function loadChoices() {
  const response = await fetch("/playground/choices");
  if (!response.ok) throw new Error(await problemOf(response));
  choices = await response.json();
  runs = new Map(choices.runs.map((run) => [run.name, run.stages]));
  const options = (id, names) => $(id).append(...names.map((name) => element("option", { value: name })));
  options("policies", [...runs.keys(), ...choices.models, "oracle"]);
  options("indexes", [...choices.data, ...runs.keys()]);
  options("rewards", [...runs.keys()]);
  for (const column of columns) fillChoices(column);
  const { policy } = columns[0].form.elements;
  if (!policy.value) policy.value = [...runs.keys()].at(-1) ?? choices.models[0] ?? "oracle";
  columns[0].adapt();
}

async function example() {
  const gold = $("gold");
  gold.hidden = false;
  gold.textContent = "Looking for a question …";
  gold.classList.remove("bad");
  try {
    const response = await fetch("/playground/example", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(columns[0].policy()),
    });
    if (!response.ok) throw new Error(await problemOf(response));
    const found = await response.json();
    question.value = found.question;
    gold.textContent = `Gold answer: ${found.answers.join(" or ")}`;
    question.focus();
  } catch (error) {
    gold.textContent = error.message;
    gold.classList.add("bad");
  }
}

/** Keep what was asked in the address, so that it can be opened again. */
function remember() {
  const query = new URLSearchParams();
  if (namesPolicies) {
    columns.forEach((column, index) => {
      for (const [name, value] of Object.entries(column.policy())) if (value) query.set(index ? `${name}2` : name, value);
    });
  }
  query.set("question", question.value);
  history.replaceState(null, "", `?${query}`);
}

async function recall() {
  const query = new URLSearchParams(location.search);
  question.value ||= query.get("question") ?? "";
  if (!namesPolicies) return;
  const fill = (column, suffix) => {
    for (const name of ["policy", "model", "agent", "index", "reward"]) {
      const value = query.get(name + suffix);
      if (value !== null) column.form.elements[name].value = value;
    }
  };
  fill(columns[0], "");
  try {
    await loadChoices();
  } catch (error) {
    columns[0].view.begin();
    columns[0].view.fail(error.message);
  }
  if (query.has("policy2")) compare(true);
  columns.forEach((column, index) => {
    fill(column, index ? "2" : "");
    column.adapt();
    const stage = query.get(index ? "stage2" : "stage");
    if (stage) column.form.elements.stage.value = stage;
  });
}

function walk(change) {
  const items = [...document.querySelectorAll("li.step")];
  if (!items.length) return;
  const here = items.indexOf(document.activeElement?.closest?.("li.step"));
  const next = here < 0 ? (change > 0 ? 0 : items.length - 1) : Math.min(Math.max(here + change, 0), items.length - 1);
  items[next].focus();
  items[next].scrollIntoView({ block: "nearest" });
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (columns.some((column) => column.form && !column.form.reportValidity())) return;
  remember();
  for (const column of columns) column.ask();
});
question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("ask").requestSubmit();
});
question.addEventListener("input", () => {
  $("gold").hidden = true;
});
$("stop").addEventListener("click", () => columns.forEach((column) => column.stop()));
$("example")?.addEventListener("click", example);
$("compare")?.addEventListener("click", () => compare(columns.length === 1));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") columns.forEach((column) => column.stop());
  const typing = event.target.closest?.("input, textarea, select");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "j") walk(1);
  else if (event.key === "k") walk(-1);
  else if (event.key === "e") {
    const item = document.activeElement?.closest?.("li.step");
    const column = columns.find((each) => each.section.contains(item));
    const step = column?.view.steps.find((each) => each.item === item);
    if (step) {
      event.preventDefault();
      column.view.edit(step);
    }
  }
});

addColumn();
await recall();
for (const button of document.querySelectorAll("#ask button")) button.disabled = false;
