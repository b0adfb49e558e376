// Makes elements. Texts of models, tools and files are set with textContent alone; no HTML is made from them.

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export function drawing(tag, properties = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "text") made.textContent = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// Characters that hide or turn round a text: a person decides about what is really there.
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;

export function visible(text) {
  return text.replace(INVISIBLE, (character) => "\\u" + character.codePointAt(0).toString(16).padStart(4, "0"));
}

export function button(text, onclick, properties = {}) {
  return element("button", { type: "button", text, onclick, ...properties });
}

// A question in the middle of the page; the answer is null if it was left.
export function ask({ title, text = "", label = null, value = "", yes = "OK", danger = false, long = false, more = [], back = "Back" }) {
  return new Promise((resolve) => {
    const field = label === null ? null : element(long ? "textarea" : "input", { "aria-label": label, placeholder: label, id: "answer" });
    if (field) field.value = value;
    const done = (answer) => { dialog.close(); dialog.remove(); resolve(answer); };
    const accept = () => done(field ? field.value : "yes");
    const dialog = element("dialog", { "aria-label": title },
      element("h2", { text: title }), text ? element("p", { text }) : null, ...more, field,
      element("div", { class: "bar end" }, back ? button(back, () => done(null)) : null, button(yes, accept, { class: danger ? "danger" : "primary", id: "accept" })));
    dialog.addEventListener("cancel", (event) => { event.preventDefault(); done(null); });
    if (field) field.addEventListener("keydown", (event) => { if (event.key === "Enter" && (!long || event.ctrlKey || event.metaKey)) { event.preventDefault(); accept(); } });
    document.body.append(dialog);
    dialog.showModal();
    (field || dialog.querySelector("#accept")).focus();
  });
}

let messageTimer = 0;

export function tell(text) {
  const message = document.getElementById("message");
  clearTimeout(messageTimer);
  message.textContent = text;
  message.hidden = !text;
  messageTimer = setTimeout(() => { message.hidden = true; }, 8000);
}

export async function attempt(work) {
  try { return await work(); } catch (error) { tell(error.message); return null; }
}
