// Cards of rollouts: {step, split, sample_id, prompt, images, image_size, strips, completion, answer, parts, ...}.

const VERDICTS = { right: "right", wrong: "wrong", failure: "parse failure" };
const IMAGE_HEIGHT = 280;  // pixels at most, so that tall images do not stretch a card
const FRAME_WIDTH = 60;  // pixels at least of a strip's frame, so that its time fits in
const FEW_PIXELS = 128;  // images smaller than this show their pixels as squares

// Right from `correct` 0.5 on (tasks may give partial credit); a rollout that did not parse is neither right nor wrong.
function verdict(row) {
  if (row.reason) return "failure";
  return Number(row.correct) >= 0.5 ? "right" : "wrong";
}

// Each shape twice: a wide pale one below keeps the mark readable on any picture.
function twice(make) {
  return [make("halo"), make("ink")];
}

// Arms of a cross and a dot at its centre; between them the picture stays visible.
function cross(x, y, unit) {
  const near = 1.2 * unit, far = 5 * unit;
  const sides = `M${x - far} ${y}H${x - near}M${x + near} ${y}H${x + far}`;
  return `${sides}M${x} ${y - far}V${y - near}M${x} ${y + near}V${y + far}M${x} ${y}h0`;
}

function drawMark(mark, unit) {
  const group = svg("g", { class: `mark ${mark.role} ${mark.kind}` });
  const [x, y, right, bottom] = mark.xy;
  if (mark.kind === "box") {
    const corner = { x: Math.min(x, right), y: Math.min(y, bottom) };
    const size = { width: Math.abs(right - x), height: Math.abs(bottom - y) };
    group.append(...twice((name) => svg("rect", { class: name, ...corner, ...size })));
  } else {
    group.append(...twice((name) => svg("circle", { class: name, cx: x, cy: y, r: 2.5 * unit })));
    if (mark.role === "prediction") {
      group.append(...twice((name) => svg("path", { class: name, d: cross(x, y, unit) })));
    }
  }
  if (mark.label) group.append(svg("title", {}, `${mark.role}: ${mark.label}`));
  return group;
}

function outside(mark, [width, height]) {
  return mark.xy.some((value, k) => value < 0 || value > (k % 2 ? height : width));
}

const outsideNote = (mark, where) => html("p", { class: "reason" }, `${mark.role} reaches outside the ${where}`);
const pixels = (mark) => mark.xy.map((value) => Number(value.toFixed(1))).join(", ");

const onImage = (mark) => mark.kind === "point" || mark.kind === "box";

function picture(row, place, k, images) {
  const size = k === 0 ? row.image_size : row.image_sizes[k] || (images[place] && images[place].size);
  if (place === null || !size) return html("p", { class: "missing" }, "image not embedded");
  const [width, height] = size;
  const image = html("img", { alt: `image of ${row.sample_id || "the sample"}`, "data-place": place });
  if (images[place].size[0] < FEW_PIXELS) image.classList.add("pixels");
  const film = row.strips.find((strip) => strip && strip.image === k);
  const wide = Math.max(IMAGE_HEIGHT * width / height, film ? FRAME_WIDTH * film.grid[0] : 0);
  const style = `aspect-ratio: ${width} / ${height}; width: min(100%, ${wide}px)`;
  const frame = html("div", { class: "frame", style }, image);
  if (film) frame.append(...captions(film));
  const marks = film ? [] : row.marks.filter((mark) => onImage(mark) && (mark.image || 0) === k);
  if (marks.length) {
    const unit = Math.max(width, height) / 100;
    const order = [...marks].sort((a, b) => (a.role === "prediction") - (b.role === "prediction"));
    const viewBox = `0 0 ${width} ${height}`;
    frame.append(svg("svg", { class: "overlay", viewBox, preserveAspectRatio: "none", "aria-hidden": "true" },
      ...order.map((mark) => drawMark(mark, unit))));
  }
  return frame;
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
  const pictures = row.images.map((place, k) => withTimeline(row, k, picture(row, place, k, images)));
  const beside = pictures.length - row.strips.filter(Boolean).length;  // a strip takes the whole width
  return html("article", { class: `card ${kind}`, "aria-label": `${VERDICTS[kind]}, ${when}` },
    html("header", {},
      html("span", { class: `badge ${kind}` }, VERDICTS[kind]), html("span", { class: "muted" }, when)),
    pictures.length ? html("div", { class: beside > 1 ? "pictures many" : "pictures" }, ...pictures) : null,
    ...textMarks(row.marks),
    html("pre", { class: "completion", tabindex: "0", "aria-label": "completion" }, row.completion || "(empty)"),
    html("p", { class: "answer" },
      html("span", { class: "muted" }, "answer "), row.answer === null ? "none" : html("code", {}, row.answer)),
    row.reason ? html("p", { class: "reason" }, row.reason) : null,
    ...farSpans(row).map((mark) => outsideNote(mark, `video: ${fromTo(mark)}`)),
    ...far.map((mark) => outsideNote(mark, `image: ${pixels(mark)}`)),
    numbers(row),
    html("details", {}, html("summary", {}, "Prompt"), html("pre", {}, row.prompt || "(none)"),
      html("p", { class: "muted" }, row.sample_id || "")));
}

