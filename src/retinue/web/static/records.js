// Usage, search, sessions with their shared context, cron jobs, agents, models, and the settings as read.

import { api } from "./api.js";
import { barChart, table } from "./charts.js";
import { differences, diffView } from "./diff.js";
import { ask, attempt, button, element, visible } from "./dom.js";
import { count, link, money, nameOf, stateOf, when } from "./format.js";

const still = { leave() {} };
const text = (value) => value === null || value === undefined ? "" : visible(String(value));

export async function usagePage(main) {
  const days = element("select", { "aria-label": "Days" }, ...[[7, "7 days"], [30, "30 days"], [90, "90 days"], [366, "a year"]].map(([value, name]) => element("option", { value, text: name, selected: value === 30 })));
  const box = element("div", { class: "usage" });
  main.replaceChildren(element("div", { class: "bar" }, element("h2", { text: "Usage" }), element("span", { class: "grow" }), days), box);
  const sum = (items, of) => items.reduce((whole, item) => whole === null || of(item) === null ? null : whole + of(item), 0);
  const groups = (items, of) => { const made = new Map(); for (const item of items) { const key = of(item); if (!made.has(key)) made.set(key, []); made.get(key).push(item); } return [...made]; };
  const tokens = (item) => item.usage.input + item.usage.output;
  async function show() {
    const page = await attempt(() => api("/usage?days=" + days.value));
    if (!page) return;
    const items = page.items;
    const number = Math.min(Number(days.value), 366);
    const dates = Array.from({ length: number }, (_, back) => new Date(Date.now() - (number - 1 - back) * 864e5).toISOString().slice(0, 10));
    const byDay = new Map(groups(items, (item) => item.day));
    const chart = (title, of, show) => barChart({ title, text: show, showsEnd: true, bars: dates.map((day) => ({ label: day, short: day.slice(5), parts: groups(byDay.get(day) || [], (item) => item.model).map(([name, own]) => ({ name, value: own.reduce((whole, item) => whole + (of(item) || 0), 0) })) })) });
    const sums = (title, of) => table([{ title, cell: ([name]) => text(name) || "(none)" }, { title: "Runs", right: true, cell: ([, own]) => count(sum(own, (item) => item.runs)) }, { title: "Failed", right: true, cell: ([, own]) => count(sum(own, (item) => item.failed)) }, { title: "Input", right: true, cell: ([, own]) => count(sum(own, (item) => item.usage.input)) }, { title: "Cached", right: true, cell: ([, own]) => count(sum(own, (item) => item.usage.cached)) }, { title: "Output", right: true, cell: ([, own]) => count(sum(own, (item) => item.usage.output)) }, { title: "Cost", right: true, cell: ([, own]) => money(sum(own, (item) => item.cost)) }], groups(items, of).sort((a, b) => sum(b[1], tokens) - sum(a[1], tokens)), "no runs in this time");
    box.replaceChildren(
      element("p", { class: "facts" }, element("span", { text: count(sum(items, (item) => item.runs)) + " runs" }), element("span", { text: count(sum(items, tokens)) + " tokens" }), element("span", { text: money(sum(items, (item) => item.cost)) }), page.complete ? "" : element("span", { class: "failed", text: "the oldest runs are left out" })),
      chart("Tokens by day (UTC) and model", tokens, (each) => count(Math.round(each))), items.some((item) => item.cost) ? chart("Cost by day (UTC) and model", (item) => item.cost, money) : "",
      element("h3", { text: "By model" }), sums("Model", (item) => item.model), element("h3", { text: "By agent" }), sums("Agent", (item) => item.agent), element("h3", { text: "By day" }), sums("Day", (item) => item.day));
  }
  days.addEventListener("change", show);
  await show();
  return still;
}

