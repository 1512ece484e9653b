// A learning curve as SVG, in the colors of the reports: a line for training, dots for dev questions.
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 280, HEIGHT = 150, LEFT = 46, RIGHT = 10, TOP = 8, BOTTOM = 24;
// As in the reports: a change is drawn in at least this share of the largest value, so that a small one looks small.
const MIN_SPAN = 0.3;
// Lines of at least so many points are smoothed, over this share of them.
const MIN_SMOOTHED = 24, WINDOW = 1 / 12;

const make = (tag, attributes = {}) => {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};

export const number = (value) => {
  if (value === 0) return "0";
  const words = Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en")
    : Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6 ? value.toExponential(1)
    : String(Number(value.toPrecision(3)));
  return words.replace("-", "−");
};

/** Draws a metric of one run into a figure. What is there already is replaced. */
export function drawChart(figure, { name, note, train, dev, not_finite: notFinite }) {
  const notes = [[note, "note"], [notFinite ? `${notFinite.toLocaleString("en")} values are not finite and not drawn` : "", "note bad"]];
  draw(figure, name, [{ label: "", color: 1, train, dev, faint: true }], notes);
}

/** Draws the same metric of several runs: [{label, train, dev}]. Their colors are those of `colorOf`. */
export function drawTogether(figure, name, runs) {
  draw(figure, name, runs.map((run) => ({ ...run, faint: false })), []);
}

const ends = (points) => (points.length > 1 ? `${number(points[0][1])} → ${number(points.at(-1)[1])}` : number(points[0][1]));

function draw(figure, name, runs, notes) {
  const series = runs.map((run) => ({ ...run, smooth: smoothed(run.train) }));
  const captions = series.map(({ label, train, smooth, dev }) => [label, [
    train.length ? ends(smooth.length ? smooth : train) : "", dev.length ? `dev ${ends(dev)}` : "",
  ].filter(Boolean).join(" · ")].filter(Boolean).join(": "));
  const title = document.createElement("figcaption");
  title.textContent = name;
  const told = series.map(({ label, color }, index) => {
    const small = document.createElement("span");
    small.className = label ? `caption of-series${color}` : "caption";
    small.textContent = captions[index];
    return small;
  });
  title.append(...told);
  const parts = [title, picture(name, captions, series, told)];
  for (const [words, kind] of notes) {
    if (!words) continue;
    const paragraph = document.createElement("p");
    paragraph.className = kind;
    paragraph.textContent = words;
    parts.push(paragraph);
  }
  figure.replaceChildren(...parts);
}

function picture(name, captions, series, told) {
  const all = series.flatMap(({ train, dev }) => [...train, ...dev]);
  if (!all.length) return "";
  const values = all.map((point) => point[1]);
  let low = Math.min(...values), high = Math.max(...values);
  const padding = Math.max(0.06 * (high - low), (MIN_SPAN * Math.max(Math.abs(low), Math.abs(high)) - (high - low)) / 2) || 1;
  [low, high] = [low - padding, high + padding];
  const last = Math.max(1, ...all.map((point) => point[0]));
  const x = (step) => LEFT + (step / last) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);

  const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart live-chart", role: "img", "aria-label": `${name}. ${captions.join("; ")}` });
  for (const value of ticks(low, high, 4)) {
    svg.append(make("line", { class: "stroke-grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
    const label = make("text", { class: "fill-quiet", x: LEFT - 6, y: y(value) + 3.5, "text-anchor": "end" });
    label.textContent = number(value);
    svg.append(label);
  }
  for (const step of ticks(0, last, 4).filter((each) => Number.isInteger(each))) {
    const label = make("text", { class: "fill-quiet", x: x(step), y: HEIGHT - 7, "text-anchor": step === 0 ? "start" : "middle" });
    label.textContent = number(step);
    svg.append(label);
  }
  const path = (points, kind) => points.length > 1 && svg.append(
    make("polyline", { class: kind, points: points.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }),
  );
  const dots = (points, kind, r) => points.forEach(([step, value]) => svg.append(make("circle", { class: kind, cx: x(step), cy: y(value), r })));
  for (const { color, train, smooth, dev, faint } of series) {
    const ofDev = faint ? "ink" : `series${color}`;
    if (!smooth.length || faint) path(train, `curve stroke-series${color}${smooth.length ? " faint" : ""}`);
    path(smooth, `curve stroke-series${color}`);
    path(dev, `curve dashed stroke-${ofDev}`);
    if (train.length === 1) dots(train, `fill-series${color}`, 3);
    dots(dev, `fill-${ofDev}`, 3.2);
  }
  const cross = make("line", { class: "stroke-rule", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  svg.append(cross);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const step = ((((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT)) * last;
    const nearest = (points) => points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best), points[0]);
    series.forEach(({ label, train, dev }, index) => {
      const one = nearest(train), other = nearest(dev);
      if (index === 0) for (const end of ["x1", "x2"]) cross.setAttribute(end, x((one ?? other ?? [step])[0]));
      told[index].textContent = [
        label, [one && `update ${number(Math.round(one[0]))}: ${number(one[1])}`, other && `dev at ${number(Math.round(other[0]))}: ${number(other[1])}`].filter(Boolean).join(" · "),
      ].filter(Boolean).join(": ");
    });
    cross.setAttribute("visibility", "visible");
  });
  svg.addEventListener("pointerleave", () => {
    cross.setAttribute("visibility", "hidden");
    told.forEach((small, index) => { small.textContent = captions[index]; });
  });
  return svg;
}

/** Round values between two ends, about so many. */
function ticks(low, high, count) {
  const rough = (high - low) / count, size = 10 ** Math.floor(Math.log10(rough));
  const step = size * ([1, 2, 5, 10].find((each) => each * size >= rough) ?? 10);
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high; n += 1) found.push(Number((n * step).toPrecision(12)));
  return found;
}

/** A centered moving average; nothing for a short line. */
function smoothed(points) {
  if (points.length < MIN_SMOOTHED) return [];
  const reach = Math.max(Math.round((points.length * WINDOW) / 2), 1);
  return points.map(([step], index) => {
    const near = points.slice(Math.max(index - reach, 0), index + reach + 1);
    return [step, near.reduce((sum, point) => sum + point[1], 0) / near.length];
  });
}
