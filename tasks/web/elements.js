// What can be clicked on this page, as its reader meets it: [{role, name, bare, box, flaw}], boxes in CSS pixels.
const CLICKABLE = [
  "a[href]", "button", "input:not([type=hidden])", "select", "textarea", "summary", "[onclick]",
  "[contenteditable=''], [contenteditable=true]",
  ...["button", "link", "checkbox", "radio", "switch", "tab", "menuitem", "option", "combobox", "searchbox", "textbox",
    "slider", "treeitem"].map((role) => `[role=${role}]`),
].join(", ");
const QUARTERS = [[0.5, 0.5], [0.25, 0.25], [0.75, 0.25], [0.25, 0.75], [0.75, 0.75]];

const shown = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
const parts = (element) => [...element.getClientRects()].filter((part) => part.width > 0 && part.height > 0);
const meets = (box) => box.right > 0 && box.bottom > 0 && box.left < innerWidth && box.top < innerHeight;
const fits = (box) => box.left >= 0 && box.top >= 0 && box.right <= innerWidth && box.bottom <= innerHeight;
const answers = (element, box) => QUARTERS.every(([x, y]) => {
  const hit = document.elementFromPoint(box.left + x * box.width, box.top + y * box.height);
  return hit !== null && hit.closest(CLICKABLE) === element;
});

const stacked = (boxes) => boxes.some((one) => boxes.some((other) => one.bottom <= other.top));

function flaw(element, box) {
  if (element.matches(":disabled, [aria-disabled=true]")) return "disabled";
  if (stacked(parts(element))) return "broken over lines";
  if (!fits(box)) return "cut by the edge";
  return answers(element, box) ? null : "covered";
}

function described(element) {
  const box = element.getBoundingClientRect();
  const text = (element.innerText ?? "").trim();
  return {
    role: element.computedRole ?? "",
    name: element.computedName || text || element.title || "",
    bare: !text && !element.value,
    box: [box.left, box.top, box.right, box.bottom],
    flaw: flaw(element, box),
  };
}

for (const moving of document.getAnimations()) {
  try { moving.finish(); } catch { moving.cancel(); } // one without end
}
document.activeElement?.blur(); // no blinking caret
const found = [...document.querySelectorAll(CLICKABLE)].filter((e) => shown(e) && parts(e).some(meets));
return { language: document.documentElement.lang, elements: found.map(described) };
