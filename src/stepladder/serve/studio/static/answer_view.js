// One answer: its steps as they come, their scores, the answer with its citations, and the editor of a step.

import { KINDS, counted, element, whole } from "/static/elements.js";

const STOPS = {
  answered: "answered",
  forced: "answered when asked for it at a limit",
  malformed: "ended by text outside of the agent's format",
  step_limit: "ended by the step limit",
  token_limit: "ended by the token limit of a step",
  context_limit: "ended by a full context",
};

export class AnswerView {
  /** `onContinue(steps, step)`: continue after so many steps, with a step of the user's own or null. */
  constructor(about, outcome, onContinue) {
    this.about = about;
    this.outcome = outcome;
    this.onContinue = onContinue;
    this.steps = [];
    this.earlier = "";
  }

  /** Empty the view for a new question, or keep the first steps of the last answer: `draft` is then the user's step. */
  begin(kept = 0, draft = undefined) {
    const continues = draft !== undefined;
    this.earlier = continues ? this.answerText ?? "" : "";
    this.answerText = null;
    const replaced = this.steps.splice(kept);
    for (const step of replaced) step.item.remove();
    this.undo = continues ? { kept, replaced, draft, id: this.id, answerText: this.earlier, end: [...this.end.childNodes] } : null;
    if (!continues) {
      this.about.replaceChildren();
      this.given = element("div");
      this.list = element("ol", { class: "steps" });
      this.end = element("div");
      this.outcome.replaceChildren(this.given, this.list, this.end);
    }
    this.wait("Asking");
  }

  wait(what) {
    this.end.replaceChildren(element("p", { class: "note waiting" }, `${what} `, element("span", { class: "dots" }, "…")));
  }

  show(name, data) {
    if (name === "loading") this.wait(`Loading the policy, ${data.seconds} s`);
    else if (name === "start") this.start(data);
    else if (name === "given") this.given.replaceChildren(passages(data.passages, "given before the first step"));
    else if (name === "step") this.step(data);
    else if (name === "score") this.score(data.number, data.score);
    else if (name === "unscored") this.about.append(element("p", { class: "note bad" }, `No scores: ${data.message}`));
    else if (name === "answer") this.answer(data);
    else if (name === "error") this.fail(data.message);
  }

  start({ answer, policy, steps }) {
    this.id = answer;
    const facts = [
      ["agent", policy.agent],
      ["searches in", policy.index],
      ["scored by", policy.reward],
    ];
    this.about.replaceChildren(
      element(
        "h2",
        {},
        policy.label,
        policy.oracle ? element("span", { class: "tag oracle" }, "oracle: sees the gold answers") : null,
      ),
      policy.reason ? element("p", { class: "note" }, policy.reason) : "",
      element(
        "dl",
        { class: "facts" },
        facts.filter(([, value]) => value).map(([term, value]) => element("div", {}, element("dt", {}, term), element("dd", {}, value))),
      ),
    );
    this.wait(`Step ${steps + 1}`);
  }

  step(data) {
    this.undo = null;
    for (const old of this.steps.splice(data.number - 1)) old.item.remove();
    const chip = element("span", { class: "score" });
    const tools = element("span", { class: "tools" });
    const summary = element(
      "div",
      { class: "line" },
      element("span", { class: "number", "aria-hidden": "true" }, String(data.number)),
      element("span", { class: "kind" }, KINDS[data.action] ?? data.action),
      data.written ? element("span", { class: "tag" }, "written by you") : null,
      tools,
      chip,
    );
    const body = element(
      "div",
      { class: "body" },
      data.thought ? element("p", { class: "thought" }, data.thought) : null,
      element("p", { class: "content" }, data.content || "(nothing)"),
      data.problem ? element("p", { class: "note bad" }, data.problem) : null,
      data.action === "query" ? passages(data.passages, "found") : null,
    );
    const item = element(
      "li",
      { class: `step ${data.action}`, tabIndex: 0, "aria-label": `Step ${data.number}, ${KINDS[data.action]}` },
      summary,
      body,
    );
    const step = { data, item, chip, body, tools };
    this.steps.push(step);
    this.list.append(item);
    this.wait(`Step ${data.number + 1}`);
  }

  score(number, score) {
    const step = this.steps[number - 1];
    if (!step) return;
    step.item.style.setProperty("--value", `${Math.round((score ?? 0.5) * 100)}%`);
    step.item.classList.toggle("scored", score !== null);
    step.chip.textContent = score === null ? "not judged" : `PRM ${score.toFixed(2)}`;
    step.chip.title = score === null ? "" : "The reward model's probability that this step is good";
  }

