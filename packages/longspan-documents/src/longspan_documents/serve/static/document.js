// The document in the middle of the page, its sentences lit up. Everything of a document is set as text, never as markup.

const FOLDED = { boilerplate: "Boilerplate", references: "References", caption: "Caption", note: "Note" };
const reader = document.getElementById("reader");
const map = document.getElementById("map");
let places = []; // of sentences, rising
let spans = new Map(); // place → element

/** A text without characters that turn letters around or do other than show; each becomes U+FFFD, as in the document. */
export const plain = (text) => text.replace(/[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

/** An element with attributes and children; texts become text. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "click") element.addEventListener("click", value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  const real = children.filter((child) => child !== null && child !== undefined);
  element.append(...real.map((child) => (typeof child === "string" ? plain(child) : child)));
  return element;
}

function words(block) {
  return block.runs.map(([text, place]) => {
    if (place === null) return text;
    const span = make("span", { class: "sentence" }, text);
    spans.set(place, span);
    places.push(place);
    return span;
  });
}

/** A table whose every row is a line between bars, of which one may be a sentence; null for any other. */
function tabled(block) {
  const rows = block.runs
    .flatMap(([text, place]) => (place === null ? text.split("\n").map((line) => [line, null]) : [[text, place]]))
    .map(([text, place]) => [text.trim(), place])
    .filter(([text]) => text);
  if (!rows.length || !rows.every(([text]) => /^\|.*\|$/.test(text))) return null;
  const made = rows.map(([text, place]) => {
    const cells = text.slice(1, -1).split("|").map((cell) => make("td", { dir: "auto" }, cell.trim()));
    const row = make("tr", { class: place !== null && "sentence" }, ...cells);
    if (place !== null) {
      spans.set(place, row);
      places.push(place);
    }
    return row;
  });
  return make("div", { class: "table", tabindex: "0", role: "region", "aria-label": "table" }, make("table", {}, ...made));
}

function shown(block) {
  if (block.kind === "heading") {
    return make(`h${Math.min(Math.max(block.level, 1) + 1, 6)}`, { dir: "auto" }, ...words(block));
  }
  const table = block.kind === "table" ? tabled(block) : null;
  if (table) return table;
  if (block.kind === "code" || block.kind === "table") {
    return make("pre", { tabindex: "0", class: block.kind, role: "region", "aria-label": block.kind }, ...words(block));
  }
  const speaker = block.speaker ? make("b", { class: "speaker" }, block.speaker, " ") : null;
  const level = block.kind === "item" ? ` level-${Math.min(block.level, 5)}` : "";
  return make("p", { class: block.kind + level, dir: "auto" }, speaker, ...words(block));
}

/** Blocks of one kind that stand together, as one fold; null where there are no words in them. */
function folded(blocks) {
  const texts = blocks.map((block) => block.runs.map(([part]) => part).join("").trim()).filter(Boolean);
  if (!texts.length) return null;
  const head = make("summary", {}, `${FOLDED[blocks[0].kind]} `, make("span", {}, texts[0].slice(0, 70)));
  return make("details", {}, head, ...texts.map((text) => make("p", { dir: "auto" }, text)));
}

/** Show a document, with its pages. */
export function show(content) {
  places = [];
  spans = new Map();
  let page = null;
  const parts = [];
  let fold = []; // blocks that are not shown yet
  const close = () => {
    parts.push(folded(fold));
    fold = [];
  };
  for (const block of content.blocks) {
    const turned = block.page !== null && block.page !== page;
    if (fold.length && (turned || block.kind !== fold[0].kind)) close();
    if (turned) {
      page = block.page;
      parts.push(make("div", { class: "page" }, `page ${page}`));
    }
    if (block.kind in FOLDED) fold.push(block);
    else parts.push(shown(block));
  }
  if (fold.length) close();
  reader.setAttribute("aria-label", `Document ${content.name}`);
  reader.replaceChildren(make("div", { class: "sheet" }, ...parts));
  reader.scrollTop = 0;
  map.replaceChildren();
}

/** Empty the middle. */
export function clear() {
  places = [];
  spans = new Map();
  reader.replaceChildren();
  map.replaceChildren();
}

/** Take a light away: "picked", "passage" or "marked". */
export function unlight(kind) {
  for (const span of reader.querySelectorAll(`.${kind}`)) span.classList.remove(kind);
  for (const tick of map.querySelectorAll(`.${kind}`)) tick.remove();
}

/** Light up the sentences that begin in [start, end). */
export function light(kind, start, end, title = "") {
  for (const place of places) {
    if (place < start || place >= end) continue;
    spans.get(place).classList.add(kind);
    if (title) spans.get(place).title = title;
  }
  const first = spans.get(places.find((place) => place >= start));
  if (!first || kind === "passage") return;
  const sheet = reader.firstElementChild.getBoundingClientRect();
  const tick = make("i", { class: kind, click: () => jump(start) });
  tick.style.top = `${(100 * (first.getBoundingClientRect().top - sheet.top)) / Math.max(sheet.height, 1)}%`;
  map.append(tick);
}

/** Bring the sentence that begins at a place, or the next one, before the eyes. */
export function jump(start) {
  const span = spans.get(places.find((place) => place >= start) ?? places.at(-1));
  if (!span) return;
  document.body.dataset.view = "document";
  for (const other of reader.querySelectorAll(".here")) other.classList.remove("here");
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  span.scrollIntoView({ block: "center", behavior: calm ? "auto" : "smooth" });
  span.classList.add("here");
  span.tabIndex = -1;
  span.focus({ preventScroll: true });
}
