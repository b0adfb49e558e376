// One tree: its runs, and of the selected one the conversation, the timeline, costs, and actions.

import { api, follow, isExported } from "./api.js";
import { barChart, table } from "./charts.js";
import { ask, attempt, button, element, tell, visible } from "./dom.js";
import { count, link, money, nameOf, stateOf, stateText, took } from "./format.js";
import { contextView } from "./records.js";
import { timelineView } from "./timeline.js";
import { transcript } from "./transcript.js";
import { virtualList } from "./virtual.js";

const HEIGHT = 46;
const TABS = { conversation: "Conversation", timeline: "Timeline", costs: "Costs", context: "Shared context" };
const TIMELINE_EVERY = 1500;

// Parents before their children, each with its depth; without recursion, for a tree may be very deep.
export function ordered(rows) {
  const children = new Map();
  const known = new Set(rows.map((row) => row.run_id));
  for (const row of rows) {
    const parent = known.has(row.parent_id) ? row.parent_id : null;
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(row);
  }
  const made = [];
  const left = (children.get(null) || []).map((row) => [row, 0]).reverse();
  while (left.length) {
    const [row, depth] = left.pop();
    made.push({ ...row, depth });
    for (const child of (children.get(row.run_id) || []).slice().reverse()) left.push([child, depth + 1]);
  }
  return made;
}

