"use strict";
// Texts of models, tools and files reach the page through textContent alone; no HTML is made from them.

const main = document.getElementById("main");
const ROW = 34;
const POLL = 2000;
let leave = () => {};

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "text") made.textContent = value;
    else if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function tell(text) {
  const message = document.getElementById("message");
  message.textContent = text;
  message.hidden = !text;
  if (text) setTimeout(() => { if (message.textContent === text) message.hidden = true; }, 8000);
}

async function api(path, body) {
  const options = body === undefined ? {} : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  const answer = await fetch("/api/v1" + path, options);
  const value = await answer.json().catch(() => ({ error: "the server gave no answer" }));
  if (!answer.ok) throw new Error(value.error || String(answer.status));
  return value;
}

async function attempt(work) {
  try { return await work(); } catch (error) { tell(error.message); return null; }
}

const stateOf = (run) => run.outcome || run.state;
const nameOf = (run) => run.handle || run.label || run.agent;
const money = (cost) => cost === null ? "?" : cost === 0 ? "$0" : "$" + cost.toFixed(cost < 0.1 ? 4 : 2);
const count = (number) => number < 1000 ? String(number) : number < 1e6 ? (number / 1000).toFixed(1) + "k" : (number / 1e6).toFixed(1) + "M";
const when = (text) => text ? new Date(text).toLocaleString() : "";

function took(run) {
  const end = run.ended_at ? Date.parse(run.ended_at) : Date.now();
  const seconds = Math.max(0, (end - Date.parse(run.started_at)) / 1000);
  return seconds < 60 ? seconds.toFixed(1) + " s" : Math.floor(seconds / 60) + " min " + Math.floor(seconds % 60) + " s";
}

// A list that draws only the rows in view: ten thousand rows cost as much as fifty.
function virtualList(className, label, drawRow, header = null) {
  const space = element("div");
  const box = element("div", { class: className, role: "list", "aria-label": label, tabindex: "0" });
  if (header) box.append(header);
  box.append(space);
  let items = [];
  const drawn = new Map();
  function draw() {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 10);
    const last = Math.min(items.length, first + Math.ceil(box.clientHeight / ROW) + 20);
    for (const [index, row] of drawn) if (index < first || index >= last) { row.remove(); drawn.delete(index); }
    for (let index = first; index < last; index++) {
      const row = drawRow(items[index], index);
      row.style.top = index * ROW + "px";
      const before = drawn.get(index);
      if (before) before.replaceWith(row); else space.append(row);
      drawn.set(index, row);
    }
  }
  box.addEventListener("scroll", () => requestAnimationFrame(draw));
  return {
    box,
    set(next) {
      items = next;
      space.style.cssText = "position:relative;height:" + items.length * ROW + "px";
      for (const [index, row] of drawn) if (index >= items.length) { row.remove(); drawn.delete(index); }
      draw();
    },
  };
}

// ---- pages ---------------------------------------------------------------------------------------------------------

async function runsPage() {
  const search = element("input", { type: "search", placeholder: "Search tasks, agents and ids", "aria-label": "Search runs" });
  const state = element("select", { "aria-label": "State" },
    ...["all states", "working", "waiting", "idle", "interrupted", "completed", "failed", "cancelled", "timed_out", "exhausted"]
      .map((each) => element("option", { text: each, value: each === "all states" ? "" : each })));
  const total = element("span", { class: "dim", role: "status" });
  const more = element("button", { type: "button", text: "More" });
  const header = element("div", { class: "row head" },
    element("span", { text: "State" }), element("span", { class: "wide", text: "Agent" }), element("span", { text: "Task" }),
    element("span", { class: "number wide", text: "Turns" }), element("span", { class: "number", text: "Cost" }), element("span", { class: "wide", text: "Started" }));
  header.style.position = "sticky";
  const list = virtualList("list", "Runs", (run) => element("a", { class: "row", role: "listitem", href: "#/runs/" + run.run_id },
    element("span", { class: "state " + stateOf(run), text: stateOf(run) }),
    element("span", { class: "wide", text: nameOf(run) }), element("span", { text: run.task, title: run.task }),
    element("span", { class: "number wide", text: String(run.turns) }), element("span", { class: "number", text: money(run.cost) }),
    element("span", { class: "wide dim", text: when(run.started_at) })), header);
  main.replaceChildren(element("div", { class: "bar" }, search, state, total, more), list.box);
  let items = [], next = null, timer = 0;
  const query = (cursor, limit) => "/runs?limit=" + limit + (cursor ? "&cursor=" + cursor : "")
    + (state.value ? "&state=" + state.value : "") + (search.value ? "&q=" + encodeURIComponent(search.value) : "");
  function show() {
    list.set(items);
    more.hidden = !next;
    total.textContent = items.length + (next ? " of more runs" : " runs");
  }
  async function refresh() {
    const page = await attempt(() => api(query(null, 100)));
    if (!page) return;
    const known = new Set(page.items.map((run) => run.run_id));
    const older = items.length > page.items.length && page.next ? items.filter((run) => !known.has(run.run_id)) : [];
    const last = page.items.at(-1);
    items = page.items.concat(last ? older.filter((run) => run.started_at <= last.started_at) : []);
    if (!older.length) next = page.next;
    show();
  }
  more.addEventListener("click", () => attempt(async () => {
    const page = await api(query(next, 500));
    items = items.concat(page.items); next = page.next; show();
  }));
  const restart = () => { clearTimeout(timer); timer = setTimeout(() => { items = []; refresh(); }, 250); };
  search.addEventListener("input", restart);
  state.addEventListener("change", restart);
  await refresh();
  const polling = setInterval(() => { if (!document.hidden) refresh(); }, POLL);
  leave = () => { clearInterval(polling); clearTimeout(timer); };
}

