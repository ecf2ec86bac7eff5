// The page: which documents there are, which one is read, its summary, and questions to it.
import { Refusal, counted, get, remove, upload, work } from "./calls.js";
import { clear, jump, light, make, plain, show, unlight } from "./document.js";

const at = (id) => document.getElementById(id);
const shelf = []; // documents as the server described them
let open = null; // the one that is read
let answers = []; // of the last question
let summarizing = null; // an AbortController
let asking = null;
const KEEP = "longspan-documents";

// What is said ----------------------------------------------------------------------------------------------------

function complain(error) {
  if (error.name === "AbortError") return;
  const said = error instanceof Refusal ? error.message : `something went wrong on this page: ${error.message}`;
  at("error").textContent = said[0].toUpperCase() + plain(said.slice(1)) + (/[.?!]$/.test(said) ? "" : ".");
  at("error").hidden = false;
  if (!(error instanceof Refusal)) console.error(error);
}

const calm = () => { at("error").hidden = true; };

function busy(doing, share = null, controller = null) {
  at("progress").hidden = doing === null;
  if (doing === null) return;
  if (at("doing").textContent !== plain(doing)) at("doing").textContent = plain(doing);
  if (share) at("bar").value = share;
  else at("bar").removeAttribute("value");
  at("cancel").onclick = () => controller?.abort();
  at("cancel").hidden = controller === null;
}

/** The title of what is read, above all; the empty page has its own. */
function title(said) {
  at("crumb").textContent = plain(said ?? "");
  at("crumb").hidden = !said;
  document.title = said ? `${plain(said)} · Longspan` : "Longspan";
}

const following = (controller) => (state) => {
  const ahead = state.ahead ? `, ${state.ahead} before this one` : "";
  if (!controller.signal.aborted) busy(state.doing + ahead, state.progress, controller);
};

// Documents ---------------------------------------------------------------------------------------------------------

const READABLE = /\.(csv|docm|docx|eml|epub|htm|html|ipynb|latex|ltx|man|markdown|mbox|mbx|md|mdoc|mht|mhtml|ods|odt|ott|pdf|pptx|rest|roff|rst|rtf|srt|tex|text|tsv|txt|vtt|xhtml|xls|xlsx)$/i;

async function add(files) {
  if (!files.length) return;
  calm();
  const controller = new AbortController();
  let first = null;
  let done = 0;
  for (const [file, name] of files) {
    at("desk").hidden = false;
    at("welcome").hidden = true;
    busy(files.length > 1 ? `Reading ${name} (${done + 1} of ${files.length})` : `Reading ${name}`, done / files.length, controller);
    try {
      const described = await upload(file, name, controller.signal);
      shelf.push(described);
      first ??= described;
      list();
    } catch (error) {
      complain(error);
      if (controller.signal.aborted) break;
    }
    done += 1;
  }
  busy(null);
  list();
  if (!first) return;
  const reading = read(first);
  hold();
  await reading;
}

function list() {
  const held = at("documents").contains(document.activeElement);
  at("documents").replaceChildren(...shelf.map((one) => {
    const sizes = counted(one.words, "word") + (one.pages ? `, ${counted(one.pages, "page")}` : "");
    const choose = make("button", {
      type: "button", class: "choose", "aria-current": one === open ? "true" : null, click: () => read(one).catch(complain),
    }, make("b", { dir: "auto" }, one.title || one.name), make("small", { dir: "auto" }, one.title ? `${one.name} · ${sizes}` : sizes));
    const away = make("button", {
      type: "button", class: "away", "aria-label": `Remove ${one.name}`, title: "Remove", click: () => drop(one),
    }, "×");
    return make("li", {}, choose, away);
  }));
  at("welcome").hidden = shelf.length > 0;
  at("desk").hidden = shelf.length === 0;
  at("scope").hidden = shelf.length < 2;
  sessionStorage.setItem(KEEP, JSON.stringify(shelf));
  if (!shelf.length) { open = null; clear(); title(null); }
  if (held) hold();
}

/** Give the focus to the document that is read, where what had it is gone. */
function hold() {
  if (document.activeElement !== document.body && document.activeElement.checkVisibility()) return;
  (at("documents").querySelector("[aria-current]") ?? document.querySelector("#welcome [data-does=files]")).focus();
}

async function drop(one) {
  calm();
  shelf.splice(shelf.indexOf(one), 1);
  answers = answers.filter((passage) => passage.document !== one.id);
  list();
  remove(`/documents/${encodeURIComponent(one.id)}`).catch(complain);
  if (one === open && shelf.length) await read(shelf[0]).catch(complain);
}

