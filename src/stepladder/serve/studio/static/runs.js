// The page of all runs.
import { listen } from "/static/live.js";

const form = document.querySelector("form.runs");
const button = document.getElementById("compare"), note = document.getElementById("compare-note");
const count = () => {
  const marked = form.querySelectorAll("input:checked").length;
  button.disabled = marked < 2;
  note.hidden = marked >= 2;
};
form.addEventListener("change", count);
listen("/events", { part: () => count() });
count();