function entryView(entry, run) {
  const turn = entry.turn ? " (turn " + entry.turn + ")" : "";
  const titles = { words: "said by " + entry.name, thinking: "thought" + turn, reply: "reply" + turn, call: "call " + entry.name + turn,
    result: "result of " + entry.name + turn, error: "error" + turn };
  const heading = element("h3", { text: titles[entry.kind] || entry.kind });
  const view = element("div", { class: "entry " + entry.kind + (entry.failed ? " failed" : "") });
  if (entry.kind === "call" || entry.kind === "result" || entry.kind === "thinking") {
    const line = entry.text.split("\n", 1)[0].slice(0, 120);
    view.append(element("details", { open: entry.failed }, element("summary", {}, heading.cloneNode(true), element("span", { class: "dim", text: line })),
      element("pre", { text: entry.text })));
    view.querySelector("h3").style.display = "inline";
  } else {
    view.append(heading, element("p", { text: entry.text || "(nothing)" }));
  }
  if (entry.kind === "reply" && entry.turn) {
    view.append(element("button", { type: "button", text: "Fork from here", onclick: () => fork(run, entry.turn) }));
  }
  return view;
}

async function fork(run, turn) {
  const task = window.prompt("The next message of the new run, which continues after turn " + turn + ":");
  if (!task) return;
  const made = await attempt(() => api("/runs/" + run.run_id + "/fork", { task, turn }));
  if (made) location.hash = "#/runs/" + made.run_id;
}

async function runPage(id) {
  const facts = element("p", { class: "facts" });
  const actions = element("div", { class: "bar" });
  const transcript = element("section", { "aria-label": "Conversation" });
  const title = element("h2");
  let selected = id, runs = [], stream = null, pending = 0;
  const tree = virtualList("tree", "Runs of this tree", (run) => {
    const row = element("a", { class: "row", role: "listitem", href: "#/runs/" + run.run_id, "aria-current": run.run_id === selected ? "true" : null },
      element("span", { text: nameOf(run) + ": " + run.task, title: run.task }),
      element("span", { class: "state " + stateOf(run), text: stateOf(run), title: run.end_reason || "" }));
    row.style.paddingLeft = 12 + 16 * run.depth + "px";
    return row;
  });
  main.replaceChildren(title, facts, actions, element("div", { class: "columns" }, tree.box, transcript));
  tree.box.style.height = "16rem";

  function placed(items) {
    const children = new Map();
    for (const run of items) children.set(run.parent_id, (children.get(run.parent_id) || []).concat(run));
    const ordered = [];
    const visit = (run, depth) => { ordered.push(Object.assign(run, { depth })); for (const child of children.get(run.run_id) || []) visit(child, depth + 1); };
    if (items.length) visit(items[0], 0);
    return ordered;
  }
  async function refresh() {
    const run = await api("/runs/" + selected);
    runs = placed((await api("/runs/" + run.root_id + "/tree")).items);
    tree.set(runs);
    tree.box.style.height = Math.min(runs.length * ROW + 2, 640) + "px";
    const entries = (await api("/runs/" + selected + "/transcript")).items;
    title.textContent = nameOf(run);
    facts.replaceChildren(...[
      element("span", { class: "state " + stateOf(run), text: stateOf(run) + (run.end_reason ? " (" + run.end_reason + ")" : "") }),
      element("span", { text: run.turns + " turns" }), element("span", { text: count(run.usage.input) + " in, " + count(run.usage.output) + " out" }),
      element("span", { text: money(run.cost) }), element("span", { text: took(run) }), element("span", { class: "dim", text: run.provider + ":" + run.model }),
      element("span", { class: "dim", text: run.run_id }), run.error ? element("span", { class: "failed", text: run.error }) : null,
    ].filter(Boolean));
    actions.replaceChildren(...actionsOf(run));
    transcript.replaceChildren(...entries.map((entry) => entryView(entry, run)));
    return run;
  }
  function actionsOf(run) {
    const made = [];
    const act = (path, body) => attempt(async () => { await api("/runs/" + run.run_id + path, body); await refresh(); });
    if (!run.outcome) {
      made.push(element("button", { type: "button", class: "danger", text: "Cancel", onclick: () => window.confirm("Cancel this run and all below it?") && act("/cancel", {}) }));
      const text = element("input", { placeholder: "Message to this run", "aria-label": "Message to this run", size: "40" });
      const send = () => { if (text.value.trim()) { act("/messages", { text: text.value }); text.value = ""; } };
      text.addEventListener("keydown", (event) => { if (event.key === "Enter") send(); });
      made.push(text, element("button", { type: "button", text: "Send", onclick: send }));
    }
    if (run.state === "interrupted") made.push(element("button", { type: "button", text: "Resume", onclick: () => act("/resume", {}) }));
    return made;
  }
  const soon = () => { if (!pending) pending = setTimeout(async () => { pending = 0; await attempt(refresh); }, 150); };
  const run = await attempt(refresh);
  if (!run) { main.replaceChildren(element("p", { text: "There is no such run." }), element("a", { href: "#/", text: "All runs" })); return; }
  if (!runs.length || runs.some((each) => !each.outcome)) {
    stream = new EventSource("/api/v1/runs/" + run.root_id + "/events?tree=1");
    stream.onmessage = (message) => { if (message.lastEventId) soon(); };
    stream.onerror = () => { if (runs.every((each) => each.outcome || each.state === "interrupted")) stream.close(); };
  }
  leave = () => { clearTimeout(pending); if (stream) stream.close(); };
}

