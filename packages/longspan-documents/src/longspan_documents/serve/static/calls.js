// Requests to the server that gave this page, and how their numbers are said.

/** What the server said was wrong, as a sentence. */
export class Refusal extends Error {}

/** A count with its noun: "1 page", "2,000 pages". */
export const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

async function sentence(response) {
  try {
    const detail = (await response.json()).detail;
    if (typeof detail === "string") return detail;
  } catch { /* no JSON */ }
  return `the server answered ${response.status}`;
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("the server cannot be reached; is `longspan serve` still running?");
  }
  if (response.status === 429) { // come again, as it says
    await new Promise((wake) => setTimeout(wake, 1000 * Number(response.headers.get("Retry-After") || 1)));
    return call(path, options);
  }
  if (!response.ok) throw new Refusal(await sentence(response));
  return response.status === 204 ? null : response.json();
}

export const get = (path) => call(path);
export const remove = (path) => call(path, { method: "DELETE" });

export function upload(file, name, signal) {
  const form = new FormData();
  form.append("file", file, name);
  return call("/documents", { method: "POST", body: form, signal });
}

/** Begin a job, tell `follow` of its state as it goes, and give its result. `signal` cancels it. */
export async function work(path, body, follow, signal) {
  const headers = { "Content-Type": "application/json" };
  const begun = await call(`${path}?background=true`, { method: "POST", headers, body: JSON.stringify(body) });
  const address = `/jobs/${encodeURIComponent(begun.job)}`;
  const cancel = () => remove(address).catch(() => {});
  if (signal.aborted) cancel();
  signal.addEventListener("abort", cancel);
  follow(begun);
  try {
    await new Promise((done) => {
      const events = new EventSource(`${address}/events`);
      const close = () => { events.close(); done(); };
      events.onerror = close; // asked for below, whatever became of it
      events.onmessage = (event) => {
        const state = JSON.parse(event.data);
        follow(state);
        if (!["waiting", "running"].includes(state.state)) close();
      };
    });
    let state = await get(address);
    while (["waiting", "running"].includes(state.state)) { // the events broke off
      await new Promise((wake) => setTimeout(wake, 500));
      state = await get(address);
    }
    if (state.state === "cancelled") throw new DOMException("cancelled", "AbortError");
    if (state.state === "failed") throw new Refusal(state.error);
    return state.result;
  } finally {
    signal.removeEventListener("abort", cancel);
  }
}
