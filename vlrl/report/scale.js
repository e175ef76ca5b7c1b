// Numbers to places: smoothing, ticks, and the paths of lines and bands.

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
