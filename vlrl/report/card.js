// A card: {step, split, sample_id, prompt, images, image_size, strips, completion, answer, parts, turns, why, ...}.

const VERDICTS = { right: "right", wrong: "wrong", failure: "parse failure" };

// Right from `correct` 0.5 on (tasks may give partial credit); a rollout that did not parse is neither right nor wrong.
function verdict(row) {
  if (row.reason) return "failure";
  return Number(row.correct) >= 0.5 ? "right" : "wrong";
}

// A list of short items, such as the order of a jigsaw, becomes chips; other text stays whole.
function items(label) {
  const inner = label.trim().replace(/^[[(]|[\])]$/g, "").trim();
  const listed = /^\w{1,3}([\s,]+\w{1,3})+$/.test(inner) && !/ to /.test(inner);  // 2 to 4 s is one span of time
  return listed ? inner.split(/[\s,]+/) : [label];
}

function textMarks(marks) {
  const texts = marks.filter((mark) => mark.kind === "text");
  const truth = texts.find((mark) => mark.role === "truth");
  const expected = truth ? items(truth.label) : null;
  return texts.map((mark) => {
    const chips = items(mark.label).map((text, k) => {
      const off = mark.role === "prediction" && expected !== null && text !== expected[k];
      return html("span", { class: off ? "chip off" : "chip" }, text);
    });
    return html("div", { class: `order ${mark.role}` }, html("span", { class: "muted" }, mark.role), ...chips);
  });
}

const signed = (value) => (typeof value === "number" && value > 0 ? `+${format(value)}` : format(value));

function numbers(row) {
  const pair = (name, text) => html("div", {}, html("dt", {}, name), html("dd", {}, text));
  const parts = Object.entries(row.parts).map(([name, value]) => pair(name, format(value)));
  const advantage = row.advantage === null ? [] : [pair("advantage", signed(row.advantage))];
  return html("dl", { class: "numbers" }, pair("reward", format(row.reward)), ...advantage, ...parts);
}

function makeCard(row, images) {
  const kind = verdict(row);
  const group = row.group === null ? null : `group ${row.group}`;
  const when = [`step ${format(row.step)}`, row.split, group].filter(Boolean).join(" · ");
  const near = (mark) => !onImage(mark) || mark.image || !outside(mark, row.image_size);
  const far = row.image_size ? row.marks.filter((mark) => !near(mark)) : [];
  const talks = row.turns.length > 0;
  const pictures = talks ? [] : row.images.map((place, k) => withTimeline(row, k, picture(row, place, k, images)));
  const beside = pictures.length - row.strips.filter(Boolean).length;  // a strip takes the whole width
  return html("article", { class: `card ${kind}${talks ? " talks" : ""}`, tabindex: "-1", "aria-label": `${VERDICTS[kind]}, ${when}` },
    html("header", {},
      html("span", { class: `badge ${kind}` }, VERDICTS[kind]),
      row.why && row.why !== "even" ? html("span", { class: "badge why" }, row.why) : null,
      html("span", { class: "muted" }, when)),
    pictures.length ? html("div", { class: beside > 1 ? "pictures many" : "pictures" }, ...pictures) : null,
    talks ? conversation(row, images) : null,
    ...textMarks(row.marks),
    talks ? null
      : html("pre", { class: "completion", tabindex: "0", "aria-label": "completion" }, row.completion || "(empty)"),
    html("p", { class: "answer" },
      html("span", { class: "muted" }, "answer "), row.answer === null ? "none" : html("code", {}, row.answer)),
    row.reason ? html("p", { class: "reason" }, row.reason) : null,
    ...farSpans(row).map((mark) => outsideNote(mark, `video: ${fromTo(mark)}`)),
    ...far.map((mark) => outsideNote(mark, `image: ${pixels(mark)}`)),
    numbers(row),
    talks ? html("p", { class: "muted" }, row.sample_id || "")
      : html("details", {}, html("summary", {}, "Prompt"), html("pre", {}, row.prompt || "(none)"),
        html("p", { class: "muted" }, row.sample_id || "")));
}