export async function runPage(main, id, tab) {
  let selected = id, chosen = TABS[tab] ? tab : "conversation";
  let rows = new Map(), runs = [], details = null, stop = () => {}, pending = 0, clock = 0, spansAt = 0, spansTimer = 0, isLeft = false, lastState = "";
  const title = element("h2"), task = element("p", { class: "asked" }), facts = element("div", { class: "facts" }), actions = element("div", { class: "bar actions" });
  const announce = element("p", { class: "unseen", role: "status" });
  const tabs = element("div", { class: "tabs", role: "tablist" });
  const panel = element("div", { class: "panel", role: "tabpanel", id: "panel" });
  const tree = virtualList({ label: "Runs of this tree", className: "tree", height: HEIGHT, draw: treeRow });
  const counts = element("p", { class: "dim counts", role: "status" });
  const connection = document.getElementById("connection");
  const talk = transcript({ onFork: isExported ? null : fork });
  const times = timelineView({});
  main.replaceChildren(element("div", { class: "columns" },
    element("aside", {}, element("h3", { text: "Tree" }), counts, tree.box),
    element("article", {}, title, task, facts, actions, announce, tabs, panel)));

  function treeRow(run) {
    const reason = run.outcome && run.outcome !== "completed" ? run.error || run.end_reason || "" : run.doing || "";
    const row = element("a", { class: "row", href: link(run, chosen === "conversation" ? "" : chosen), "aria-current": run.run_id === selected ? "true" : null, "aria-label": nameOf(run) + ", " + stateText(run) + (reason ? ", " + reason : "") + ": " + run.task.slice(0, 200) },
      element("span", { class: "first" }, element("b", { text: visible(nameOf(run)) }), element("span", { class: "state " + stateOf(run), text: stateText(run) })),
      element("span", { class: "second dim" }, element("span", { text: visible((reason || run.task).slice(0, 200)), title: visible((reason || run.task).slice(0, 1000)), class: run.outcome && run.outcome !== "completed" && run.outcome !== "cancelled" ? "failed" : "" }), element("span", { class: "cost", text: money(run.cost) })));
    row.style.paddingLeft = 10 + 14 * Math.min(run.depth, 12) + "px";
    return row;
  }
  function showTree() {
    runs = ordered([...rows.values()]);
    tree.box.style.height = Math.min(runs.length * HEIGHT + 4, innerWidth < 900 ? 190 : Math.max(300, innerHeight - 210)) + "px";
    tree.set(runs.map((run) => ({ ...run, isSelected: run.run_id === selected })));
    const working = runs.filter((run) => !run.outcome).length;
    const cost = runs.reduce((sum, run) => sum === null || run.cost === null ? null : sum + run.cost, 0);
    counts.textContent = runs.length + (runs.length === 1 ? " run" : " runs") + (working ? ", " + working + " unfinished" : "") + ", " + money(cost);
  }
  function showRun() {
    const run = rows.get(selected);
    if (!run) return;
    title.replaceChildren(element("span", { text: visible(nameOf(run)) }), " ", element("span", { class: "state badge-state " + stateOf(run), text: stateText(run) }));
    task.textContent = visible(run.task.slice(0, 400));
    const parts = [[run.turns + (run.turns === 1 ? " turn" : " turns")], [count(run.usage.input) + " in, " + count(run.usage.output) + " out" + (run.usage.cached ? ", " + count(run.usage.cached) + " cached" : "")], [money(run.cost)], [took(run)]].filter(([text]) => text);
    if (run.estimated) parts.push(["estimated: " + count(run.estimated.input) + " in, " + count(run.estimated.output) + " out" + (run.estimated.cost ? ", " + money(run.estimated.cost) : "")]);
    if (details && details.run_id === selected && details.model) parts.push([details.provider + ":" + details.model]);
    facts.replaceChildren(...parts.map(([text]) => element("span", { text })), element("code", { class: "dim", text: run.run_id, title: "The id of the run" }),
      run.error ? element("span", { class: "failed", text: visible(run.error) }) : run.end_reason && run.outcome !== "completed" ? element("span", { class: "failed", text: run.end_reason }) : "",
      run.doing ? element("span", { class: "dim", text: visible(run.doing) }) : run.state === "interrupted" ? element("span", { class: "dim", text: "no process works on it" }) : "");
    const state = stateText(run);
    if (lastState && lastState !== selected + state) announce.textContent = nameOf(run) + " is " + state;
    if (lastState !== selected + state) showActions(run);
    lastState = selected + state;
    document.title = stateText(run) + ": " + run.task.slice(0, 60) + " · Retinue";
  }
  function showActions(run) {
    const act = (path, body) => attempt(() => api("/runs/" + run.run_id + path, body));
    const made = [];
    if (isExported) return;
    if (run.waiting_for === "approval") made.push(element("a", { class: "button primary", href: "#/approvals", text: "Answer its question" }));
    if (!run.outcome) {
      const text = element("input", { placeholder: "Message to this run", "aria-label": "Message to this run", class: "say" });
      const send = async () => { if (text.value.trim() && await act("/messages", { text: text.value })) { text.value = ""; tell(""); } };
      text.addEventListener("keydown", (event) => { if (event.key === "Enter") send(); });
      made.push(text, button("Send", send));
      if (run.state === "interrupted") made.push(button("Resume", () => act("/resume", {}).then((done) => done && reopen()), { class: "primary" }));
      made.push(button("Cancel", async () => {
        if (await ask({ title: "Cancel this run?", text: "All runs below it are cancelled, too.", yes: "Cancel the run", danger: true })) await act("/cancel", {});
      }, { class: "danger" }));
    } else made.push(button("Continue", () => attempt(() => fork(null)), { title: "A new run that continues from the end of this one" }));
    made.push(button("Compare", compare));
    actions.replaceChildren(...made);
  }
  async function fork(turn) {
    const text = await ask({ title: turn ? "Fork after turn " + turn : "Continue this run", text: "A new run begins with this conversation" + (turn ? " up to turn " + turn : "") + ". Its next message:", label: "Message", long: true, yes: "Start" });
    if (!text || !text.trim()) return;
    const made = await api("/runs/" + selected + "/fork", { task: text, ...(turn ? { turn } : {}) });
    location.hash = link(made);
  }
  async function compare() {
    const recent = ((await attempt(() => api("/runs?limit=50")))?.items || []).filter((run) => run.run_id !== selected);
    const options = element("select", { "aria-label": "Recent runs" }, element("option", { text: "a recent run", value: "" }), ...recent.map((run) => element("option", { value: run.run_id, text: stateOf(run) + ", " + nameOf(run) + ": " + run.task.slice(0, 80) })));
    const other = await ask({ title: "Compare with another run", label: "Id of a run, or choose a recent one", yes: "Compare", more: [options] });
    const found = (other || "").trim() || options.value;
    if (other !== null && found) location.hash = "#/compare/" + encodeURIComponent(selected) + "/" + encodeURIComponent(found);
  }

  function showTabs() {
    tabs.replaceChildren(...Object.entries(TABS).filter(([name]) => !isExported || name !== "context").map(([name, text]) => element("a", { role: "tab", href: "#/runs/" + selected + (name === "conversation" ? "" : "/" + name), "aria-selected": String(name === chosen), "aria-controls": "panel", text })));
    panel.setAttribute("aria-label", TABS[chosen]);
    if (chosen === "conversation") panel.replaceChildren(talk.view);
    if (chosen === "timeline") { panel.replaceChildren(times.view); spansAt = 0; showTimes(); }
    if (chosen === "costs") showCosts();
    if (chosen === "context") showContext();
  }
  async function showTimes() {
    if (chosen !== "timeline" || spansTimer || isLeft) return;
    spansTimer = setTimeout(async () => {
      const root = runs[0]?.run_id || selected;
      const found = await attempt(() => api("/runs/" + root + "/timeline"));
      spansTimer = 0;
      spansAt = Date.now();
      if (!runs.length) spansAt = 0;  // the rows come later: they ask again, at once
      if (found && runs.length && !isLeft) times.set(runs, found.items, selected);
    }, Math.max(0, spansAt + TIMELINE_EVERY - Date.now()));
  }
  function showCosts() {
    const known = runs.some((run) => run.cost);
    const value = (run) => known ? run.cost || 0 : run.usage.input + run.usage.output;
    const most = runs.slice().sort((a, b) => value(b) - value(a)).slice(0, 40);
    panel.replaceChildren(
      barChart({ title: known ? "Cost by run" : "Tokens by run", text: known ? money : (each) => count(Math.round(each)), bars: most.map((run) => ({ label: nameOf(run), parts: known ? [{ name: "", value: value(run) }] : [{ name: "input", value: run.usage.input }, { name: "output", value: run.usage.output }] })) }),
      known ? barChart({ title: "Tokens by run", text: (each) => count(Math.round(each)), bars: most.map((run) => ({ label: nameOf(run), parts: [{ name: "input", value: run.usage.input }, { name: "output", value: run.usage.output }] })) }) : "",
      table([{ title: "Run", cell: (run) => element("a", { href: link(run), text: visible(nameOf(run)) }) }, { title: "Turns", right: true, cell: (run) => String(run.turns) }, { title: "Input", right: true, cell: (run) => count(run.usage.input) }, { title: "Cached", right: true, cell: (run) => count(run.usage.cached) }, { title: "Output", right: true, cell: (run) => count(run.usage.output) }, { title: "Thinking", right: true, cell: (run) => count(run.usage.reasoning) }, { title: "Cost", right: true, cell: (run) => money(run.cost) }, { title: "Took", right: true, cell: took }], runs.slice(0, 500)));
  }
  async function showContext() {
    const session = rows.get(selected)?.session_id;
    const context = session ? await attempt(() => api("/sessions/" + encodeURIComponent(session))) : null;
    if (chosen === "context") panel.replaceChildren(context ? contextView(context) : element("p", { class: "dim", text: "This session has no shared context." }));
  }

  function show() {
    pending = 0;
    if (isLeft) return;
    showTree();
    showRun();
    if (chosen === "timeline") showTimes();
    if (chosen === "costs" && (!clock || Date.now() - clock > 1000)) { clock = Date.now(); showCosts(); }
  }
  const soon = () => { if (!pending) pending = requestAnimationFrame(show); };
  const on = {
    rows(changed) {
      const isFirst = !rows.size;
      for (const row of changed) rows.set(row.run_id, row);
      if (isFirst && chosen === "context") showContext();
      soon();
    },
    entries: talk.entries,
    reply: talk.reply,
    connection(isOpen) { connection.textContent = isOpen ? "" : "not connected"; },
    problem(text) { if (!rows.size) main.replaceChildren(element("h2", { text: "This run cannot be shown" }), element("p", { text }), element("a", { href: "#/", text: "All runs" })); else tell(text); },
  };
  async function reopen() {
    stop();
    lastState = "";
    stop = follow(selected, on);
    details = isExported ? null : await api("/runs/" + selected).catch(() => null);
    soon();
  }
  const ticking = setInterval(() => { const run = rows.get(selected); if (run && !run.outcome && !document.hidden) showRun(); }, 1000);
  showTabs();
  await reopen();
  return {
    // Another run of the same tree, or another tab: the page stays as it is.
    change(next, nextTab) {
      if (!rows.has(next)) return false;
      const isOther = next !== selected;
      selected = next;
      chosen = TABS[nextTab] ? nextTab : "conversation";
      if (isOther) { talk.entries([], true); talk.reply("", ""); reopen(); }
      showTabs();
      soon();
      tree.reveal(runs.findIndex((run) => run.run_id === selected));
      return true;
    },
    leave() { isLeft = true; stop(); clearInterval(ticking); clearTimeout(spansTimer); cancelAnimationFrame(pending); connection.textContent = ""; document.title = "Retinue"; },
  };
}