async function read(one) {
  summarizing?.abort();
  open = one;
  list();
  title(one.title || one.name);
  at("picked").replaceChildren();
  at("summary-notes").textContent = "";
  const content = await get(`/documents/${encodeURIComponent(one.id)}`);
  if (open !== one) return;
  show(content);
  const most = Math.max(1, Math.min(60, one.sentences));
  at("length").max = most;
  at("length").value = Math.min(most, Math.max(3, Math.min(20, Math.round(Math.sqrt(one.sentences) / 2))));
  length();
  lightAnswers();
  await summarize();
}

// The summary -------------------------------------------------------------------------------------------------------

function length() {
  const count = Number(at("length").value);
  at("length-said").textContent = `${count} of ${open.sentences}`;
  at("length").setAttribute("aria-valuetext", `${count} of ${counted(open.sentences, "sentence")}`);
}

function where(sentence) {
  return sentence.page ? `page ${sentence.page}` : `line ${sentence.first_line.toLocaleString("en")}`;
}

async function summarize() {
  summarizing?.abort();
  const controller = summarizing = new AbortController();
  const one = open;
  const query = at("about").value.trim() || null;
  try {
    const body = { document: one.id, sentences: Number(at("length").value), query };
    const done = await work("/summarize", body, following(controller), controller.signal);
    if (controller !== summarizing) return;
    unlight("picked");
    for (const sentence of done.sentences) light("picked", sentence.start, sentence.start + 1, "In the summary");
    at("picked").replaceChildren(...done.sentences.map((sentence) => make("li", {}, make("button", {
      type: "button", class: "jump", click: () => jump(sentence.start),
    }, sentence.speaker ? make("b", {}, `${sentence.speaker}: `) : null, make("span", { dir: "auto" }, sentence.text),
    make("small", {}, where(sentence))))));
    at("summary-notes").textContent = plain(done.notes.join("; "));
  } catch (error) {
    complain(error);
  } finally {
    if (controller === summarizing) busy(null);
  }
}

// Questions ---------------------------------------------------------------------------------------------------------

/** Empty outside English, where there is no probability. */
const percent = (probability) => (probability === null ? "" : `${Math.round(100 * probability)} %`);

const SURE = {
  likely: "An answer is likely among these:",
  unsure: "An answer may be among these:",
  "probably not there": "The nearest passages:",
};

/** How sure it is that the passages answer, in words and a colour. */
function sureness(done) {
  return make("p", { class: "row verdict", role: "status" },
    make("span", { class: `sure ${done.sure.replaceAll(" ", "-")}`, title: percent(done.probability) }, done.sure),
    make("span", {}, SURE[done.sure]));
}

function lightAnswers() {
  unlight("passage");
  unlight("marked");
  for (const passage of answers) {
    if (passage.document !== open?.id) continue;
    light("passage", passage.quote.start, passage.quote.end, passage.probability === null ? "May answer" : `Answers with a probability of ${passage.probability.toFixed(2)}`);
    light("marked", passage.sentence.start, passage.sentence.start + 1);
  }
}

async function goTo(passage) {
  const one = shelf.find((other) => other.id === passage.document);
  if (one && one !== open) await read(one).catch(complain);
  jump(passage.sentence.start);
}

/** The sentence that matters, with some of what stands around it. */
function around(text, [start, end]) {
  const from = Math.max(0, text.lastIndexOf(" ", Math.max(0, start - 110)));
  const to = text.length - end < 160 ? text.length : text.indexOf(" ", end + 140);
  const last = to < 0 ? Math.min(text.length, end + 400) : to;
  return [(from ? "… " : "") + text.slice(from, start), make("mark", {}, text.slice(start, end)), text.slice(end, last) + (last < text.length ? " …" : "")];
}

function shownPassage(passage, several) {
  const places = [several ? passage.file : null, passage.heading, passage.quote.page ? `page ${passage.quote.page}` : `line ${passage.quote.first_line.toLocaleString("en")}`];
  return make("li", {}, make("button", { type: "button", class: "jump", click: () => goTo(passage) },
    make("span", { class: "row" }, make("span", { class: "sure" }, percent(passage.probability)), make("small", { dir: "auto" }, places.filter(Boolean).join(" · "))),
    make("span", { dir: "auto" }, ...around(passage.text, passage.mark))));
}

async function ask(event) {
  event.preventDefault();
  calm();
  asking?.abort();
  const controller = asking = new AbortController();
  const all = shelf.length > 1 && document.querySelector("[name=scope]:checked").value === "all";
  const documents = all ? shelf.map((one) => one.id) : [open.id];
  try {
    const body = { documents, question: at("question").value, top: 3 };
    const [done] = await work("/answer", body, following(controller), controller.signal);
    if (controller !== asking) return;
    answers = done.passages;
    lightAnswers();
    const notes = done.notes.length ? make("p", { class: "notes" }, done.notes.join("; ")) : null;
    at("answers").replaceChildren(...[make("h3", { dir: "auto" }, done.question), sureness(done),
      make("ol", { class: "passages" }, ...done.passages.map((passage) => shownPassage(passage, all))), notes].filter(Boolean));
  } catch (error) {
    complain(error);
  } finally {
    if (controller === asking) busy(null);
  }
}

