// Two runs side by side: their figures, where their conversations part, and the difference of their answers.

import { api } from "./api.js";
import { attempt, element, visible } from "./dom.js";
import { differences, diffView } from "./diff.js";
import { count, link, money, nameOf, stateText, took } from "./format.js";
import { transcript } from "./transcript.js";

const FACTS = {
  State: (run) => stateText(run), Task: (run) => run.task.slice(0, 300), Agent: (run) => nameOf(run), Model: (run) => run.provider + ":" + run.model, Turns: (run) => String(run.turns),
  Input: (run) => count(run.usage.input), Output: (run) => count(run.usage.output), Cached: (run) => count(run.usage.cached), Cost: (run) => money(run.cost), Took: took, Reason: (run) => run.end_reason || "", Error: (run) => run.error,
};

const same = (one, other) => one && other && one.kind === other.kind && one.name === other.name && one.text === other.text;

export async function comparePage(main, ids) {
  const load = async (id) => ({ run: await api("/runs/" + encodeURIComponent(id)), entries: (await api("/runs/" + encodeURIComponent(id) + "/transcript")).items });
  const loaded = await attempt(() => Promise.all(ids.slice(0, 2).map(load)));
  if (!loaded || loaded.length < 2) { main.replaceChildren(element("h2", { text: "Compare" }), element("p", { text: "Give two runs: open one, and press Compare." })); return { leave() {} }; }
  const [one, other] = loaded;
  let alike = 0;
  while (alike < one.entries.length && same(one.entries[alike], other.entries[alike])) alike++;
  const rows = Object.entries(FACTS).map(([name, of]) => [name, of(one.run), of(other.run)]).filter(([, a, b]) => a || b);
  const sides = [one, other].map(({ run, entries }) => {
    const talk = transcript({ onFork: null });
    talk.entries(entries.slice(Math.max(0, alike - 1)).slice(0, 400), true);
    return element("div", {}, element("h3", {}, element("a", { href: link(run), text: visible(nameOf(run)) + " " + run.run_id.slice(-8) })), talk.view);
  });
  main.replaceChildren(element("h2", { text: "Compare" }),
    element("div", { class: "scrolls" }, element("table", { class: "facts-table" }, element("thead", {}, element("tr", {}, element("th", { scope: "col" }), ...[one, other].map(({ run }) => element("th", { scope: "col" }, element("a", { href: link(run), text: run.run_id.slice(-8) }))))),
      element("tbody", {}, ...rows.map(([name, a, b]) => element("tr", { class: a === b ? "" : "differs" }, element("th", { scope: "row", text: name }), element("td", { text: visible(a) }), element("td", { text: visible(b) })))))),
    element("h3", { text: "Answers" }), one.run.text === other.run.text ? element("p", { class: "dim", text: "The answers are the same." }) : diffView(differences(one.run.text, other.run.text), { label: "Differences of the answers" }),
    element("h3", { text: "Conversations" }), element("p", { class: "dim", text: alike === Math.max(one.entries.length, other.entries.length) ? "The conversations are the same." : "The first " + alike + " entries are the same; from there on:" }),
    element("div", { class: "sides" }, ...sides));
  return { leave() {} };
}
