// The cards of a page: filters, keys, and how many of how many are shown.

const WHY = {
  even: "even sample", failure: "parse failure", best: "best", worst: "worst", surprising: "surprising",
};

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
  const whys = Object.keys(WHY).filter((why) => cards.some((row) => row.why === why));
  const option = (value, label) => html("option", { value }, label);
  const select = (title, name, ...options) => html("label", { class: "control" }, `${title} `,
    html("select", { name }, option("", "all"), ...options));
  return [
    steps.length > 1 ? select("Step", "step", ...steps.map((step) => option(step, format(step)))) : null,
    whys.length > 1 ? select("Chosen as", "why", ...whys.map((why) => option(why, WHY[why]))) : null,
    choices("verdict", "Verdict", verdicts),
    splits.length > 1 ? choices("split", "Split", { "": "both", ...named }) : null,
    html("label", { class: "control search" },
      html("span", { class: "hidden" }, "Search in prompt, completion and answer"),
      html("input", { type: "search", name: "text", placeholder: "Search text" })),
  ].filter(Boolean);
}

function matches(row, wanted) {
  const is = (name, value) => !wanted.get(name) || String(value) === wanted.get(name);
  const said = row.turns.flatMap((turn) => turn.messages.flatMap((each) => [...each.content, ...each.calls]));
  const text = [row.prompt, row.completion, row.answer, row.reason, row.sample_id, ...said].join("\n").toLowerCase();
  return is("step", row.step) && is("why", row.why) && is("split", row.split)
    && (wanted.get("verdict") === "all" || verdict(row) === wanted.get("verdict"))
    && text.includes(wanted.get("text").trim().toLowerCase());
}

// j, k and the arrows move from card to card, / goes to the search.
function cardKeys(root, search) {
  const go = (by, only) => (event) => {
    const on = event.target.closest("article");
    if (only && event.target !== on) return false;  // up and down scroll, but for a card that has the focus
    const shown = [...root.children].filter((node) => !node.hidden);
    const next = shown[on ? shown.indexOf(on) + by : shown.findIndex((node) => node.getBoundingClientRect().bottom > 64)];
    if (!next) return true;
    next.focus({ focusVisible: true, preventScroll: true });
    next.scrollIntoView({ block: "nearest", behavior: "instant" });
    return true;
  };
  onKeys({
    j: go(1), k: go(-1), ArrowRight: go(1), ArrowLeft: go(-1), ArrowDown: go(1, true), ArrowUp: go(-1, true),
    "/": () => searchWith(search),
  });
}

// The two newest right rollouts and the two newest others, each of another sample: what a reader looks at first.
function pickFew(cards) {
  const distinct = cards.filter((row, k) => cards.findIndex((other) => other.sample_id === row.sample_id) === k);
  const some = (right) => distinct.filter((row) => (verdict(row) === "right") === right).slice(0, 2);
  return [...some(true), ...some(false)];
}

// How many rollouts, of how many that were read, of how many of the saved steps.
function howMany({ rollouts, steps, read, of_steps: saved }) {
  const counts = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
  const all = rollouts === read ? `all ${counts(read, "rollout")}` : `${rollouts} of ${counts(read, "rollout")}`;
  if (!saved) return all;
  return `${all}, of ${steps === saved ? counts(saved, "saved step") : `${steps} of ${counts(saved, "saved step")}`}`;
}

function showGallery({ cards, images, shown }) {
  const root = byId("cards"), form = byId("filters"), strip = byId("strip");
  if (!cards.length) {
    form.hidden = true;
    return root.append(html("p", { class: "empty" }, "No rollouts saved yet."));
  }
  byId("rollouts-note").textContent = howMany(shown);
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
  if (strip) {
    strip.hidden = false;
    strip.lastElementChild.append(...pickFew(cards).map((row) => makeCard(row, images)));
    loadWhenSeen(strip, images);
  }
  loadWhenSeen(root, images);
  cardKeys(root, form.elements.text);
}
