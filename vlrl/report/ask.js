// Asks the server for what has changed, and says what a run has come to.

const tags = {};  // what is asked for -> {path, etag} of the last answer

// Undefined: as before.
async function ask(key, path) {
  const known = tags[key] && tags[key].path === path ? { "If-None-Match": tags[key].etag } : {};
  const answer = await fetch(path, { cache: "no-store", headers: known });
  if (answer.status === 304) return undefined;
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  const value = await answer.json();
  tags[key] = { path, etag: answer.headers.get("ETag") };
  return value;
}

function runRow({ name, title, step, ends, state }, run) {
  const said = ({ value, low, high }) => format(value) + (typeof low === "number" ? ` [${format(low)}, ${format(high)}]` : "");
  const accuracy = (ends || []).map(([, item]) => said(item)).join(" → ");
  const key = html("i", { class: "key", style: `--line: var(--c${run % COLOURS})` });
  return html("tr", {}, html("td", {}, key, name),
    ...[title || "", format(step), accuracy || "not yet", state || ""].map((text) => html("td", {}, text)));
}
