// The curves of several runs in one chart: a colour for each run, the second curve of a run dashed.

function mergeCharts(parts, title) {
  const most = Math.max(...parts.map(({ panel }) => panel.series.length));
  const series = parts.flatMap(({ run, name, panel }) => panel.series.map((one, k) => ({
    ...one, name: most === 1 ? name : `${name}: ${one.name}`, ...(most < 3 ? { colour: run, dashed: k > 0 } : {}),
  })));
  const { note, wide } = parts[0].panel;
  return { title, note, wide, series };
}

// states: [{name, sections}] -> sections; null where a run has not answered yet.
function mergeRuns(states) {
  const known = states.map((state, run) => ({ ...state, run })).filter(({ sections }) => sections);
  if (states.length === 1) return known.length ? known[0].sections : [];
  const found = new Map();  // section -> chart -> parts
  for (const { run, name, sections } of known) {
    for (const section of sections) {
      const charts = found.get(section.title) || found.set(section.title, new Map()).get(section.title);
      for (const panel of section.charts) {
        charts.set(panel.title, [...(charts.get(panel.title) || []), { run, name, panel }]);
      }
    }
  }
  return [...found].map(([title, charts]) =>
    ({ title, charts: [...charts].map(([chart, parts]) => mergeCharts(parts, chart)) }));
}
