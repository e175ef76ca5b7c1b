// A chart: {title, note, wide, series: [{name, points: [[step, value]], band: [[step, low, high]], smooth}]}.

const MARGIN = { top: 10, right: 14, bottom: 24, left: 54 };
const COLOURS = 8;

// A line may say its colour and whether it is dashed; else its place among the chart's lines does.
const colour = (series, index) => `--line: var(--c${(series.colour ?? index) % COLOURS})`;
const dashed = (series, index) => series.dashed ?? index >= COLOURS;

// The steps at which any of its lines has a value.
function stepsOf(panel) {
  const known = panel.series.flatMap((s) => s.points.filter((point) => point[1] !== null).map((point) => point[0]));
  return [...new Set(known)].sort((a, b) => a - b);
}

function makeChart(panel, range) {
  const values = panel.series.map((series, index) => html("b", { style: colour(series, index) }));
  const keys = panel.series.map((series, index) =>
    html("li", { style: colour(series, index) },
      html("i", { class: dashed(series, index) ? "key dashed" : "key" }), series.name, values[index]));
  const when = html("span", { class: "when" });
  const plot = svg("svg", { class: "plot", tabindex: "0", role: "slider", "aria-label": `${panel.title}, by step` });
  const note = panel.note ? html("span", { class: "muted" }, panel.note) : null;
  const node = html("figure", { class: panel.wide ? "chart wide" : "chart" },
    html("figcaption", {}, html("h4", {}, panel.title), note, when), html("ul", { class: "keys" }, ...keys), plot);
  return { panel, range, node, plot, values, when, steps: stepsOf(panel), cursor: null, lines: [] };
}

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
  const group = svg("g", { class: dashed(series, index) ? "series dashed" : "series", style: colour(series, index) });
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
