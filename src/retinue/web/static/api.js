// Where the data come from: the server, or, in an exported file, the data in the page.

const embedded = document.getElementById("data");
const answers = embedded ? JSON.parse(embedded.textContent) : null;

export const isExported = answers !== null;
export const exportedRoot = answers ? answers.root : "";

export async function api(path, body) {
  if (answers) {
    if (body === undefined && Object.hasOwn(answers.paths, path)) return answers.paths[path];
    throw new Error("this file has only what was exported");
  }
  const options = body === undefined ? { headers: { "Cache-Control": "max-age=1" } } : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  const answer = await fetch("/api/v1" + path, options);
  const value = await answer.json().catch(() => ({ error: "the server gave no answer" }));
  if (!answer.ok) throw new Error(value.error || String(answer.status));
  return value;
}

const isOver = (run) => run.outcome !== null;

// Rows of the tree of a run and entries of its conversation, now and as they change. Returns a function that ends it.
export function follow(id, on) {
  let stream = null, timer = 0, isLeft = false;
  const rows = new Map();
  const take = (changed) => {
    for (const row of changed) rows.set(row.run_id, row);
    on.rows(changed);
  };
  async function once() {
    try {
      const run = await api("/runs/" + id);
      const [tree, transcript] = await Promise.all([api("/runs/" + run.root_id + "/tree"), api("/runs/" + id + "/transcript")]);
      if (isLeft) return;
      take(tree.items);
      on.entries(transcript.items, true);
    } catch (error) { if (!isLeft) on.problem(error.message); }
  }
  function open() {
    stream = new EventSource("/api/v1/runs/" + encodeURIComponent(id) + "/changes");
    stream.addEventListener("rows", (event) => { on.connection(true); take(JSON.parse(event.data)); });
    stream.addEventListener("entries", (event) => { const news = JSON.parse(event.data); on.entries(news.items, news.all === true); });
    stream.addEventListener("reply", (event) => { const reply = JSON.parse(event.data); on.reply(reply.text, reply.retry); });
    stream.addEventListener("problem", (event) => { stream.close(); on.problem(JSON.parse(event.data).error); });
    stream.addEventListener("end", () => {
      stream.close();
      if (![...rows.values()].every(isOver)) timer = setTimeout(open, 3000);  // interrupted: another process may go on
    });
    stream.onerror = () => {
      if (stream.readyState === EventSource.CLOSED) once(); else on.connection(false);
    };
  }
  if (isExported) once(); else open();
  return () => { isLeft = true; clearTimeout(timer); if (stream) stream.close(); };
}