async function approvalsPage() {
  async function refresh() {
    const { items } = await api("/approvals");
    main.replaceChildren(element("h2", { text: "Approvals" }), ...(items.length ? items.map(question) : [element("p", { class: "dim", text: "No call waits for a person." })]));
  }
  function question(each) {
    const note = element("input", { placeholder: "Note", "aria-label": "Note" });
    const decide = (allow) => attempt(async () => { await api("/approvals/" + encodeURIComponent(each.id), { allow, note: note.value }); await refresh(); });
    let shown = each.arguments;
    try { shown = Object.entries(JSON.parse(each.arguments)).map(([name, value]) => name + ": " + (typeof value === "string" ? value : JSON.stringify(value))).join("\n"); } catch { /* shown as it is */ }
    return element("div", { class: "entry" }, element("h3", { text: each.path + " wants to call " + each.tool }),
      element("p", { class: "dim", text: each.reason }), element("pre", { text: shown }),
      element("div", { class: "bar" }, note, element("button", { type: "button", text: "Allow", onclick: () => decide(true) }),
        element("button", { type: "button", class: "danger", text: "Deny", onclick: () => decide(false) }), element("a", { href: "#/runs/" + each.run_id, text: "Show the run" })));
  }
  await attempt(refresh);
  const polling = setInterval(() => { if (!document.hidden && !main.contains(document.activeElement)) attempt(refresh); }, POLL);
  leave = () => clearInterval(polling);
}

async function agentsPage() {
  const page = await attempt(() => api("/agents"));
  if (!page) return;
  const rows = page.items.map((agent) => element("tr", {}, element("td", { text: agent.name }), element("td", { text: agent.model || "" }),
    element("td", { text: agent.tools.join(", ") }), element("td", { text: agent.description })));
  const head = element("tr", {}, ...["Agent", "Model", "Tools", "Description"].map((text) => element("th", { text, scope: "col" })));
  main.replaceChildren(element("h2", { text: "Agents" }), rows.length ? element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))
    : element("p", { class: "dim", text: "The settings have no agents." }));
}

async function route() {
  leave();
  leave = () => {};
  const [, page, id] = location.hash.split("/");
  const name = page === "approvals" || page === "agents" ? page : "runs";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  if (page === "runs" && id) await runPage(id);
  else if (name === "approvals") await approvalsPage();
  else if (name === "agents") await agentsPage();
  else await runsPage();
  main.focus({ preventScroll: true });
}

async function countApprovals() {
  const badge = document.getElementById("approval-count");
  const connection = document.getElementById("connection");
  try {
    const { items } = await api("/approvals");
    badge.textContent = String(items.length);
    badge.hidden = !items.length;
    connection.textContent = "";
  } catch { connection.textContent = "not connected"; }
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* private window */ }
});
try { const theme = localStorage.getItem("theme"); if (theme) document.documentElement.dataset.theme = theme; } catch { /* private window */ }
addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) {
    const search = main.querySelector("input[type=search]");
    if (search) { event.preventDefault(); search.focus(); }
  }
  if (event.key === "Escape" && location.hash.startsWith("#/runs/")) location.hash = "#/";
});
addEventListener("hashchange", route);
setInterval(() => { if (!document.hidden) countApprovals(); }, 5000);
countApprovals();
route();
