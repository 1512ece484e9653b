// The page that compares runs: loads the numbers, then the curves of stages that the runs share.
import { drawTogether } from "/static/chart.js";
import { parsePart } from "/static/live.js";

const place = document.getElementById("comparison"), problem = document.getElementById("problem");
const waiting = document.getElementById("waiting");
// Colors of series in the style sheet: one for each run, as far as they go.
const COLORS = [1, 0, 2, 3, 4];

async function load(name) {
  const path = name.split("/").map(encodeURIComponent).join("/");
  const answer = await fetch(`/runs/${path}/curves`, { headers: { accept: "application/json" } });
  return answer.ok ? answer.json() : [];
}

async function compare(query) {
  waiting.hidden = false;
  problem.hidden = true;
  const answer = await fetch(`/compare/result?${query}`, { headers: { accept: "application/json" } });
  const data = await answer.json();
  waiting.hidden = true;
  if (!answer.ok) {
    problem.textContent = data.detail ?? answer.statusText;
    problem.hidden = false;
    return;
  }
  place.replaceChildren(parsePart(data.html));
  const settings = document.getElementById("settings");
  settings.querySelector("button").hidden = true;
  settings.addEventListener("change", () => {
    const chosen = new URLSearchParams(new FormData(settings));
    history.replaceState(null, "", `/compare?${chosen}`);
    compare(chosen);
  });
  await drawCurves(document.getElementById("curves"));
}

async function drawCurves(section) {
  const shown = JSON.parse(section.dataset.runs).slice(0, COLORS.length);
  const found = await Promise.all(shown.map(load));
  const stages = new Map();
  found.forEach((curves, index) => {
    for (const { stage, metrics } of curves) {
      for (const metric of metrics.filter((each) => !each.secondary)) {
        const ofStage = stages.get(stage) ?? new Map();
        const series = ofStage.get(metric.name) ?? [];
        series.push({ label: shown[index], color: COLORS[index], train: metric.train, dev: metric.dev });
        stages.set(stage, ofStage.set(metric.name, series));
      }
    }
  });
  for (const [stage, metrics] of stages) {
    const shared = [...metrics].filter(([, series]) => series.length > 1);
    if (!shared.length) continue;
    const title = document.createElement("h3"), charts = document.createElement("div");
    title.textContent = stage;
    charts.className = "charts";
    for (const [name, series] of shared) {
      const figure = document.createElement("figure");
      drawTogether(figure, name, series);
      charts.append(figure);
    }
    section.append(title, charts);
    section.hidden = false;
  }
  document.querySelector('nav a[href="#curves"]').hidden = section.hidden;
}

compare(location.search.slice(1));
