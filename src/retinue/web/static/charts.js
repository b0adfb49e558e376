// Bar charts as SVG, each with a table of the same numbers.

import { drawing, element } from "./dom.js";

const COLOURS = 8;

// `bars` are {label, parts: [{name, value}]}; the names have the same colours in all bars.
export function barChart({ title, bars, text, showsEnd = false }) {
  const names = [...new Set(bars.flatMap((bar) => bar.parts.map((part) => part.name)))];
  const most = Math.max(...bars.map((bar) => bar.parts.reduce((sum, part) => sum + part.value, 0)), 0);
  const height = 160, step = Math.max(14, Math.min(60, 900 / Math.max(1, bars.length))), width = 60 + step * bars.length;
  const chart = drawing("svg", { viewBox: `0 0 ${width} ${height + 34}`, role: "img", "aria-label": title, class: "chart" });
  for (const part of [0, 0.5, 1]) {
    const y = 10 + height * (1 - part);
    chart.append(drawing("line", { x1: 56, x2: width, y1: y, y2: y, class: "grid" }), drawing("text", { x: 52, y: y + 4, "text-anchor": "end", text: text(most * part) }));
  }
  bars.forEach((bar, place) => {
    let top = 10 + height;
    for (const part of bar.parts) {
      const tall = most ? height * part.value / most : 0;
      top -= tall;
      chart.append(drawing("rect", { x: 60 + step * place, y: top, width: step * 0.8, height: Math.max(tall, part.value ? 1 : 0), class: "c" + names.indexOf(part.name) % COLOURS }, drawing("title", { text: bar.label + ", " + part.name + ": " + text(part.value) })));
    }
    const every = Math.ceil(40 / step);
    if (place % every === 0) chart.append(drawing("text", { x: 60 + step * (place + 0.4), y: height + 26, "text-anchor": "middle", text: bar.short ?? bar.label }));
  });
  const legend = names.length > 1 || names[0] ? element("div", { class: "legend" }, ...names.map((name, place) => element("span", {}, element("i", { class: "c" + place % COLOURS }), name || "(none)"))) : null;
  const box = element("div", { class: "scrolls" }, chart);
  if (showsEnd) requestAnimationFrame(() => { box.scrollLeft = box.scrollWidth; });  // on a narrow screen
  return element("figure", {}, element("figcaption", { text: title }), box, legend);
}

export function table(columns, rows, empty = "nothing here") {
  if (!rows.length) return element("p", { class: "dim", text: empty });
  return element("div", { class: "scrolls" }, element("table", {}, element("thead", {}, element("tr", {}, ...columns.map((column) => element("th", { scope: "col", text: column.title, class: column.right ? "number" : null })))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...columns.map((column) => { const cell = column.cell(row); return element("td", { class: column.right ? "number" : null }, cell); }))))));
}