// Files come in -----------------------------------------------------------------------------------------------------

/** The files that were dropped, those in folders too, with their names in them. */
async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const found = [];
  async function walk(entry, inFolder) {
    if (entry.isFile) {
      const file = await new Promise((give, fail) => entry.file(give, fail));
      if (!inFolder || (READABLE.test(file.name) && !file.name.startsWith("."))) found.push([file, entry.fullPath.replace(/^\//, "")]);
    } else if (!entry.name.startsWith(".")) {
      const reading = entry.createReader();
      for (let some; (some = await new Promise((give, fail) => reading.readEntries(give, fail))).length;) {
        for (const one of some) await walk(one, true);
      }
    }
  }
  for (const entry of entries) await walk(entry, false);
  return entries.length ? found : [...transfer.files].map((file) => [file, file.name]);
}

function paste() {
  at("pasted").value = "";
  at("paste").returnValue = "";
  at("paste").showModal();
}

function listen() {
  const choose = { files: () => at("files").click(), folder: () => at("folder").click(), paste };
  for (const button of document.querySelectorAll("[data-does]")) button.addEventListener("click", choose[button.dataset.does]);
  at("files").addEventListener("change", () => { add([...at("files").files].map((file) => [file, file.name])).catch(complain); at("files").value = ""; });
  at("folder").addEventListener("change", () => {
    const files = [...at("folder").files].filter((file) => READABLE.test(file.name) && !/(^|\/)\./.test(file.webkitRelativePath));
    if (!files.length) complain(new Refusal("this folder holds no document that can be read"));
    add(files.map((file) => [file, file.webkitRelativePath || file.name])).catch(complain);
    at("folder").value = "";
  });
  at("paste").addEventListener("close", () => {
    const text = at("pasted").value;
    if (at("paste").returnValue === "read" && text.trim()) add([[new Blob([text]), "pasted text.txt"]]).catch(complain);
  });
  let depth = 0;
  addEventListener("dragenter", (event) => { if (event.dataTransfer?.types.includes("Files")) { depth += 1; at("veil").hidden = false; } });
  addEventListener("dragleave", () => { depth = Math.max(0, depth - 1); at("veil").hidden = depth === 0; });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    at("veil").hidden = true;
    dropped(event.dataTransfer).then(add).catch(complain);
  });
  let later;
  at("length").addEventListener("input", () => { length(); clearTimeout(later); later = setTimeout(summarize, 150); });
  at("about").addEventListener("change", summarize);
  at("ask").addEventListener("submit", ask);
  const tabs = ["tab-summary", "tab-ask"].map(at);
  const select = (tab) => {
    for (const other of tabs) {
      other.setAttribute("aria-selected", other === tab);
      other.tabIndex = other === tab ? 0 : -1;
      at(other.getAttribute("aria-controls")).hidden = other !== tab;
    }
  };
  for (const tab of tabs) {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", (event) => {
      if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      const next = tabs[(tabs.indexOf(tab) + 1) % tabs.length];
      select(next);
      next.focus();
    });
  }
  const views = document.querySelectorAll(".views button");
  new MutationObserver(() => {
    for (const view of views) view.setAttribute("aria-pressed", view.dataset.view === document.body.dataset.view);
  }).observe(document.body, { attributes: true, attributeFilter: ["data-view"] });
  for (const view of views) view.addEventListener("click", () => { document.body.dataset.view = view.dataset.view; });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || /^(INPUT|TEXTAREA)$/.test(event.target.tagName) || at("desk").hidden) return;
    event.preventDefault();
    document.body.dataset.view = "side";
    select(at("tab-ask"));
    at("question").focus();
  });
}

// Light and dark ----------------------------------------------------------------------------------------------------

function theme(chosen) {
  document.documentElement.dataset.theme = chosen;
  const [sign, name] = { auto: ["◐", "Auto"], light: ["○", "Light"], dark: ["●", "Dark"] }[chosen];
  at("theme").textContent = `${sign} ${name}`;
  at("theme").setAttribute("aria-label", `Theme: ${name}`); // with the word that is seen, for who speaks it
  at("theme").title = chosen === "auto" ? "Theme: as the system" : `Theme: ${chosen}`;
  localStorage.setItem("longspan-theme", chosen);
}

async function begin() {
  const themes = ["auto", "light", "dark"];
  theme(themes.includes(localStorage.getItem("longspan-theme")) ? localStorage.getItem("longspan-theme") : "auto");
  at("theme").addEventListener("click", () => theme(themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % 3]));
  listen();
  const kept = JSON.parse(sessionStorage.getItem(KEEP) || "[]");
  if (!kept.length) return;
  shelf.push(...kept);
  list();
  try {
    await read(shelf[0]);
  } catch { // another server, or it began anew
    shelf.length = 0;
    list();
  }
}

begin();
