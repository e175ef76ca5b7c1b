// Asks the served model about an image, and draws the points and boxes of its reply on it.

const settings = JSON.parse(byId("data").textContent);
let picture = null; // {src: data URL, width, height}

async function take(file) {
  const bitmap = await createImageBitmap(file), chosen = new DataTransfer();
  chosen.items.add(file);
  byId("file").files = chosen.files;  // its name stands there, also of one that was dropped
  const canvas = html("canvas", { width: bitmap.width, height: bitmap.height });
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  picture = { src: canvas.toDataURL("image/png"), width: bitmap.width, height: bitmap.height };
  show([]);
}

function show(marks) {
  byId("stage").hidden = false;
  const overlay = svg("svg", { viewBox: `0 0 ${picture.width} ${picture.height}`, "aria-hidden": "true" }, ...marks);
  byId("stage").replaceChildren(html("img", { src: picture.src, alt: "The image that is asked about" }), overlay);
}

// [x, y] and [x1, y1, x2, y2] of a reply: of its <answer>, where it has one
function readNumbers(text) {
  const answer = [...text.matchAll(/<answer>([^]*?)<\/answer>/g)].at(-1)?.[1] ?? text;
  const lists = [...answer.matchAll(/[[(]([^[\]()]*)[\])]/g)].map((found) => found[1].split(",").map(Number));
  return lists.filter((list) => [2, 4].includes(list.length) && list.every(Number.isFinite));
}

// frame: where [0, 0], [1, 0] and [0, 1] of the model's coordinates lie in the image, in pixels
function place([zero, first, second], u, v) {
  return [0, 1].map((axis) => zero[axis] + u * (first[axis] - zero[axis]) + v * (second[axis] - zero[axis]));
}

function draw(numbers, frame) {
  const [x, y] = place(frame, numbers[0], numbers[1]);
  if (numbers.length === 2) {
    const r = Math.max(picture.width, picture.height) / 50;
    return ["halo", "mark"].map((name) => svg("circle", { class: name, cx: x, cy: y, r }));
  }
  const [right, low] = place(frame, numbers[2], numbers[3]);
  const box = { x: Math.min(x, right), y: Math.min(y, low), width: Math.abs(right - x), height: Math.abs(low - y) };
  return ["halo", "mark"].map((name) => svg("rect", { class: name, ...box }));
}

async function ask() {
  const text = { type: "text", text: byId("question").value };
  const content = picture ? [{ type: "image_url", image_url: { url: picture.src } }, text] : [text];
  const body = { messages: [{ role: "user", content }], temperature: Number(byId("temperature").value), max_tokens: settings.most };
  const headers = { "Content-Type": "application/json" };
  if (byId("token").value) headers.Authorization = `Bearer ${byId("token").value}`;
  byId("state").textContent = "…";
  const start = performance.now();
  const response = await fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body) });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error?.message ?? response.statusText);
  const reply = answer.choices[0].message.content;
  byId("reply").hidden = false;
  byId("reply").textContent = reply;
  const marks = picture ? readNumbers(reply).flatMap((numbers) => draw(numbers, answer.frames[0])) : [];
  if (picture) show(marks);
  const seconds = ((performance.now() - start) / 1000).toFixed(1);
  byId("state").textContent = `${answer.usage.completion_tokens} tokens, ${seconds} s, marks: ${marks.length / 2}`;
}

const fail = (error) => { byId("state").textContent = String(error.message ?? error); };
byId("file").addEventListener("change", (event) => { if (event.target.files[0]) take(event.target.files[0]).catch(fail); });
byId("form").addEventListener("submit", (event) => { event.preventDefault(); ask().catch(fail); });
byId("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]).catch(fail);
});
document.addEventListener("paste", (event) => {
  if (event.clipboardData.files[0]) take(event.clipboardData.files[0]).catch(fail);
});