export async function searchPage(main, query) {
  const field = element("input", { type: "search", placeholder: "Words in tasks, replies, calls and results", "aria-label": "Search all conversations", value: query });
  const box = element("div", { class: "hits" }), note = element("p", { class: "dim", role: "status" });
  const more = button("Go on", () => load(false));
  let next = null, read = 0;
  main.replaceChildren(element("h2", { text: "Search" }), element("div", { class: "bar" }, field), note, box, more);
  more.hidden = true;
  function excerpt(words) {
    const made = element("p");
    const wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let end = 0;
    const lower = words.toLowerCase();
    while (end < words.length) {
      const found = wanted.map((word) => [lower.indexOf(word, end), word.length]).filter(([place]) => place >= 0).sort((a, b) => a[0] - b[0])[0];
      if (!found) break;
      made.append(visible(words.slice(end, found[0])), element("mark", { text: words.slice(found[0], found[0] + found[1]) }));
      end = found[0] + found[1];
    }
    made.append(visible(words.slice(end)));
    return made;
  }
  async function load(isNew) {
    if (!field.value.trim()) return;
    if (isNew) { box.replaceChildren(); next = null; read = 0; history.replaceState(null, "", "#/search/" + encodeURIComponent(field.value)); }
    note.textContent = "searching…";
    const page = await attempt(() => api("/search?q=" + encodeURIComponent(field.value) + (next ? "&cursor=" + encodeURIComponent(next) : "")));
    if (!page) { note.textContent = ""; return; }
    for (const hit of page.items) box.append(element("a", { class: "entry hit", href: link(hit.run) }, element("span", { class: "dim" }, element("span", { class: "state " + stateOf(hit.run), text: stateOf(hit.run) }), " " + visible(nameOf(hit.run)) + ", " + hit.kind + (hit.turn ? ", turn " + hit.turn : "") + ", " + when(hit.run.started_at)), excerpt(hit.excerpt)));
    next = page.next;
    read += page.runs_read;
    more.hidden = !next;
    note.textContent = box.children.length + (box.children.length === 1 ? " place" : " places") + " in " + read + " runs" + (next ? " so far" : "");
  }
  field.addEventListener("keydown", (event) => { if (event.key === "Enter") load(true); });
  if (query) await load(true);
  field.focus();
  return still;
}

// The entries of a session, each with its authors and the differences of its versions.
export function contextView(context) {
  const made = context.entries.map((entry) => {
    const last = entry.versions.at(-1);
    const earlier = entry.versions.slice(0, -1).reverse();
    return element("section", { class: "entry" }, element("h3", {}, element("code", { text: visible(entry.key) }), element("span", { class: "dim", text: " version " + last.version + " by " + visible(last.written_by) + ", " + when(last.written_at) + (last.expires_at ? ", until " + when(last.expires_at) : "") })),
      element("pre", { text: visible(last.value) }),
      earlier.length ? element("details", {}, element("summary", { text: "History: " + earlier.length + (earlier.length === 1 ? " earlier version" : " earlier versions") }), ...earlier.map((version, place) => element("div", {}, element("p", { class: "dim", text: "version " + version.version + " by " + visible(version.written_by) + ", " + when(version.written_at) + "; what came after it:" }), diffView(differences(version.value, entry.versions[entry.versions.length - 1 - place].value))))) : null);
  });
  return element("section", { "aria-label": "Shared context" }, ...(made.length ? made : [element("p", { class: "dim", text: "The shared context is empty." })]), context.snapshots.length ? element("p", { class: "dim", text: "Snapshots: " + context.snapshots.map(visible).join(", ") }) : null);
}

export async function sessionsPage(main, name) {
  if (name) {
    const context = await attempt(() => api("/sessions/" + encodeURIComponent(name)));
    main.replaceChildren(element("h2", {}, element("a", { href: "#/sessions", text: "Sessions" }), " / " + visible(name) + (context?.archived ? " (archived)" : "")), context ? contextView(context) : element("p", { text: "There is no such session." }));
    return still;
  }
  const page = await attempt(() => api("/sessions"));
  main.replaceChildren(element("h2", { text: "Sessions" }), table([{ title: "Session", cell: (row) => element("a", { href: "#/sessions/" + encodeURIComponent(row.session_id), text: visible(row.session_id) }) }, { title: "State", cell: (row) => row.archived ? "archived" : "open" }, { title: "Keys", right: true, cell: (row) => String(row.key_count) }, { title: "Tokens", right: true, cell: (row) => count(row.total_size_tokens) }], page?.items || [], "No session has a name yet: retinue run --session NAME."));
  return still;
}

