// Elements of a page. Text is always set as text: what a model or a passage says is never read as HTML.

/** A new element. Strings among the children become text; null and false are left out. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) made.style.setProperty(name, value);
    else if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** A number with separators between thousands. */
export function whole(number) {
  return Number(number).toLocaleString("en-US");
}

/** "1 passage", "3 passages". */
export function counted(number, noun) {
  return `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** What an action is called on the pages, as in the reports. */
export const KINDS = {
  query: "search",
  evidence: "evidence",
  sub_answer: "found",
  answer: "answer",
  malformed: "malformed",
};
