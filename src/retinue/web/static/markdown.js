// Renders Markdown as elements. It makes no HTML text, loads no image, and links to http, https and mailto alone.

import { element } from "./dom.js";

const MAX_TEXT = 200000;
const MAX_LINE = 10000;
const MAX_DEPTH = 6;

const INLINE = new RegExp([
  "(`{1,3})((?:[^`]|`(?!\\1))[^`]{0,2000}?)\\1",  // code
  "\\*\\*([^*\\n]{1,2000})\\*\\*",
  "__([^_\\n]{1,2000})__",
  "\\*([^*\\s][^*\\n]{0,2000})\\*",
  "(?<![A-Za-z0-9_])_([^_\\s][^_\\n]{0,2000})_(?![A-Za-z0-9_])",
  "~~([^~\\n]{1,2000})~~",
  "!?\\[([^\\]\\n]{0,500})\\]\\(([^()\\s]{1,2000})\\)",
  "(https?://[^\\s<>()\\[\\]\"'`]{1,2000})",
].join("|"), "g");

export function safeAddress(text) {
  try {
    const address = new URL(text);
    return ["http:", "https:", "mailto:"].includes(address.protocol) ? address.href : null;
  } catch { return null; }
}

function anchor(text, address) {
  const safe = safeAddress(address);
  if (!safe) return document.createTextNode(text + " (" + address + ")");
  return element("a", { href: safe, rel: "noopener noreferrer nofollow", target: "_blank", title: safe, text: text || address });
}

function inline(text, depth = 0) {
  if (text.length > MAX_LINE || depth > MAX_DEPTH) return [document.createTextNode(text)];
  const made = [];
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > end) made.push(document.createTextNode(text.slice(end, found.index)));
    end = found.index + found[0].length;
    const [, , code, bold, bold2, italic, italic2, struck, label, address, bare] = found;
    if (code !== undefined) made.push(element("code", { text: code.trim() || code }));
    else if (bold ?? bold2) made.push(element("strong", {}, ...inline(bold ?? bold2, depth + 1)));
    else if (italic ?? italic2) made.push(element("em", {}, ...inline(italic ?? italic2, depth + 1)));
    else if (struck) made.push(element("s", {}, ...inline(struck, depth + 1)));
    else if (address) made.push(anchor(label, address));
    else made.push(anchor(bare, bare));
  }
  if (end < text.length) made.push(document.createTextNode(text.slice(end)));
  return made;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]{0,30})/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const RULE = /^\s*(?:-\s*){3,}$|^\s*(?:\*\s*){3,}$|^\s*(?:_\s*){3,}$/;
const MAX_TABLE_LINE = 1000;
const TABLE_LINE = /^\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-{2,}:?\s*)*\|?\s*$/;

// The length comes first: blanks may be matched in several ways, and a long run of them would stop the page.
const isTableLine = (line) => line.length <= MAX_TABLE_LINE && line.includes("-") && TABLE_LINE.test(line);

export function markdown(text) {
  const box = element("div", { class: "markdown" });
  if (text.length > MAX_TEXT) { box.append(element("pre", { text })); return box; }
  blocks(text.replace(/\r\n?/g, "\n").split("\n"), box, 0);
  return box;
}

function blocks(lines, box, depth) {
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = line.match(FENCE);
    if (!line.trim()) { at++; continue; }
    if (fence) {
      const body = [];
      for (at++; at < lines.length && !(lines[at].trim().startsWith(fence[1]) && !lines[at].trim().slice(fence[1].length).trim()); at++) body.push(lines[at]);
      at++;
      box.append(element("pre", { class: "code", "data-language": fence[2] || null }, element("code", { text: body.join("\n") })));
    } else if (HEADING.test(line)) {
      const [, marks, title] = line.match(HEADING);
      box.append(element("h" + Math.min(6, marks.length + 2), {}, ...inline(title.replace(/\s#+\s*$/, ""))));
      at++;
    } else if (RULE.test(line)) { box.append(element("hr")); at++; }
    else if (/^\s*>/.test(line) && depth < MAX_DEPTH) {
      const quoted = [];
      for (; at < lines.length && /^\s*>/.test(lines[at]); at++) quoted.push(lines[at].replace(/^\s*> ?/, ""));
      const quote = element("blockquote");
      blocks(quoted, quote, depth + 1);
      box.append(quote);
    } else if (ITEM.test(line) && depth < MAX_DEPTH) at = list(lines, at, box, depth);
    else if (line.includes("|") && at + 1 < lines.length && isTableLine(lines[at + 1])) at = table(lines, at, box);
    else {
      const words = [];
      for (; at < lines.length && lines[at].trim() && !FENCE.test(lines[at]) && !HEADING.test(lines[at]) && (!words.length || (!ITEM.test(lines[at]) && !/^\s*>/.test(lines[at]))); at++) words.push(lines[at]);
      const paragraph = element("p");
      words.forEach((each, number) => { if (number) paragraph.append(element("br")); paragraph.append(...inline(each.trimEnd())); });
      box.append(paragraph);
    }
  }
}

function list(lines, start, box, depth) {
  const [, indent, number] = lines[start].match(ITEM);
  const made = element(number ? "ol" : "ul", { start: number && number !== "1" ? number : null });
  let at = start;
  while (at < lines.length) {
    const found = lines[at].match(ITEM);
    if (!found || found[1].length < indent.length || (found[1].length > indent.length + 1 && at === start) || Boolean(found[2]) !== Boolean(number)) break;
    const body = [found[3]];
    for (at++; at < lines.length; at++) {
      const next = lines[at].match(ITEM);
      if (next && next[1].length <= indent.length) break;
      if (!lines[at].trim() && !(lines[at + 1] ?? "").startsWith(indent + "  ")) break;
      if (!next && lines[at].trim() && !lines[at].startsWith(indent + " ")) break;
      body.push(lines[at].slice(Math.min(lines[at].length - lines[at].trimStart().length, indent.length + 2)));
    }
    const task = body[0].match(/^\[( |x|X)\]\s+(.*)$/);
    if (task) body[0] = (task[1] === " " ? "\u2610 " : "\u2611 ") + task[2];
    const item = element("li");
    if (body.length === 1) item.append(...inline(body[0])); else blocks(body, item, depth + 1);
    made.append(item);
    while (at < lines.length && !lines[at].trim() && ITEM.test(lines[at + 1] ?? "")) at++;
  }
  box.append(made);
  return at;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").slice(0, 50).map((cell) => cell.trim());

function table(lines, start, box) {
  const head = element("tr", {}, ...cells(lines[start]).map((cell) => element("th", { scope: "col" }, ...inline(cell))));
  const body = element("tbody");
  let at = start + 2;
  for (; at < lines.length && lines[at].includes("|"); at++) body.append(element("tr", {}, ...cells(lines[at]).map((cell) => element("td", {}, ...inline(cell)))));
  box.append(element("div", { class: "scrolls" }, element("table", {}, element("thead", {}, head), body)));
  return at;
}
