// Starts the page of `vlrl view`: asks for what has changed, keeps what the reader has chosen.

const POLL = 1000;  // milliseconds
const { runs: names } = JSON.parse(byId("data").textContent);
const states = names.map((name) => ({ name, sections: null }));
const view = { indexes: names.map(() => ({})), shown: names.map(() => null), sample: null, step: null, member: 0 };
const stale = { curves: false, index: false, rollouts: names.map(() => false) };  // came, and is not drawn yet
const picker = byId("picker");
const updateCurves = makeCurves(byId("charts"), byId("smoothing"), byId("smoothing-value"));

function drawSteps() {
  const steps = stepsOfSample(view.indexes, view.sample), root = byId("steps");
  const focused = root.contains(document.activeElement);
  root.replaceChildren(...steps.map((step) => stepButton(step, view.indexes, view.sample, () => goTo(step))));
  const now = root.querySelector(`[data-step="${view.step}"]`);
  byId("back").disabled = steps.indexOf(view.step) <= 0;
  byId("on").disabled = steps.indexOf(view.step) === steps.length - 1;
  if (!now) return;
  now.setAttribute("aria-current", "step");
  root.scrollLeft = now.offsetLeft - root.offsetLeft - root.clientWidth / 2;
  if (focused) now.focus({ preventScroll: true });
}

function drawColumns() {
  const root = byId("columns"), steps = stepsOfSample(view.indexes, view.sample);
  if (!steps.length) return root.replaceChildren(html("p", { class: "empty" }, "No rollouts saved yet."));
  const columns = beside(steps, steps.indexOf(view.step), root.clientWidth);
  root.style.gridTemplateColumns = `repeat(${columns.length}, minmax(0, 1fr))`;
  const next = () => { view.member += 1; drawColumns(); };
  const saved = (run, step) => (view.indexes[run][view.sample] || []).some((counts) => counts[0] === step);
  root.replaceChildren(...names.flatMap((name, run) => [
    names.length > 1 ? html("h3", {}, name) : null,
    ...columns.map((step) =>
      cell(view.shown[run], step, saved(run, step), view.member, next, step === view.step)),
  ]).filter(Boolean));
  return undefined;
}

function draw() {
  drawSteps();
  drawColumns();
}

function goTo(step) {
  view.step = step;
  draw();
}

function move(by) {
  const steps = stepsOfSample(view.indexes, view.sample);
  const at = Math.min(steps.length - 1, Math.max(0, steps.indexOf(view.step) + by));
  if (steps.length) goTo(steps[at]);
}

function drawPicker() {
  const text = picker.elements.text.value.trim().toLowerCase(), select = picker.elements.sample;
  const all = bySharing(view.indexes), met = all.filter(({ sample }) => sample.toLowerCase().includes(text));
  const label = ({ sample, steps }) => `${sample} (${steps} ${steps === 1 ? "step" : "steps"})`;
  select.replaceChildren(...met.slice(0, MOST_OPTIONS).map((one) => html("option", { value: one.sample }, label(one))));
  byId("found").textContent = `${met.length.toLocaleString("en")} of ${all.length.toLocaleString("en")} samples`;
  if (!met.some(({ sample }) => sample === view.sample) && met.length) pick(met[0].sample);
  select.value = view.sample;
}

function pick(sample) {
  Object.assign(view, { sample, step: stepsOfSample(view.indexes, sample).at(-1) ?? null, member: 0 });
  names.forEach((_, run) => {
    view.shown[run] = null;
    delete tags[`rollouts ${run}`];
    stale.rollouts[run] = true;
  });
  picker.elements.sample.value = sample;
  draw();
  loadRollouts().catch(lost);
}

function moveSample(by) {
  const select = picker.elements.sample, to = select.options[select.selectedIndex + by];
  if (to) pick(to.value);
}

async function loadRollouts() {
  const sample = view.sample;
  await Promise.all(names.map(async (_, run) => {
    if (!stale.rollouts[run] || sample === null) return;
    const found = await ask(`rollouts ${run}`, `runs/${run}/rollouts?sample=${encodeURIComponent(sample)}`);
    if (sample !== view.sample) return;
    if (found) view.shown[run] = found;
    stale.rollouts[run] = false;
    drawColumns();
  }));
}

// Who looks at a sample's newest step stays at the newest.
function take(run, index) {
  const wasLast = stepsOfSample(view.indexes, view.sample).at(-1) === view.step;
  view.indexes[run] = index;
  const steps = stepsOfSample(view.indexes, view.sample);
  if (wasLast || !steps.includes(view.step)) view.step = steps.at(-1) ?? null;
  stale.index = stale.rollouts[run] = true;
}

async function follow(run) {
  const curves = await ask(`curves ${run}`, `runs/${run}/curves`);
  if (curves) {
    states[run] = curves;
    stale.curves = true;
  }
  const index = await ask(`samples ${run}`, `runs/${run}/samples`);
  if (index) take(run, index);
}

// Said once, not at every look: screen readers read it out.
function tellState(text) {
  if (byId("live").textContent !== text) byId("live").textContent = text;
}

const lost = () => tellState("The server does not answer: this is what it said last.");

async function look() {
  await Promise.all(names.map((_, run) => follow(run)));
  tellState("live: what the runs write appears here");
  if (stale.curves) {
    updateCurves(mergeRuns(states));
    byId("runs").replaceChildren(...states.map(runRow));
  }
  if (stale.index) {
    drawPicker();
    draw();
  }
  stale.curves = stale.index = false;
  await loadRollouts();
}

async function poll() {
  if (!document.hidden) await look().catch(lost);
  setTimeout(poll, POLL);
}

picker.addEventListener("submit", (event) => event.preventDefault());
picker.elements.text.addEventListener("input", drawPicker);
picker.elements.sample.addEventListener("change", () => pick(picker.elements.sample.value));
byId("back").addEventListener("click", () => move(-1));
byId("on").addEventListener("click", () => move(1));
onKeys({
  ArrowLeft: () => move(-1), ArrowRight: () => move(1), j: () => moveSample(1), k: () => moveSample(-1),
  m: () => { view.member += 1; drawColumns(); }, "/": () => searchWith(picker.elements.text),
});
let columnsWide = 0;
new ResizeObserver(() => {
  if (byId("columns").clientWidth === columnsWide) return;
  columnsWide = byId("columns").clientWidth;
  drawColumns();
}).observe(byId("columns"));
poll();