  answer(data) {
    this.answerText = data.answered ? data.text : "no answer";
    const gold = data.gold;
    this.end.replaceChildren(
      element(
        "div",
        { class: `answer ${!data.answered ? "none" : gold && !gold.em ? "miss" : ""}` },
        element("p", { class: "eyebrow" }, "Answer"),
        element("p", { class: "text" }, data.text),
        gold
          ? element(
              "p",
              { class: gold.em ? "good" : "bad" },
              gold.em ? "✓ matches the gold answer" : `✗ the gold answer is ${gold.answers.join(" or ")} (F1 ${gold.f1.toFixed(2)})`,
            )
          : null,
        this.earlier ? element("p", { class: "note" }, `Before the change: ${this.earlier}`) : null,
      ),
      data.citations.length
        ? element(
            "div",
            { class: "citations" },
            element("h3", {}, "Citations"),
            element("p", { class: "note" }, "Passages that contain the answer, then those that contain a sub-answer."),
            element(
              "ul",
              {},
              data.citations.map((each) =>
                element(
                  "li",
                  {},
                  element("b", {}, each.title || each.passage_id),
                  ` says “${each.states}” · `,
                  each.step
                    ? element("a", { href: "#", onclick: (event) => this.point(event, each.step) }, `step ${each.step}, passage ${each.rank}`)
                    : "given",
                ),
              ),
            ),
          )
        : "",
      element(
        "p",
        { class: "note" },
        `${STOPS[data.stop] ?? data.stop} · ${counted(this.steps.length, "step")} · ${whole(data.usage.read)} tokens read, ` +
          `${whole(data.usage.written)} written · ${data.seconds.toFixed(1)}\u00a0s`,
      ),
    );
    this.offerEdits();
  }

  fail(message) {
    this.endWith(element("p", { class: "notice", role: "alert" }, message));
  }

  /** The user has stopped it. */
  stop() {
    this.endWith(element("p", { class: "note" }, "Stopped."));
  }

  /** Say how it ended. If nothing has come of a change, the answer is as it was, and what the user wrote is not lost. */
  endWith(said) {
    const undone = this.undo;
    this.undo = null;
    if (undone) {
      this.id = undone.id;
      this.answerText = undone.answerText;
      this.steps.push(...undone.replaced);
      this.list.append(...undone.replaced.map((step) => step.item));
    }
    said.classList.add("ending");
    this.end.replaceChildren(...(undone?.end ?? []).filter((each) => !each.classList.contains("ending")));
    this.offerEdits();
    const editor = undone?.draft ? this.edit(this.steps[undone.kept], undone.draft) : null;
    if (editor) editor.append(said);
    else this.end.prepend(said);
  }

  /** Steps can be edited once nothing is generated any more. */
  offerEdits() {
    for (const step of this.steps) {
      if (!this.id || !step.data.kinds.length) continue;
      step.tools.replaceChildren(
        element("button", { type: "button", class: "quiet", title: "Write this step yourself, and continue from it", onclick: () => this.edit(step) }, "Edit"),
        element(
          "button",
          { type: "button", class: "quiet", title: "Let the policy write this step again, and all after it", onclick: () => this.proceed(step, null) },
          "Retry",
        ),
      );
    }
  }

  withoutEdits() {
    for (const step of this.steps) {
      step.tools.replaceChildren();
      step.item.querySelector("form")?.remove();
      step.body.hidden = false;
    }
  }

  /** The editor of a step, if it can be edited and is not already. */
  edit(step, draft = null) {
    if (!step.tools.children.length || step.item.querySelector("form")) return null;
    const { data } = step;
    const known = data.kinds.includes(data.action);
    const kind = element("select", { name: "kind" }, data.kinds.map((each) => element("option", { value: each }, KINDS[each])));
    if (draft || known) kind.value = draft?.kind ?? data.action;
    const thought = element("textarea", { name: "thought", rows: 2 });
    thought.value = draft?.thought ?? data.thought;
    const content = element("textarea", { name: "content", rows: 2, required: true });
    content.value = draft?.content ?? (known ? data.content : "");
    const close = () => {
      form.remove();
      step.body.hidden = false;
      step.tools.hidden = false;
      step.item.focus();
    };
    const form = element(
      "form",
      {
        class: "editor",
        onsubmit: (event) => {
          event.preventDefault();
          this.proceed(step, { kind: kind.value, thought: thought.value, content: content.value });
        },
        onkeydown: (event) => {
          if (event.key === "Escape") {
            event.stopPropagation();
            close();
          } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
        },
      },
      element("label", {}, "Action", kind),
      element("label", {}, "Thought", thought),
      element("label", {}, "Text", content),
      element(
        "div",
        { class: "buttons" },
        element("button", { type: "submit", class: "main" }, "Continue from here"),
        element("button", { type: "button", onclick: close }, "Cancel"),
      ),
    );
    step.body.hidden = true;
    step.tools.hidden = true;
    step.body.after(form);
    content.focus();
    return form;
  }

  proceed(step, written) {
    this.withoutEdits();
    step.tools.hidden = false;
    this.onContinue(step.data.number - 1, written);
  }

  point(event, number) {
    event.preventDefault();
    const item = this.steps[number - 1]?.item;
    if (!item) return;
    for (const found of item.querySelectorAll("details")) found.open = true;
    item.focus();
    item.scrollIntoView({ block: "nearest" });
  }
}

function passages(found, how) {
  if (!found.length) return element("p", { class: "note" }, "Nothing was found.");
  return element(
    "details",
    { class: "passages" },
    element("summary", {}, `${counted(found.length, "passage")} ${how}`, element("span", { class: "titles" }, found.map((each) => each.title || each.id).join(" · "))),
    found.map((each) =>
      element("blockquote", {}, element("b", {}, each.title), " ", each.text, each.score === null ? "" : element("span", { class: "note" }, ` ${each.score.toFixed(2)}`)),
    ),
  );
}
