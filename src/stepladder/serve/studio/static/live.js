// Live updates of a page: parts that the server renders again replace the old ones, and times are kept current.

/**
 * Listens to the events of a page until it is left. Handlers by name of the event get its data. The event
 * `part`, {id, html}, replaces the element of this id. Hidden tabs do not listen.
 */
export function listen(url, handlers = {}) {
  const sign = document.getElementById("live");
  let source = null;
  const say = (words, kind) => { if (sign) { sign.textContent = words; sign.className = `live ${kind}`; } };
  const open = () => {
    if (source) return;
    source = new EventSource(url);
    source.addEventListener("open", () => say("live", "on"));
    source.addEventListener("error", () => say("connection lost, trying again", "off"));
    source.addEventListener("problem", (event) => say(JSON.parse(event.data), "off"));
    source.addEventListener("part", (event) => { replacePart(JSON.parse(event.data)); tick(); });
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
    }
  };
  const close = () => { source?.close(); source = null; };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  if (!document.hidden) open();
  setInterval(tick, 1000);
  tick();
}

/** The element that escaped HTML of the server describes. Scripts in it would not run. */
export function parsePart(html) {
  const inTable = /^\s*<t(body|r)\b/.exec(html);
  const around = inTable ? `<table>${html}</table>` : html;
  const found = new DOMParser().parseFromString(around, "text/html");
  return inTable ? found.querySelector(inTable[1] === "r" ? "tr" : "tbody") : found.body.firstElementChild;
}

/** Replaces an element; marks, open details and the focus in it stay. */
export function replacePart({ id, html }) {
  const old = document.getElementById(id), fresh = parsePart(html);
  if (!old || !fresh) return;
  const key = (each) => `${each.tagName} ${each.name ?? ""} ${each.value ?? ""} ${each.id} ${each.getAttribute("href") ?? ""} ${each.dataset.key ?? ""}`;
  const marked = new Set([...old.querySelectorAll("input:checked")].map(key));
  const opened = new Set([...old.querySelectorAll("details[open]")].map(key));
  const focused = old.contains(document.activeElement) ? key(document.activeElement) : null;
  for (const each of fresh.querySelectorAll("input")) if (marked.has(key(each))) each.checked = true;
  for (const each of fresh.querySelectorAll("details")) if (opened.has(key(each))) each.open = true;
  old.replaceWith(fresh);
  if (focused) [...fresh.querySelectorAll("a, input, button, summary")].find((each) => key(each) === focused)?.focus();
}

function tick() {
  const now = Date.now() / 1000;
  for (const each of document.querySelectorAll("[data-since]")) put(each, duration(now - Number(each.dataset.since)));
  for (const each of document.querySelectorAll("time[data-time]")) {
    const time = Number(each.dataset.time), date = new Date(time * 1000);
    each.dateTime = date.toISOString();
    each.title = date.toLocaleString();
    put(each, ago(now - time, date));
  }
}

const put = (each, words) => { if (each.textContent !== words) each.textContent = words; };

/** Seconds in words, as the reports have them. */
function duration(seconds) {
  const whole = Math.max(Math.round(seconds), 0), two = (number) => String(number).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

function ago(seconds, date) {
  if (seconds < 10) return "now";
  if (seconds < 60) return `${Math.floor(seconds / 10) * 10} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return date.toISOString().slice(0, 10);
}
