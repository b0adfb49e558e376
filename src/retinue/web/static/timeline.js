// Where the time of a tree went: a row for each run, bars for model, tools, waits and approvals, zoom, critical path.

import { button, element } from "./dom.js";
import { nameOf, seconds } from "./format.js";
import { virtualList } from "./virtual.js";

const HEIGHT = 28;
const KINDS = { model: "Model", tool: "Tool", wait: "Wait", approval: "Approval" };

export function timelineView({ onSelect }) {
  let rows = [], spans = new Map(), begin = 0, end = 1, from = 0, to = 1;
  const axis = element("div", { class: "axis", "aria-hidden": "true" });
  const list = virtualList({ label: "Timeline of runs", className: "timeline", height: HEIGHT, draw });
  const note = element("p", { class: "dim", role: "status" });
  const legend = element("div", { class: "legend" }, ...Object.entries(KINDS).map(([kind, text]) => element("span", {}, element("i", { class: kind }), text)), element("span", {}, element("i", { class: "failed" }), "Failed or cancelled"), element("span", {}, element("i", { class: "model critical" }), "Critical path"));
  const view = element("section", { class: "times", "aria-label": "Timeline", tabindex: "0" },
    element("div", { class: "bar" }, legend, element("span", { class: "grow" }), button("−", () => zoom(2), { "aria-label": "Zoom out" }), button("+", () => zoom(0.5), { "aria-label": "Zoom in" }), button("All", () => { from = 0; to = 1; show(); }, { "aria-label": "Show the whole time" })),
    axis, list.box, note);

  const place = (at) => ((at - begin) / (end - begin) - from) / (to - from) * 100;
  function bar(span) {
    const last = span.end === null ? end : span.end;
    const left = Math.max(0, place(span.start)), right = Math.min(100, place(last));
    if (right < 0 || left > 100) return null;
    const text = KINDS[span.kind] + (span.name ? " " + span.name : "") + (span.turn ? ", turn " + span.turn : "") + ": " + seconds(last - span.start) + (span.end === null ? " so far" : "") + (span.failed ? ", failed" : "") + (span.critical ? ", on the critical path" : "");
    const node = element("span", { class: "span " + span.kind + (span.critical ? " critical" : "") + (span.failed ? " failed" : ""), title: text });
    node.style.left = left + "%";
    node.style.width = Math.max(0.15, right - left) + "%";
    return node;
  }
  function draw(row) {
    const own = spans.get(row.run_id) || [];
    const sums = Object.keys(KINDS).map((kind) => [kind, own.filter((span) => span.kind === kind)]).filter(([, found]) => found.length)
      .map(([kind, found]) => found.length + " " + kind + " " + seconds(found.reduce((sum, span) => sum + (span.end ?? end) - span.start, 0)));
    const track = element("div", { class: "track" }, ...own.map(bar).filter(Boolean));
    const name = element("a", { class: "name", href: row.href, text: row.name, title: row.task });
    name.style.paddingLeft = 6 + 12 * Math.min(row.depth, 12) + "px";
    return element("div", { class: "line" + (row.selected ? " selected" : ""), "aria-label": row.name + ": " + sums.join(", "), tabindex: "-1" }, name, track);
  }
  function show() {
    const width = (end - begin) * (to - from);
    axis.replaceChildren(...[0, 0.25, 0.5, 0.75, 1].map((part) => element("span", { text: seconds((end - begin) * from + width * part) })));
    list.redraw();
    const path = [...spans.values()].flat().filter((span) => span.critical);
    const critical = path.reduce((sums, span) => ({ ...sums, [span.kind]: (sums[span.kind] || 0) + (span.kind === "wait" ? 0 : (span.end ?? end) - span.start) }), {});
    note.textContent = "Whole time " + seconds(end - begin) + ". On the critical path: " + (Object.entries(critical).filter(([kind]) => kind !== "wait").map(([kind, sum]) => kind + " " + seconds(sum)).join(", ") || "nothing") + ".";
  }
  function zoom(factor, center = (from + to) / 2) {
    const width = Math.min(1, Math.max(1e-4, (to - from) * factor));
    from = Math.min(1 - width, Math.max(0, center - (center - from) * width / (to - from)));
    to = from + width;
    show();
  }
  function pan(part) { const step = Math.max(-from, Math.min(1 - to, (to - from) * part)); from += step; to += step; show(); }
  view.addEventListener("keydown", (event) => {
    const keys = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": () => { from = 0; to = 1; show(); }, ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2) };
    if (keys[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); keys[event.key](); }
  });
  view.addEventListener("wheel", (event) => {
    const track = view.querySelector(".track");
    if (!track || !(event.ctrlKey || event.shiftKey)) return;
    event.preventDefault();
    const area = track.getBoundingClientRect();
    const center = from + (to - from) * Math.min(1, Math.max(0, (event.clientX - area.left) / area.width));
    if (event.ctrlKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, center); else pan(event.deltaY > 0 ? 0.1 : -0.1);
  }, { passive: false });
  return {
    view,
    set(runs, items, selected) {
      spans = new Map();
      for (const span of items) { if (!spans.has(span.run_id)) spans.set(span.run_id, []); spans.get(span.run_id).push(span); }
      begin = items.reduce((first, span) => Math.min(first, span.start), items.length ? Infinity : Date.parse(runs[0].started_at) / 1000);
      const last = items.reduce((latest, span) => Math.max(latest, span.end ?? Date.now() / 1000), begin);
      end = Math.max(begin + 0.001, last);
      rows = runs.map((run) => ({ run_id: run.run_id, name: nameOf(run), task: run.task.slice(0, 200), depth: run.depth, href: "#/runs/" + run.run_id + "/timeline", selected: run.run_id === selected }));
      list.box.style.height = Math.min(560, rows.length * HEIGHT + 4) + "px";
      list.set(rows);
      show();
    },
  };
}
