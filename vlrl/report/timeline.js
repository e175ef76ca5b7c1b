// Strips of videos: {image, grid: [columns, rows], times, axis: [start, end]} in seconds. Captions, spans on an axis.

const TICKS = 4;
const APART = 0.15;  // of the axis: a tick's label that is nearer to the last one would run into it

const rounded = (value) => Number(value.toFixed(value < 100 ? 2 : 1));
const seconds = (value) => `${rounded(value)} s`;
const fromTo = ({ xy: [start, end] }) => `${rounded(start)} to ${seconds(end)}`;

// The time of each frame, in its lower left corner.
function captions({ grid: [columns, rows], times }) {
  return times.map((time, k) => {
    const left = 100 * (k % columns) / columns, top = 100 * (Math.floor(k / columns) + 1) / rows;
    return html("span", { class: "time", style: `left: ${left}%; top: ${top}%` }, seconds(time));
  });
}

const spansOf = (row, strip) => row.marks.filter(
  (mark) => mark.kind === "span" && strip !== null && row.strips[mark.image || 0] === strip);

// A clip's axis grows to its truths: frames may end before them.
function axisOf(strip, spans) {
  const known = spans.filter((mark) => mark.role === "truth").flatMap((mark) => mark.xy);
  return [Math.min(strip.axis[0], ...known), Math.max(strip.axis[1], ...known)];
}

function farSpans(row) {
  return row.strips.flatMap((strip) => {
    const spans = spansOf(row, strip), [start, end] = strip ? axisOf(strip, spans) : [];
    return spans.filter((mark) => mark.xy.some((time) => time < start || time > end));
  });
}

function lane(role, marks, share) {
  const bars = marks.map((mark) => {
    const [left, right] = [...mark.xy].sort((a, b) => a - b).map(share);
    const style = `left: min(${left}%, 100% - 3px); width: ${right - left}%`;
    return html("i", { style, title: `${role}: ${fromTo(mark)}` });
  });
  const long = seconds(marks.reduce((sum, { xy: [start, end] }) => sum + Math.abs(end - start), 0));
  return [html("span", { class: "muted" }, role), html("div", { class: `lane ${role}` }, ...bars),
    html("span", { class: "length" }, long)];
}

// Ticks where frames were taken, numbers at both ends and at round times between.
function timeAxis(strip, [start, end], share) {
  const { size, found } = ticks(start, end, TICKS);
  const round = found.filter((time) => Math.min(time - start, end - time) / (end - start) > APART);
  const label = (time, text) => html("span", { style: `left: ${share(time)}%` }, text);
  return html("div", { class: "axis" },
    ...strip.times.map((time) => html("i", { style: `left: ${share(time)}%` })),
    label(start, `${rounded(start)}`), ...round.map((time) => label(time, tickText(time, size))),
    label(end, seconds(end)));
}

function timeline(strip, spans) {
  const [start, end] = axisOf(strip, spans);
  const share = (time) => 100 * Math.min(1, Math.max(0, (time - start) / (end - start)));
  const roles = ["truth", "prediction"].map((role) => [role, spans.filter((mark) => mark.role === role)]);
  const shown = roles.filter(([, marks]) => marks.length);
  const said = shown.map(([role, marks]) => `${role} ${marks.map(fromTo).join(", ")}`).join("; ");
  return html("div", { class: "timeline", role: "img", "aria-label": `${said}; shown ${fromTo({ xy: [start, end] })}` },
    ...shown.flatMap(([role, marks]) => lane(role, marks, share)), timeAxis(strip, [start, end], share));
}

// A video's strip with the spans of time that marks name below it; other pictures stay as they are.
function withTimeline(row, k, shown) {
  const strip = row.strips.find((one) => one && one.image === k);
  const spans = strip ? spansOf(row, strip) : [];
  return strip ? html("div", { class: "film" }, shown, spans.length ? timeline(strip, spans) : null) : shown;
}
