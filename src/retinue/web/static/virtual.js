// A list that draws only the rows in view: ten thousand rows cost as much as fifty.

import { element } from "./dom.js";

const MARGIN = 12;

export function virtualList({ label, className, height, draw, header = null, onNearEnd = null, key = (item) => item.run_id }) {
  const space = element("div", { class: "space" });
  const box = element("div", { class: "virtual " + className, role: "list", "aria-label": label });
  if (header) box.append(header);
  box.append(space);
  let items = [];
  let waiting = false;
  const drawn = new Map();

  function view() {
    waiting = false;
    const first = Math.max(0, Math.floor(box.scrollTop / height) - MARGIN);
    const last = Math.min(items.length, first + Math.ceil(box.clientHeight / height) + 2 * MARGIN);
    for (const [index, row] of drawn) if (index < first || index >= last) { row.node.remove(); drawn.delete(index); }
    for (let index = first; index < last; index++) {
      const text = JSON.stringify(items[index]);
      const before = drawn.get(index);
      if (before && before.text === text) continue;
      const node = draw(items[index], index);
      node.style.top = index * height + "px";
      node.setAttribute("role", "listitem");
      node.setAttribute("aria-posinset", index + 1);
      node.setAttribute("aria-setsize", items.length);
      node.dataset.key = key(items[index]);
      if (before) {
        const focused = before.node.contains(document.activeElement);
        before.node.replaceWith(node);
        if (focused) node.focus({ preventScroll: true });
      } else space.append(node);
      drawn.set(index, { node, text });
    }
    if (onNearEnd && last >= items.length - 2 * MARGIN) onNearEnd();
  }
  function soon() { if (!waiting) { waiting = true; requestAnimationFrame(view); } }

  function focus(index) {
    if (index < 0 || index >= items.length) return;
    const top = index * height;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + height > box.scrollTop + box.clientHeight - height) box.scrollTop = top - box.clientHeight + 2 * height;
    view();
    drawn.get(index)?.node.focus({ preventScroll: true });
  }
  box.addEventListener("scroll", soon);
  box.addEventListener("keydown", (event) => {
    const row = event.target.closest("[data-key]");
    if (!row) return;
    const at = items.findIndex((item) => key(item) === row.dataset.key);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -at, End: items.length - 1 - at };
    if (!(event.key in steps)) return;
    event.preventDefault();
    focus(Math.max(0, Math.min(items.length - 1, at + steps[event.key])));
  });
  new ResizeObserver(soon).observe(box);
  return {
    box,
    redraw() { for (const row of drawn.values()) row.text = ""; soon(); },
    set(next) {
      items = next;
      space.style.height = items.length * height + "px";
      for (const [index, row] of drawn) if (index >= items.length) { row.node.remove(); drawn.delete(index); }
      view();
    },
    reveal(index) { if (index >= 0) { const top = index * height; if (top < box.scrollTop || top > box.scrollTop + box.clientHeight - height) { box.scrollTop = top - box.clientHeight / 2; view(); } } },
  };
}