export async function cronPage(main) {
  const log = element("section", { "aria-label": "Executions" });
  let shown = "", logged = null, timer = 0, isLeft = false;
  // While a job is at work the page looks again each second; what has not changed is not drawn anew.
  function lookAgain(isAtWork) {
    clearTimeout(timer);
    if (isAtWork && !isLeft) timer = setTimeout(async () => { await show(); if (logged) await executions(logged); }, 1000);
  }
  async function executions(job) {
    logged = job;
    const page = await attempt(() => api("/cron/" + encodeURIComponent(job.name) + "/executions"));
    if (page) log.replaceChildren(element("h3", { text: "Executions of " + visible(job.name) }), table([{ title: "Due", cell: (row) => when(row.due) || "by hand" }, { title: "Status", cell: (row) => element("span", { class: "state " + ({ ok: "completed" }[row.status] || row.status), text: row.status }) }, { title: "Seconds", right: true, cell: (row) => row.seconds === null ? "" : row.seconds.toFixed(1) }, { title: "Run", cell: (row) => row.run_id ? element("a", { href: "#/runs/" + row.run_id, text: row.run_id.slice(-8) }) : "" }, { title: "What happened", cell: (row) => text(row.error || row.output) }], page.items, "no executions yet"));
  }
  async function show() {
    const page = await attempt(() => api("/cron"));
    if (!page || isLeft) return;
    lookAgain(page.items.some((job) => job.last_status === "running"));
    const found = JSON.stringify(page.items);
    if (found === shown) return;
    shown = found;
    const act = (job, path) => attempt(async () => { await api("/cron/" + encodeURIComponent(job.name) + path, {}); await show(); });
    main.replaceChildren(element("h2", { text: "Cron jobs" }), table([{ title: "Job", cell: (job) => text(job.name) }, { title: "Schedule", cell: (job) => text(job.schedule + (job.tz ? " " + job.tz : "")) }, { title: "Next", cell: (job) => job.paused ? "paused" : when(job.next_run) || "never" }, { title: "Last", cell: (job) => when(job.last_run) }, { title: "Status", cell: (job) => text(job.last_status) }, { title: "What", cell: (job) => text(job.prompt !== null ? job.agent + ": " + job.prompt : "$ " + job.command).slice(0, 300) },
      { title: "", cell: (job) => element("div", { class: "bar" }, button("Log", () => executions(job), { class: "small" }), button("Run now", async () => { await act(job, "/run-now"); await executions(job); }, { class: "small", title: "Execute it once, now; its schedule stays" }), button(job.paused ? "Resume" : "Pause", () => act(job, job.paused ? "/resume" : "/pause"), { class: "small" }), button("Remove", async () => { if (await ask({ title: "Remove " + job.name + "?", text: "Its log is removed, too.", yes: "Remove", danger: true })) await act(job, "/remove"); }, { class: "small danger" })) }],
    page.items, "No jobs yet: retinue cron add NAME --every 1h --agent A --prompt P."), log);
  }
  await show();
  return { leave() { isLeft = true; clearTimeout(timer); } };
}

export async function settingsPage(main) {
  const [settings, agents] = await Promise.all([attempt(() => api("/settings")), attempt(() => api("/agents"))]);
  const models = element("div", {}, button("Ask the providers", async () => {
    models.replaceChildren(element("p", { class: "dim", text: "asking…" }));
    const page = await attempt(() => api("/models"));
    models.replaceChildren(...(page?.items || []).map((each) => element("details", { open: page.items.length < 3 }, element("summary", { text: each.provider + ": " + (each.error || each.models.length + " models") }), table([{ title: "Model", cell: (model) => text(model.name) }, { title: "Context", right: true, cell: (model) => model.context_window === null ? "?" : count(model.context_window) }, { title: "Input $/M", right: true, cell: (model) => text(model.input_price ?? "?") }, { title: "Output $/M", right: true, cell: (model) => text(model.output_price ?? "?") }], each.models, "none"))));
  }));
  const shown = (value) => typeof value === "string" ? value : JSON.stringify(value, null, 1);
  main.replaceChildren(element("h2", { text: "Settings" }), element("p", { class: "dim", text: settings?.files.length ? "As read at the start from " + settings.files.join(", ") + ". Keys are shown by the names of their variables." : "No settings file was found." }), ...(settings?.warnings || []).map((each) => element("p", { class: "failed", text: each })),
    element("h3", { text: "Agents" }), table([{ title: "Agent", cell: (agent) => text(agent.name) }, { title: "Model", cell: (agent) => text(agent.model) }, { title: "Tools", cell: (agent) => text(agent.tools.join(", ")) }, { title: "Description", cell: (agent) => text(agent.description) }], agents?.items || [], "The settings have no agents."),
    element("h3", { text: "Models" }), models, element("h3", { text: "Sections" }),
    ...(settings?.sections || []).map((section) => element("details", { class: "entry" }, element("summary", {}, element("code", { text: visible(section.name) })), element("dl", {}, ...Object.entries(section.values).flatMap(([name, value]) => [element("dt", { text: visible(name) }), element("dd", {}, element("pre", { text: visible(shown(value)) }))])))));
  return still;
}
