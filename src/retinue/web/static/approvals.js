// Calls that wait for a person, with the diff of an edit.

import { api } from "./api.js";
import { attempt, button, element, visible } from "./dom.js";
import { signedView } from "./diff.js";
import { argumentsView } from "./transcript.js";

const POLL = 2000;
const SIGNS = new Set(["file_edit", "file_write", "shell", "terminal", "python_execute"]);

export async function approvalsPage(main) {
  const box = element("div", { class: "approvals" });
  const shown = new Map();
  main.replaceChildren(element("h2", { text: "Approvals" }), element("p", { class: "dim", text: "These calls wait for a person. What is shown is what the tool will read." }), box);
  async function refresh() {
    const page = await attempt(() => api("/approvals"));
    if (!page) return;
    const ids = new Set(page.items.map((each) => each.id));
    for (const [id, node] of shown) if (!ids.has(id)) { node.remove(); shown.delete(id); }
    for (const each of page.items) if (!shown.has(each.id)) { const node = question(each); shown.set(each.id, node); box.append(node); }
    box.querySelector(".nothing")?.remove();
    if (!shown.size) box.append(element("p", { class: "nothing", text: "No call waits for a person." }));
  }
  function question(each) {
    const note = element("input", { placeholder: "Note for the model", "aria-label": "Note for the model" });
    const decide = (allow) => attempt(async () => {
      for (const control of node.querySelectorAll("button")) control.disabled = true;
      try { await api("/approvals/" + encodeURIComponent(each.id), { allow, note: note.value }); } finally { for (const control of node.querySelectorAll("button")) control.disabled = false; }
      node.remove();
      shown.delete(each.id);
      await refresh();
    });
    const node = element("section", { class: "entry question", "aria-label": each.tool + " of " + each.path },
      element("h3", {}, element("span", { class: "tool", text: visible(each.tool) }), element("span", { class: "dim", text: " by " + visible(each.path) }), element("a", { href: "#/runs/" + encodeURIComponent(each.run_id), text: "Show the run" })),
      each.reason ? element("p", { class: "dim", text: visible(each.reason) }) : null,
      ...(SIGNS.has(each.tool) && each.details !== each.arguments ? [signedView(each.details)] : argumentsView(each.tool, each.arguments)),
      element("div", { class: "bar" }, note, button("Allow", () => decide(true), { class: "primary" }), button("Deny", () => decide(false), { class: "danger" })));
    return node;
  }
  await refresh();
  const polling = setInterval(() => { if (!document.hidden) refresh(); }, POLL);
  return { leave() { clearInterval(polling); } };
}
