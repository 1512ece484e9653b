// The page of one run.
import { drawChart } from "/static/chart.js";
import { listen } from "/static/live.js";

const section = document.getElementById("curves");

const element = (tag, kind = "", words = "") => {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  made.textContent = words;
  return made;
};

/** The place of a stage, in the order in which the server sends stages. */
function placeOf(stage, kind) {
  const id = `curves:${stage}`;
  let place = document.getElementById(id);
  if (!place) {
    place = element("div");
    place.id = id;
    const title = element("h3", "", stage);
    title.append(" ", element("span", "kind"));
    const more = element("details");
    more.append(element("summary", "", `More about ${stage}`), element("div", "charts"));
    place.append(title, element("p", "notice"), element("div", "charts"), element("p", "note"), more);
    section.append(place);
  }
  return place;
}

function showCurves({ stage, kind, updates, metrics, constants, problem }) {
  section.hidden = false;
  const place = placeOf(stage, kind);
  const named = kind === stage ? "" : `${kind}, `;
  place.querySelector(".kind").textContent = `${named}${updates.toLocaleString("en")} updates`;
  const notice = place.querySelector(":scope > .notice");
  notice.textContent = problem;
  notice.hidden = !problem;
  const [main, folded] = place.querySelectorAll(".charts");
  for (const metric of metrics) {
    const home = metric.secondary ? folded : main;
    let figure = [...home.children].find((each) => each.dataset.metric === metric.id);
    if (!figure) {
      figure = element("figure");
      figure.dataset.metric = metric.id;
      home.append(figure);
    }
    drawChart(figure, metric);
  }
  const shown = new Set(metrics.map((metric) => metric.id));
  for (const figure of place.querySelectorAll("figure")) if (!shown.has(figure.dataset.metric)) figure.remove();
  const text = constants.map(([name, value, many]) => `${name} ${value} (${many ? "constant" : "one value"})`).join(", ");
  const note = place.querySelector(":scope > p.note");
  note.textContent = `Not drawn: ${text}.`;
  note.hidden = !text;
  place.querySelector("details").hidden = !folded.children.length;
}

/** Parts that a run does not have are not in its contents. */
function showContents() {
  for (const link of document.querySelectorAll('nav[aria-label="This run"] a[href^="#"]')) {
    link.hidden = document.getElementById(link.hash.slice(1))?.hidden ?? true;
  }
}

listen(`${location.pathname.replace(/\/$/, "")}/events`, {
  curves: (curves) => { showCurves(curves); showContents(); },
  part: showContents,
});
showContents();
