// The list of runs: search, filter, counters, and ten thousand rows.

import { api, isExported } from "./api.js";
import { ask, attempt, button, element, visible } from "./dom.js";
import { STATES, count, link, money, nameOf, sinceText, stateOf, stateText, took, waiting, when } from "./format.js";
import { virtualList } from "./virtual.js";

const POLL = 2000;
const FIRST = 100;
const HEIGHT = 36;

export async function runsPage(main) {
  const search = element("input", { type: "search", placeholder: "Search tasks, agents and ids", "aria-label": "Search runs" });
  const state = element("select", { "aria-label": "State" }, element("option", { text: "all states", value: "" }),
    ...STATES.map((each) => element("option", { text: each.replace("_", " "), value: each })));
  const total = element("p", { class: "dim counters", role: "status" });
  const columns = ["State", "Agent", "Task", "Turns", "Tokens", "Cost", "Took", "Started"];
  const header = element("div", { class: "row head", "aria-hidden": "true" }, ...columns.map((text, place) => element("span", { text, class: place > 2 ? "number" + (place === 5 ? "" : " wide") : place === 1 ? "wide" : "" })));
  let items = [], next = null, isLoading = false, timer = 0, counts = null;
  let first = new Set(), isDeep = false;  // the ids of the first page, and whether later pages were loaded
  const list = virtualList({ label: "Runs", className: "runs", height: HEIGHT, header, draw, onNearEnd: more });
  main.replaceChildren(element("div", { class: "bar" }, search, state, isExported ? null : button("New run", start, { class: "primary" })), total, list.box);

  function draw(run) {
    return element("a", { class: "row", href: link(run), "aria-label": nameOf(run) + ", " + stateText(run) + ": " + run.task.slice(0, 200) },
      element("span", { class: "state " + stateOf(run) }, stateOf(run).replace("_", " "), waiting(run) ? element("span", { class: "reason", text: waiting(run) }) : null),
      element("span", { class: "wide", text: visible(nameOf(run)) }), element("span", { class: "task", text: visible(run.task.slice(0, 300)) }),
      element("span", { class: "number wide", text: String(run.turns) }), element("span", { class: "number wide", text: count(run.usage.input + run.usage.output) }),
      element("span", { class: "number", text: money(run.cost) }), element("span", { class: "number wide", text: took(run) }),
      element("span", { class: "number wide dim", text: sinceText(run.started_at), title: when(run.started_at) }));
  }
  const query = (cursor, limit) => "/runs?limit=" + limit + (cursor ? "&cursor=" + encodeURIComponent(cursor) : "")
    + (state.value ? "&state=" + state.value : "") + (search.value ? "&q=" + encodeURIComponent(search.value) : "");
  function show() {
    list.set(items);
    const states = new Map();
    for (const run of items) states.set(stateOf(run), (states.get(stateOf(run)) || 0) + 1);
    const parts = STATES.filter((each) => states.has(each)).map((each) => states.get(each) + " " + each.replace("_", " "));
    const all = !next ? (items.length === 1 ? " run" : " runs") : counts ? " of " + counts.runs + " runs, " + counts.unfinished + " unfinished" : " of more runs";
    const text = items.length ? items.length + all + ": " + parts.join(", ") : next ? "looking at older runs…" : "no runs";
    if (total.textContent !== text) total.textContent = text;
  }
  async function refresh() {
    const asked = query(null, FIRST);
    const page = await attempt(() => api(asked));
    const found = page && page.next && !state.value && !search.value ? await attempt(() => api("/counts")) : null;
    if (!page || asked !== query(null, FIRST)) return;
    counts = found;
    const known = new Set(page.items.map((run) => run.run_id));
    const last = page.items.at(-1);
    // A page with a filter may have few runs, or none, and a cursor: what later pages had stays. Runs between that
    // page and those that are shown are missing where the two do not meet; they are loaded anew.
    const isGap = page.items.length === FIRST ? !items.some((run) => known.has(run.run_id)) : !last && items.some((run) => first.has(run.run_id));
    if (!page.next || isGap) isDeep = false;
    const older = isDeep ? items.filter((run) => !known.has(run.run_id) && (!last || run.started_at <= last.started_at)) : [];
    items = page.items.concat(older);
    first = known;
    if (!isDeep) next = page.next;
    show();
  }
  async function more() {
    if (!next || isLoading) return;
    isLoading = true;
    const before = next, asked = query(before, 500);
    const page = await attempt(() => api(asked));
    isLoading = false;
    if (!page || next !== before || asked !== query(before, 500)) return;
    const known = new Set(items.map((run) => run.run_id));
    items = items.concat(page.items.filter((run) => !known.has(run.run_id)));
    next = page.next;
    isDeep = true;
    show();
  }
  async function start() {
    const agents = (await attempt(() => api("/agents")))?.items || [];
    const agent = element("select", { "aria-label": "Agent" }, element("option", { text: "no agent", value: "" }), ...agents.map((each) => element("option", { text: each.name, value: each.name })));
    const task = await ask({ title: "New run", label: "Task", long: true, yes: "Start", more: [agent] });
    if (!task || !task.trim()) return;
    const made = await attempt(() => api("/runs", { task, ...(agent.value ? { agent: agent.value } : {}) }));
    if (made) location.hash = link(made);
  }
  const restart = () => { clearTimeout(timer); timer = setTimeout(() => { items = []; next = null; isDeep = false; refresh(); }, 200); };
  search.addEventListener("input", restart);
  state.addEventListener("change", restart);
  await refresh();
  const polling = setInterval(() => { if (!document.hidden && !isExported) refresh(); }, POLL);
  return { leave() { clearInterval(polling); clearTimeout(timer); } };
}
