// Pictures of a rollout with what truth and prediction mark on them.

const IMAGE_HEIGHT = 280;  // pixels at most, so that tall images do not stretch a card
const FRAME_WIDTH = 60;  // pixels at least of a strip's frame, so that its time fits in
const FEW_PIXELS = 128;  // images smaller than this show their pixels as squares

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
  const image = html("img", { decoding: "async", alt: `image of ${row.sample_id || "the sample"}`, "data-place": place });
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