function choices(name, legend, options) {
  const radios = Object.entries(options).map(([value, label], k) =>
    html("label", {}, html("input", { type: "radio", name, value, checked: k === 0 }), html("span", {}, label)));
  return html("fieldset", { class: "choices" }, html("legend", { class: "hidden" }, legend), ...radios);
}

function makeFilters(cards) {
  const count = (test) => cards.filter(test).length;
  const verdicts = { all: `all ${cards.length}` };
  for (const [kind, label] of Object.entries(VERDICTS)) {
    verdicts[kind] = `${label} ${count((row) => verdict(row) === kind)}`;
  }
  const steps = [...new Set(cards.map((row) => row.step))];
  const splits = [...new Set(cards.map((row) => row.split).filter(Boolean))];
  const named = Object.fromEntries(splits.map((split) => [split, split]));
  const option = (value, label) => html("option", { value }, label);
  return [
    html("label", { class: "control" }, "Step ",
      html("select", { name: "step" }, option("", "all"), ...steps.map((step) => option(step, format(step))))),
    choices("verdict", "Verdict", verdicts),
    splits.length > 1 ? choices("split", "Split", { "": "both", ...named }) : null,
    html("label", { class: "control search" },
      html("span", { class: "hidden" }, "Search in prompt, completion and answer"),
      html("input", { type: "search", name: "text", placeholder: "Search text" })),
  ].filter(Boolean);
}

function matches(row, wanted) {
  const text = [row.prompt, row.completion, row.answer, row.reason, row.sample_id].join("\n").toLowerCase();
  return (!wanted.get("step") || String(row.step) === wanted.get("step"))
    && (wanted.get("verdict") === "all" || verdict(row) === wanted.get("verdict"))
    && (!wanted.get("split") || row.split === wanted.get("split"))
    && text.includes(wanted.get("text").trim().toLowerCase());
}

// An image is decoded only when its card comes near the screen.
function loadWhenSeen(root, images) {
  const watcher = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      target.src = images[Number(target.dataset.place)].src;
      watcher.unobserve(target);
    }
  }, { rootMargin: "400px" });
  root.querySelectorAll("img").forEach((image) => watcher.observe(image));
}

function showGallery({ cards, images, saved_steps: saved }) {
  const root = byId("cards"), form = byId("filters");
  if (!cards.length) {
    form.hidden = true;
    return root.append(html("p", { class: "empty" }, "No rollouts saved yet."));
  }
  const steps = new Set(cards.map((row) => row.step)).size;
  byId("rollouts-note").textContent = `a sample: ${cards.length} rollouts of ${steps} of ${saved} saved steps`;
  byId("marks-legend").hidden = !cards.some((row) => row.marks.length);
  const nodes = cards.map((row) => makeCard(row, images));
  form.append(...makeFilters(cards));
  const filter = () => {
    const wanted = new FormData(form);
    cards.forEach((row, k) => { nodes[k].hidden = !matches(row, wanted); });
    const shown = nodes.filter((node) => !node.hidden).length;
    byId("count").textContent = shown ? `${shown} shown` : "No rollout matches these filters.";
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  root.append(...nodes);
  filter();
  loadWhenSeen(root, images);
}
