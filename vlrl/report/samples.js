// One sample over time and across runs: which one, at which step, and its rollouts in columns.

const MOST_OPTIONS = 500;
const CARD_WIDTH = 290;  // pixels at least
const MOST_COLUMNS = 4;

// Of [step, rollouts, right, failures]: right where most are.
function standing(counts) {
  if (!counts) return "none";
  const [, n, right, failed] = counts;
  if (2 * right >= n) return "right";
  return 2 * failed > n ? "failure" : "wrong";
}

// Samples that most runs met come first, then those met at most steps, then those whose standing changed.
function bySharing(indexes) {
  const found = new Map();
  indexes.forEach((index) => Object.entries(index).forEach(([sample, steps]) => {
    const one = found.get(sample) || found.set(sample, { sample, runs: 0, met: new Set(), kinds: new Set() }).get(sample);
    one.runs += 1;
    for (const counts of steps) {
      one.met.add(counts[0]);
      one.kinds.add(standing(counts));
    }
  }));
  const order = (a, b) => b.runs - a.runs || b.steps - a.steps || b.kinds.size - a.kinds.size || (a.sample < b.sample ? -1 : 1);
  return [...found.values()].map((one) => ({ ...one, steps: one.met.size })).sort(order);
}

const stepsOfSample = (indexes, sample) =>
  [...new Set(indexes.flatMap((index) => (index[sample] || []).map((counts) => counts[0])))].sort((a, b) => a - b);

function stepButton(step, indexes, sample, go) {
  const dots = indexes.map((index) => {
    const kind = standing((index[sample] || []).find((counts) => counts[0] === step));
    return html("i", { class: kind, title: VERDICTS[kind] || "not saved" });
  });
  const node = html("button", { type: "button", "data-step": step, "aria-label": `step ${step}` },
    html("span", {}, ...dots), format(step));
  node.addEventListener("click", go);
  return node;
}

// The rollout of a sample at a step; of a group's several, the `member`-th and a button for the next.
function cell(shown, step, saved, member, next, now) {
  const rows = shown ? shown.cards.filter((row) => row.step === step) : [];
  if (!rows.length) {
    const why = saved ? "loading" : `not saved at step ${format(step)}`;
    return html("div", { class: now ? "now" : null }, html("p", { class: "empty" }, why));
  }
  const k = member % rows.length;
  const card = makeCard(rows[k], shown.images);
  loadWhenSeen(card, shown.images);
  if (rows.length === 1) return html("div", { class: now ? "now" : null }, card);
  const button = html("button", { type: "button", class: "members" }, `rollout ${k + 1} of ${rows.length}`);
  button.addEventListener("click", next);
  return html("div", { class: now ? "now" : null }, button, card);
}

// The steps that stand side by side: `at` and those before it.
function beside(steps, at, width) {
  const count = Math.max(1, Math.min(MOST_COLUMNS, steps.length, Math.floor(width / CARD_WIDTH)));
  const end = Math.max(at, count - 1);
  return steps.slice(end - count + 1, end + 1);
}
