// A conversation: messages as Markdown, calls folded with their results, diffs of edits, thinking, notes.

import { attempt, button, element, visible } from "./dom.js";
import { differences, diffView } from "./diff.js";
import { markdown } from "./markdown.js";
import { seconds } from "./format.js";

const MAX_SHOWN = 100000;
const PIECE = 60;
const TITLES = { task: "Task", words: "Message", reply: "Reply", note: "Note", error: "Error", end: "End" };

const cut = (text) => text.length > MAX_SHOWN ? text.slice(0, MAX_SHOWN) + "\n… " + (text.length - MAX_SHOWN) + " more characters" : text;

function given(text) { try { const value = JSON.parse(text); return value && typeof value === "object" && !Array.isArray(value) ? value : null; } catch { return null; } }

const linesOf = (text) => (text.endsWith("\n") ? text.slice(0, -1) : text).split("\n");

export function argumentsView(name, text) {
  const values = given(text);
  if (!values) return [element("pre", { text: visible(cut(text)) })];
  const made = [];
  const rest = { ...values };
  const take = (key) => { const value = rest[key]; delete rest[key]; return value; };
  if (typeof values.old_string === "string" && typeof values.new_string === "string") {
    made.push(element("p", { class: "path", text: visible(String(take("path") ?? "")) }), diffView(differences(take("old_string"), take("new_string"))));
  } else if (typeof values.content === "string" && typeof values.path === "string") {
    made.push(element("p", { class: "path", text: visible(take("path")) }), diffView(linesOf(cut(take("content"))).map((line) => ["+", line])));
  } else if (typeof values.command === "string") made.push(element("pre", { class: "diff" }, ...take("command").split("\n").map((line) => element("span", { class: "line command", text: "$ " + visible(line) + "\n" }))));
  for (const [key, value] of Object.entries(rest)) {
    const shown = typeof value === "string" ? value : JSON.stringify(value, null, 1);
    made.push(element("div", { class: "argument" }, element("span", { class: "dim", text: visible(key) + ": " }), element(shown.includes("\n") ? "pre" : "code", { text: visible(cut(shown)) })));
  }
  return made.length ? made : [element("p", { class: "dim", text: "no arguments" })];
}

function summaryOf(text) {
  const values = given(text);
  const shown = values ? Object.entries(values).map(([key, value]) => key + ": " + (typeof value === "string" ? value : JSON.stringify(value))).join(", ") : text;
  return visible(shown.replace(/\s+/g, " ").slice(0, 160));
}

export function transcript({ onFork }) {
  const box = element("div", { class: "entries" });
  const live = element("div", { class: "entry reply live", hidden: true }, element("h3", { text: "Reply in progress" }), element("p", { class: "retry", hidden: true }), element("div", { class: "text" }));
  const view = element("section", { "aria-label": "Conversation", class: "conversation" }, box, live);
  let open = [];
  let turn = 0;
  let waiting = [], frame = 0;

  function heading(entry, title) {
    return element("h3", {}, element("span", { text: title }), entry.turn ? element("span", { class: "dim", text: " turn " + entry.turn }) : null,
      element("time", { class: "dim", datetime: entry.at, text: new Date(entry.at).toLocaleTimeString() }));
  }
  function forkButton(entry) {
    return onFork && entry.turn ? button("Fork from here", () => attempt(() => onFork(entry.turn)), { class: "small fork", "aria-label": "Fork from turn " + entry.turn }) : null;
  }
  function add(entry) {
    const at = Date.parse(entry.at);
    const text = entry.text || "";
    if (entry.kind === "call") {
      const status = element("span", { class: "dim status", text: "…" });
      const result = element("div", { class: "result" });
      const node = element("details", { class: "entry call" }, element("summary", {}, element("span", { class: "tool", text: visible(entry.name || "") }), element("span", { class: "dim line", text: summaryOf(text) }), status),
        result);
      node.addEventListener("toggle", () => result.before(...argumentsView(entry.name, text)), { once: true });  // most stay folded
      const first = entry.turn !== turn && entry.turn ? forkButton(entry) : null;
      turn = entry.turn || turn;
      if (first) node.append(first);
      open.push({ turn: entry.turn, name: entry.name, node, status, result, at });
      return box.append(node);
    }
    if (entry.kind === "result") {
      const place = Math.max(0, open.findIndex((call) => call.turn === entry.turn && (!entry.name || call.name === entry.name)));
      const call = open[place];
      const shown = element("pre", { text: visible(cut(text || "(nothing)")) });
      if (!call) return box.append(element("details", { class: "entry call" + (entry.failed ? " failed" : "") }, element("summary", { text: "Result of " + (entry.name || "a call") }), shown));
      open.splice(place, 1);
      const took = Math.round((at - call.at) / 1000);
      call.status.textContent = [entry.failed ? "failed" : "", took > 0 ? seconds(took) : ""].filter(Boolean).join(", ");
      call.result.append(element("h4", { text: entry.failed ? "Error" : "Result" }), shown);
      if (entry.failed) { call.node.classList.add("failed"); call.node.open = true; }
      return undefined;
    }
    if (entry.kind === "thinking") return box.append(element("details", { class: "entry thinking" }, element("summary", {}, element("span", { text: "Thinking" }), element("span", { class: "dim line", text: visible(text.replace(/\s+/g, " ").slice(0, 160)) })), markdown(cut(text))));
    if (entry.kind === "end") { for (const call of open) call.status.textContent = "no result"; open = []; }
    const title = entry.kind === "words" ? "Message of " + visible(entry.name || "") : TITLES[entry.kind] || entry.kind;
    const isText = entry.kind === "task" || entry.kind === "words" || entry.kind === "reply";
    const node = element("div", { class: "entry " + entry.kind + (entry.failed ? " failed" : "") }, heading(entry, title), isText ? markdown(text || "(nothing)") : element("p", { class: "plain", text: visible(text) }));
    if (entry.kind === "reply" && !entry.failed) { turn = entry.turn || turn; const fork = forkButton(entry); if (fork) node.append(fork); }
    return box.append(node);
  }
  // A long conversation is drawn in pieces, so that the page answers meanwhile.
  function addSome() {
    frame = 0;
    for (const entry of waiting.splice(0, PIECE)) add(entry);
    if (waiting.length) frame = requestAnimationFrame(addSome);
  }
  return {
    view,
    entries(items, isAll) {
      if (isAll) { box.replaceChildren(); open = []; turn = 0; waiting = []; }
      const atEnd = innerHeight + scrollY > document.documentElement.scrollHeight - 120;
      waiting = waiting.concat(items);
      if (!frame) addSome();
      if (items.length && !isAll) live.hidden = true;
      if (atEnd && !isAll) scrollTo({ top: document.documentElement.scrollHeight });
    },
    reply(text, retry) {
      live.hidden = !text && !retry;
      live.querySelector(".text").textContent = visible(text);
      const note = live.querySelector(".retry");
      note.hidden = !retry;
      note.textContent = retry ? "The model is called again: " + visible(retry) : "";
    },
  };
}
