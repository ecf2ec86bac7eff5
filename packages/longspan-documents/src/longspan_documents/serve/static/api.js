// What /openapi.json says, as a page, with a form for each request.
import { make } from "./document.js";

const EXAMPLES = {
  "/summarize": { text: "The whole text goes here. It may be as long as a book.", sentences: 1 },
  "/answer": { text: "Lead acetate tastes sweet. It is poisonous.", question: "What does it taste like?" },
  "/embed": { texts: ["near vectors mean near meanings"] },
  "/v1/rerank": { query: "What does it taste like?", documents: ["Lead acetate tastes sweet.", "It is poisonous."] },
  "/v1/embeddings": { input: "near vectors mean near meanings", model: "longspan" },
};

function kindOf(schema, all) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.enum || schema.const) return (schema.enum || [schema.const]).map((one) => JSON.stringify(one)).join(" or ");
  if (schema.anyOf) return schema.anyOf.map((one) => kindOf(one, all)).join(" or ");
  if (schema.type === "array") return `list of ${kindOf(schema.items || {}, all)}`;
  return schema.type || "any";
}

function table(rows) {
  return make("table", {}, make("tbody", {}, ...rows.map(([name, kind, said]) => make("tr", {},
    make("th", { scope: "row" }, make("code", {}, name)), make("td", {}, kind), make("td", {}, said)))));
}

function fields(schema, all) {
  const of = schema.$ref ? all[schema.$ref.split("/").at(-1)] : schema;
  return table(Object.entries(of.properties || {}).map(([name, one]) =>
    [name + (of.required?.includes(name) ? " *" : ""), kindOf(one, all), one.description || ""]));
}

function attempt(path) {
  const body = make("textarea", { rows: 5, "aria-label": `Body for ${path}`, spellcheck: "false" });
  body.value = JSON.stringify(EXAMPLES[path], null, 2);
  const answer = make("pre", { tabindex: "0", role: "status", "aria-label": "Answer" });
  answer.hidden = true;
  const send = make("button", { type: "button", class: "primary", click: async () => {
    answer.hidden = false;
    answer.textContent = "…";
    try {
      const response = await fetch(path, { method: "POST", body: body.value, headers: { "Content-Type": "application/json" } });
      const text = JSON.stringify(await response.json(), null, 2);
      answer.textContent = `${response.status}\n${text.length > 6000 ? `${text.slice(0, 6000)} …` : text}`;
    } catch (error) {
      answer.textContent = error.message;
    }
  } }, "Send");
  return [body, make("p", {}, send), answer];
}

function shown(path, method, said, all) {
  const parts = [make("p", {}, said.description || "")];
  if (said.parameters) parts.push(table(said.parameters.map((one) => [one.name, kindOf(one.schema, all), one.description || one.in])));
  const [kind, body] = Object.entries(said.requestBody?.content || {})[0] || [];
  if (body) parts.push(make("p", { class: "hint" }, kind), fields(body.schema, all));
  if (kind === "multipart/form-data") parts.push(make("pre", {}, `curl -F file=@paper.pdf ${location.origin}${path}`));
  const given = said.responses?.["200"]?.content?.["application/json"]?.schema;
  const one = given?.items || given;
  if (one?.$ref) parts.push(make("p", { class: "hint" }, `Answer: ${kindOf(given, all)}`), fields(one, all));
  if (path in EXAMPLES) parts.push(...attempt(path));
  return make("details", {}, make("summary", {}, make("code", { class: "method" }, method.toUpperCase()), make("code", {}, path),
    make("span", { class: "hint" }, (said.description || "").split("\n")[0])), make("div", { class: "body" }, ...parts));
}

const described = await (await fetch("/openapi.json")).json();
const all = described.components?.schemas || {};
const groups = new Map();
for (const [path, methods] of Object.entries(described.paths)) {
  for (const [method, said] of Object.entries(methods)) {
    const tag = said.tags?.[0] || "other";
    groups.set(tag, [...(groups.get(tag) || []), shown(path, method, said, all)]);
  }
}
document.documentElement.dataset.theme = localStorage.getItem("longspan-theme") || "auto";
document.getElementById("calls").append(...[...groups].flatMap(([tag, calls]) => [make("h2", {}, tag), ...calls]));
