// Charts: {title, note, wide, series: [{name, points: [[step, value]], band: [[step, low, high]], smooth}]}.

const MARGIN = { top: 10, right: 14, bottom: 24, left: 46 };
const COLOURS = 8;

function colour(index) {
  return `--line: var(--c${index % COLOURS})`;
}

// Exponential moving average, corrected for its start (a plain one would begin at 0). Gaps stay gaps.
function smoothed(points, weight) {
  let sum = 0, mass = 0;
  return points.map(([step, value]) => {
    if (value === null) return [step, null];
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return [step, sum / mass];
  });
}

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / size - 1e-6); k * size <= high + size * 1e-6; k++) found.push(k * size);
  return { size, found };
}

function tickText(value, size) {
  const clean = Number(value.toPrecision(10));
  if (clean === 0) return "0";
  if (size < 1e-4) return clean.toExponential();
  if (size >= 1000) return `${Number((clean / 1000).toFixed(2))}k`;
  return clean.toFixed(`${Number(size.toPrecision(3))}`.split(".")[1]?.length ?? 0);
}

function span(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value === null) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  const floor = low >= 0 ? 0 : -Infinity;  // room must not suggest a negative share
  return [Math.max(low - room, floor), high + room];
}

function path(points, x, y) {
  let d = "", pen = "M";
  for (const [step, value] of points) {
    if (value === null) { pen = "M"; continue; }
    d += `${pen}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  }
  return d;
}

function bandPath(band, x, y) {
  const edge = (rows, side) => rows.map((row) => `${x(row[0]).toFixed(1)} ${y(row[side]).toFixed(1)}`);
  return `M${[...edge(band, 1), ...edge([...band].reverse(), 2)].join("L")}Z`;
}

function nearest(points, step) {
  let best = null;
  for (const point of points) {
    if (point[1] !== null && (best === null || Math.abs(point[0] - step) <= Math.abs(best[0] - step))) best = point;
  }
  return best;
}

function makeChart(panel, range) {
  const values = panel.series.map((_, index) => html("b", { style: colour(index) }));
  const keys = panel.series.map((series, index) =>
    html("li", { style: colour(index) },
      html("i", { class: dashed(index) ? "key dashed" : "key" }), series.name, values[index]));
  const when = html("span", { class: "when" });
  const plot = svg("svg", { class: "plot", tabindex: "0", role: "slider", "aria-label": `${panel.title}, by step` });
  const note = panel.note ? html("span", { class: "muted" }, panel.note) : null;
  const node = html("figure", { class: panel.wide ? "chart wide" : "chart" },
    html("figcaption", {}, html("h4", {}, panel.title), note, when), html("ul", { class: "keys" }, ...keys), plot);
  const steps = [...new Set(panel.series.flatMap((s) => s.points.filter((p) => p[1] !== null).map((p) => p[0])))];
  steps.sort((a, b) => a - b);
  return { panel, range, node, plot, values, when, steps, cursor: null, lines: [] };
}

const dashed = (index) => index >= COLOURS;

function drawChart(chart, weight) {
  const width = chart.plot.clientWidth, height = chart.plot.clientHeight;
  if (width < 80) return;
  const { series } = chart.panel;
  const edges = series.flatMap((s) => (s.band || []).flatMap((row) => row.slice(1)));
  const [low, high] = span([...series.flatMap((s) => s.points.map((point) => point[1])), ...edges]);
  const [first, last] = chart.range;
  const x = (step) => MARGIN.left + (width - MARGIN.left - MARGIN.right) * (step - first) / (last - first || 1);
  const y = (value) => MARGIN.top + (height - MARGIN.top - MARGIN.bottom) * (high - value) / (high - low);
  chart.lines = series.map((s) => (s.smooth && weight > 0 ? smoothed(s.points, weight) : s.points));
  chart.x = x;
  chart.y = y;
  chart.plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.plot.replaceChildren(axes(chart, width, height, low, high),
    ...series.map((s, index) => drawSeries(s, chart.lines[index], index, x, y, weight)));
  chart.cursor = svg("g", { class: "cursor" });
  chart.plot.append(chart.cursor);
}

function axes(chart, width, height, low, high) {
  const group = svg("g", { class: "axes" });
  const bottom = height - MARGIN.bottom;
  const vertical = ticks(low, high, Math.floor(height / 45));
  for (const value of vertical.found) {
    const at = chart.y(value);
    group.append(svg("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }),
      svg("text", { x: MARGIN.left - 8, y: at + 4, "text-anchor": "end" }, tickText(value, vertical.size)));
  }
  const horizontal = ticks(chart.range[0], Math.max(chart.range[1], chart.range[0] + 1), Math.floor(width / 90));
  for (const step of horizontal.found.filter((value) => Number.isInteger(Number(value.toPrecision(10))))) {
    if (step > chart.range[1]) continue;
    group.append(svg("line", { x1: chart.x(step), x2: chart.x(step), y1: bottom, y2: bottom + 4 }),
      svg("text", { x: chart.x(step), y: height - 5, "text-anchor": "middle" },
        tickText(step, Math.max(1, horizontal.size))));
  }
  group.append(svg("line", { class: "base", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }),
    svg("text", { x: 2, y: height - 5 }, "step"));
  return group;
}

function drawSeries(series, line, index, x, y, weight) {
  const group = svg("g", { class: dashed(index) ? "series dashed" : "series", style: colour(index) });
  const known = line.filter((point) => point[1] !== null);
  const band = series.band || [];
  if (band.length > 1) group.append(svg("path", { class: "band", d: bandPath(band, x, y) }));
  if (series.smooth && weight > 0) group.append(svg("path", { class: "raw", d: path(series.points, x, y) }));
  group.append(svg("path", { class: "line", d: path(line, x, y) }));
  if (!series.smooth || known.length < 3) {
    for (const [step, low, high] of band) {
      group.append(svg("line", { class: "whisker", x1: x(step), x2: x(step), y1: y(low), y2: y(high) }));
    }
    const dots = known.length <= 60 ? known : [];
    group.append(...dots.map(([step, value]) => svg("circle", { cx: x(step), cy: y(value), r: 3 })));
  }
  return group;
}

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
    const dot = { cx: chart.x(drawn[0]), cy: chart.y(drawn[1]), r: 4, style: colour(index) };
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
  const { plot, steps } = chart;
  let index = steps.length - 1;
  const go = (to) => {
    index = Math.min(steps.length - 1, Math.max(0, to));
    show(steps[index]);
  };
  plot.addEventListener("pointermove", (event) => {
    const at = event.clientX - plot.getBoundingClientRect().left;
    const distance = (step) => Math.abs(chart.x(step) - at);
    go(steps.reduce((best, step, k) => (distance(step) < distance(steps[best]) ? k : best), 0));
  });
  plot.addEventListener("pointerleave", () => show(null));
  plot.addEventListener("focus", () => plot.matches(":focus-visible") && go(index));
  plot.addEventListener("blur", () => show(null));
  plot.addEventListener("keydown", (event) => {
    if (!(event.key in JUMPS)) return;
    event.preventDefault();
    go(index + JUMPS[event.key]);
  });
}

function showCurves(sections) {
  const root = byId("charts"), slider = byId("smoothing");
  const series = sections.flatMap((section) => section.charts.flatMap((panel) => panel.series));
  const all = series.flatMap(({ points }) => points.map((point) => point[0]));
  if (!all.length) {
    return root.append(html("p", { class: "empty" }, "No metrics yet: they appear after the first step."));
  }
  const range = all.reduce(([low, high], step) => [Math.min(low, step), Math.max(high, step)], [Infinity, -Infinity]);
  const charts = [];
  for (const section of sections) {
    const made = section.charts.map((panel) => makeChart(panel, range));
    charts.push(...made);
    root.append(html("h3", {}, section.title), html("div", { class: "grid" }, ...made.map((chart) => chart.node)));
  }
  let shown = null;
  const show = (step) => {
    shown = step;
    charts.forEach((chart) => showStep(chart, step));
  };
  const draw = () => {
    charts.forEach((chart) => drawChart(chart, Number(slider.value)));
    byId("smoothing-value").textContent = Number(slider.value).toFixed(2);
    show(shown);
  };
  charts.forEach((chart) => listen(chart, show));
  slider.addEventListener("input", draw);
  let width = 0;
  new ResizeObserver(() => {
    if (root.clientWidth === width) return;  // only taller: a legend wrapped
    width = root.clientWidth;
    draw();
  }).observe(root);
}
