// Numbers, times and names as the page shows them.

export const STATES = ["working", "waiting", "idle", "queued", "interrupted", "completed", "failed", "cancelled", "timed_out", "exhausted"];

export const stateOf = (run) => run.outcome || run.state;
export const nameOf = (run) => run.handle || run.label || run.agent;
export const waiting = (run) => !run.outcome && run.waiting_for ? " for " + run.waiting_for : "";
export const stateText = (run) => stateOf(run).replace("_", " ") + waiting(run);
export const money = (cost) => cost === null ? "?" : cost === 0 ? "$0" : "$" + cost.toFixed(cost < 0.1 ? 4 : 2);
export const when = (text) => text ? new Date(text).toLocaleString() : "";
export const link = (run, tab = "") => "#/runs/" + encodeURIComponent(run.run_id) + (tab ? "/" + tab : "");

export function count(number) {
  if (number < 1000) return String(number);
  return number < 1e6 ? (number / 1000).toFixed(1) + "k" : (number / 1e6).toFixed(1) + "M";
}

export function seconds(number) {
  if (number < 0.995) return Math.round(number * 1000) + " ms";
  if (number < 59.95) return number.toFixed(1) + " s";
  const minutes = Math.floor(number / 60);
  return minutes < 60 ? minutes + " min " + Math.floor(number % 60) + " s" : Math.floor(minutes / 60) + " h " + minutes % 60 + " min";
}

export function took(run) {
  if (run.state === "interrupted") return "";  // when its last process ended is not known
  const end = run.ended_at ? Date.parse(run.ended_at) : Date.now();
  if (run.ended_at && run.ended_at === run.started_at) return "< 1 s";  // the times of a row are whole seconds
  return seconds(Math.max(0, (end - Date.parse(run.started_at)) / 1000));
}

export function sinceText(text) {
  const passed = (Date.now() - Date.parse(text)) / 1000;
  if (passed < 60) return "now";
  if (passed < 3600) return Math.floor(passed / 60) + " min ago";
  if (passed < 86400) return Math.floor(passed / 3600) + " h ago";
  return new Date(text).toLocaleDateString();
}
