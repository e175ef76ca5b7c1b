// Reading the charts: one step across the page, by pointer or keys; and what they do when a run has grown.

// Writes the values at `step` (null: the last) into the legend and moves the cursor there.
function showStep(chart, step) {
  if (!chart.cursor) return;
  const at = step === null ? chart.steps[chart.steps.length - 1] : step;
  chart.cursor.replaceChildren();
  if (step !== null) {
    const x = chart.x(at), bottom = chart.plot.viewBox.baseVal.height - MARGIN.bottom;
    chart.cursor.append(svg("line", { x1: x, x2: x, y1: MARGIN.top, y2: bottom }));
  }
  const said = chart.panel.series.map((series, index) => {
    const raw = nearest(series.points, at), drawn = nearest(chart.lines[index], at);
    const band = (series.band || []).find((row) => row[0] === raw[0]);
    const interval = band ? ` [${format(band[1])}, ${format(band[2])}]` : "";
    const text = format(raw[1]) + interval + (raw[0] === at ? "" : ` at ${raw[0]}`);
    const smooth = drawn[1] === raw[1] ? "" : ` smooth ${format(drawn[1])}`;
    chart.values[index].replaceChildren(text, html("small", {}, smooth));
    const dot = { cx: chart.x(drawn[0]), cy: chart.y(drawn[1]), r: 4, style: colour(series, index) };
    if (step !== null) chart.cursor.append(svg("circle", dot));
    return `${series.name} ${text}`;
  });
  chart.when.textContent = `step ${format(at)}`;
  chart.plot.setAttribute("aria-valuemin", chart.range[0]);
  chart.plot.setAttribute("aria-valuemax", chart.range[1]);
  chart.plot.setAttribute("aria-valuenow", at);
  chart.plot.setAttribute("aria-valuetext", `step ${at}: ${said.join(", ")}`);
}

const JUMPS = {
  ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity,
};

// `show(step)` tells all charts: one step is read across the page.
function listen(chart, show) {
  const { plot } = chart;
  let index = Infinity;  // the last
  const go = (to) => {
    const { steps } = chart;
    index = Math.min(steps.length - 1, Math.max(0, to));
    show(steps[index]);
  };
  plot.addEventListener("pointermove", (event) => {
    const at = event.clientX - plot.getBoundingClientRect().left;
    const distance = (step) => Math.abs(chart.x(step) - at);
    go(chart.steps.reduce((best, step, k, steps) => (distance(step) < distance(steps[best]) ? k : best), 0));
  });
  plot.addEventListener("pointerleave", () => show(null));
  plot.addEventListener("focus", () => plot.matches(":focus-visible") && go(index));
  plot.addEventListener("blur", () => show(null));
  plot.addEventListener("keydown", (event) => {
    if (!(event.key in JUMPS)) return;
    event.preventDefault();
    go(Math.min(index, chart.steps.length - 1) + JUMPS[event.key]);
  });
}

function extent(sections) {
  const series = sections.flatMap((section) => section.charts.flatMap((panel) => panel.series));
  const steps = series.flatMap(({ points }) => points.map((point) => point[0]));
  return steps.reduce(([low, high], step) => [Math.min(low, step), Math.max(high, step)], [Infinity, -Infinity]);
}

// Which charts with which lines: while this is the same, new points go into the charts that are there.
const outline = (sections) => JSON.stringify(sections.map(({ title, charts }) =>
  [title, charts.map((panel) => [panel.title, panel.note, panel.series.map((series) => series.name)])]));

// Returns `update(sections)`: [{title, charts}]. What the reader has focused or pointed at stays.
function makeCurves(root, slider, output) {
  let charts = [], shown = null, drawn = "";
  const show = (step) => {
    shown = step;
    charts.forEach((chart) => showStep(chart, step));
  };
  const draw = () => {
    charts.forEach((chart) => drawChart(chart, Number(slider.value)));
    output.textContent = Number(slider.value).toFixed(2);
    show(shown);
  };
  const build = (sections, range) => {
    charts = [];
    root.replaceChildren(...sections.flatMap((section) => {
      const made = section.charts.map((panel) => makeChart(panel, range));
      charts.push(...made);
      const grid = html("div", { class: "grid" }, ...made.map((chart) => chart.node));
      if (!section.fold) return [html("h3", {}, section.title), grid];
      const titles = section.charts.map((panel) => panel.title).join(", ");
      const fold = html("details", { class: "still" }, html("summary", {}, `${section.title}: ${titles}`), grid);
      fold.addEventListener("toggle", draw);  // what is folded has no width
      return [fold];
    }));
    charts.forEach((chart) => listen(chart, show));
  };
  const update = (sections) => {
    const range = extent(sections), found = outline(sections);
    if (range[0] > range[1]) {
      drawn = "";
      charts = [];
      return root.replaceChildren(html("p", { class: "empty" }, "No metrics yet: they appear after the first step."));
    }
    const panels = sections.flatMap((section) => section.charts);
    if (found === drawn) charts.forEach((chart, k) => Object.assign(chart, { panel: panels[k], range, steps: stepsOf(panels[k]) }));
    else build(sections, range);
    drawn = found;
    return draw();
  };
  let width = 0;
  new ResizeObserver(() => {
    if (root.clientWidth === width) return;  // only taller: a legend wrapped
    width = root.clientWidth;
    draw();
  }).observe(root);
  slider.addEventListener("input", draw);
  return update;
}
