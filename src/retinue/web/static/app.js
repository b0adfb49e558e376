// Chooses the page by the address, and handles keys and the theme.

import { api, exportedRoot, isExported } from "./api.js";
import { approvalsPage } from "./approvals.js";
import { comparePage } from "./compare.js";
import { ask, element, tell } from "./dom.js";
import { cronPage, searchPage, sessionsPage, settingsPage, usagePage } from "./records.js";
import { runPage } from "./run.js";
import { runsPage } from "./runs.js";

const KEYS = [["/", "search"], ["Esc", "back to the list"], ["t", "light or dark"], ["1 to 4", "tabs of a run"], ["↑ ↓", "rows of a list"], ["+ − 0 ← →", "zoom and move a timeline"], ["g then r a u s c", "runs, approvals, usage, search, cron"], ["?", "these keys"]];
const GO = { r: "#/", a: "#/approvals", u: "#/usage", s: "#/search", c: "#/cron" };
const TABS = ["", "/timeline", "/costs", "/context"];

const main = document.getElementById("main");
const nothing = { leave() {}, change: () => false };
let shown = nothing, shownPage = "", turn = 0, hasG = false;

async function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  let [page, ...rest] = parts;
  if (isExported && !page) { page = "runs"; rest = [exportedRoot]; }
  const name = page || "runs";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  if (name === "runs" && rest[0] && shownPage === "run" && shown.change(rest[0], rest[1])) return;
  shown.leave();
  shown = nothing;
  const mine = ++turn;
  shownPage = name === "runs" && rest[0] ? "run" : name;
  const pages = { approvals: () => approvalsPage(main), usage: () => usagePage(main), search: () => searchPage(main, rest.join("/")), sessions: () => sessionsPage(main, rest.join("/")), cron: () => cronPage(main), settings: () => settingsPage(main), compare: () => comparePage(main, rest) };
  let made = null;
  try { made = await (shownPage === "run" ? runPage(main, rest[0], rest[1]) : (pages[name] || (() => runsPage(main)))()); } catch (error) { tell(error.message); }
  if (!made) return;
  if (mine !== turn) made.leave(); else shown = made;
  if (shownPage !== "search") main.focus({ preventScroll: true });
}

async function countApprovals() {
  const badge = document.getElementById("approval-count");
  const connection = document.getElementById("connection");
  try {
    const { items } = await api("/approvals");
    badge.textContent = String(items.length);
    badge.hidden = !items.length;
    if (connection.textContent === "not connected") connection.textContent = "";
  } catch { connection.textContent = "not connected"; }
}

function changeTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* private window, or a file */ }
}

function showKeys() {
  ask({ title: "Keys", yes: "Close", back: null, more: [element("dl", { class: "keys" }, ...KEYS.flatMap(([key, text]) => [element("dt", {}, element("kbd", { text: key })), element("dd", { text })]))] });
}

addEventListener("keydown", (event) => {
  const target = document.activeElement;
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) { if (event.key === "Escape") target.blur(); return; }
  const go = hasG ? GO[event.key] : null;
  hasG = event.key === "g";
  if (go) location.hash = go;
  else if (event.key === "/") { event.preventDefault(); const field = main.querySelector("input[type=search]"); if (field) field.focus(); else if (!isExported) location.hash = "#/search"; }
  else if (event.key === "Escape" && !isExported && location.hash.length > 2) location.hash = "#/";
  else if (event.key === "t") changeTheme();
  else if (event.key === "?") showKeys();
  else if (shownPage === "run" && /^[1-4]$/.test(event.key) && !hasG) { const [, , id] = location.hash.split("/"); if (id) location.hash = "#/runs/" + id + TABS[event.key - 1]; }
});
document.getElementById("theme").addEventListener("click", changeTheme);
document.getElementById("keys").addEventListener("click", showKeys);
try { const theme = localStorage.getItem("theme"); if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme; } catch { /* private window, or a file */ }
addEventListener("hashchange", route);
if (!isExported) { setInterval(() => { if (!document.hidden) countApprovals(); }, 5000); countApprovals(); }
route();
