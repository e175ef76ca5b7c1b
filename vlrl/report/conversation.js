// A conversation, turn by turn: what was shown, what was written, and how likely that was.

const WRITTEN = /(<think>[\s\S]*?<\/think>|<tool_call>[\s\S]*?<\/tool_call>)/;
const LEAST = -6;  // nats from which on a token's bar is as tall as it gets

// A reply's text with its thoughts and its calls of tools set apart.
function written(text) {
  return text.split(WRITTEN).filter((part) => part.trim()).map((part) => {
    const kind = part.startsWith("<think>") ? "thought" : part.startsWith("<tool_call>") ? "call" : "text";
    const inner = kind === "text" ? part : part.replace(/^<\w+>|<\/\w+>$/g, "");
    return html("div", { class: `part ${kind}` }, kind === "text" ? null : html("span", { class: "muted" }, kind),
      html("pre", { tabindex: "0", "aria-label": kind }, inner.trim()));
  });
}

function message(row, { role, content, calls }, images) {
  const parts = content.map((part) => (typeof part === "string"
    ? html("pre", { tabindex: "0", "aria-label": role }, part)
    : withTimeline(row, part, picture(row, row.images[part], part, images))));
  const called = calls.map((call) => html("div", { class: "part call" }, html("span", { class: "muted" }, "call"),
    html("pre", { tabindex: "0", "aria-label": "call" }, call)));
  return html("div", { class: `message ${role}` }, html("span", { class: "role" }, role), ...parts, ...called);
}

// Each token's log-probability as a bar: the taller, the less likely it was.
function bars(values) {
  const rects = values.map((value, k) => {
    const height = Math.max(.04, Math.min(1, value / LEAST));
    return svg("rect", { x: k, y: 1 - height, width: .8, height });
  });
  return svg("svg", { class: "bars", viewBox: `0 0 ${Math.max(values.length, 24)} 1`, preserveAspectRatio: "none",
    "aria-hidden": "true" }, ...rects);
}

function turnNumbers(turn) {
  const pair = (name, text) => html("span", {}, html("span", { class: "muted" }, `${name} `), text);
  const known = (value) => value !== null && value !== undefined;
  return html("p", { class: "likely" },
    known(turn.tokens) ? pair("tokens", format(turn.tokens)) : null,
    known(turn.logprob) ? pair("log-prob", format(turn.logprob)) : null,
    known(turn.entropy) ? pair("entropy", format(turn.entropy)) : null,
    known(turn.advantage) ? pair("advantage", signed(turn.advantage)) : null,
    turn.cut ? html("span", { class: "reason" }, "cut by the length limit") : null,
    turn.bars.length ? bars(turn.bars) : null);
}

function conversation(row, images) {
  const turns = row.turns.map((turn, k) => html("li", {},
    html("p", { class: "muted" }, `turn ${k + 1}`, turn.restart ? " · the conversation begins anew" : "",
      turn.tools.length ? ` · tools: ${turn.tools.join(", ")}` : ""),
    ...turn.messages.map((each) => message(row, each, images)),
    html("div", { class: "message assistant" }, html("span", { class: "role" }, "assistant"),
      ...written(turn.action || "(empty)"), turnNumbers(turn))));
  return html("ol", { class: "turns", "aria-label": "conversation" }, ...turns);
}
