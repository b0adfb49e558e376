// Differences of two texts, line by line.

import { element, visible } from "./dom.js";

const MAX_CELLS = 4e6;

// Lines with a sign: "-" only in the first text, "+" only in the second, " " in both.
export function differences(before, after) {
  const a = before.replace(/\n$/, "").split("\n"), b = after.replace(/\n$/, "").split("\n");
  let first = 0, last = 0;
  while (first < a.length && first < b.length && a[first] === b[first]) first++;
  while (last < a.length - first && last < b.length - first && a[a.length - 1 - last] === b[b.length - 1 - last]) last++;
  const x = a.slice(first, a.length - last), y = b.slice(first, b.length - last);
  const middle = x.length * y.length > MAX_CELLS ? [...x.map((line) => ["-", line]), ...y.map((line) => ["+", line])] : longest(x, y);
  return [...a.slice(0, first).map((line) => [" ", line]), ...middle, ...a.slice(a.length - last).map((line) => [" ", line])];
}

function longest(x, y) {
  const width = y.length + 1;
  const common = new Uint32Array((x.length + 1) * width);
  for (let i = x.length - 1; i >= 0; i--) for (let j = y.length - 1; j >= 0; j--) {
    common[i * width + j] = x[i] === y[j] ? common[(i + 1) * width + j + 1] + 1 : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
  }
  const made = [];
  let i = 0, j = 0;
  while (i < x.length || j < y.length) {
    if (i < x.length && j < y.length && x[i] === y[j]) { made.push([" ", x[i]]); i++; j++; }
    else if (j >= y.length || (i < x.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) made.push(["-", x[i++]]);
    else made.push(["+", y[j++]]);
  }
  return made;
}

const KINDS = { "+": "added", "-": "removed", "$": "command", "|": "command", "@": "gap" };

// Lines that begin with a sign, coloured by it; unchanged lines far from a change are left out with `around`.
export function diffView(lines, { around = 3, label = "Differences" } = {}) {
  const near = lines.map(() => false);
  lines.forEach(([sign], at) => { if (sign !== " ") for (let k = Math.max(0, at - around); k <= Math.min(lines.length - 1, at + around); k++) near[k] = true; });
  const all = !near.includes(true);
  const box = element("pre", { class: "diff", "aria-label": label });
  let skipped = 0;
  const gap = () => { if (skipped) box.append(element("span", { class: "line gap", text: "… " + skipped + " unchanged lines\n" })); skipped = 0; };
  lines.forEach(([sign, line], at) => {
    if (!near[at] && !all && lines.length > 12) { skipped++; return; }
    gap();
    box.append(element("span", { class: "line " + (KINDS[sign] || ""), text: (sign ? sign + " " : "") + visible(line) + "\n" }));
  });
  gap();
  return box;
}

// The text of an approval, whose lines have signs already.
export function signedView(text) {
  return diffView(text.split("\n").map((line) => line.startsWith("@@") ? ["@", line] : "+-$| ".includes(line[0]) && line[1] === " " ? [line[0], line.slice(2)] : ["", line]), { around: 1e6, label: "Arguments" });
}
