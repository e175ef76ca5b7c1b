"""What a test asks of any page in a browser."""

from __future__ import annotations

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"

# [contrast, text, colour, background] of the texts that are hardest to read (WCAG 2: 4.5, or 3 for large ones).
# A canvas turns whatever the browser computes into bytes; backgrounds are laid over each other from the page up.
FAINT = """(() => {
  const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const over = (colours) => {
    pen.clearRect(0, 0, 1, 1);
    for (const colour of colours) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (bytes) => bytes.map((byte) => byte / 255).map((c) => (c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4))
    .reduce((sum, c, k) => sum + c * [.2126, .7152, .0722][k], 0);
  const behind = (node) => (node ? [...behind(node.parentElement), getComputedStyle(node).backgroundColor] : []);
  const faint = new Map();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement, text = walk.currentNode.data.trim();
    if (!text || node.closest("script, style, noscript, .hidden, .skip, option, :disabled") || !node.getClientRects().length) continue;
    const style = getComputedStyle(node), size = parseFloat(style.fontSize);
    const back = behind(node), colour = node.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(over([...back, colour])), light(over(back))];
    const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    const enough = size >= 24 || (size >= 18.6 && style.fontWeight >= 600) ? 3 : 4.5;
    if (contrast < enough) faint.set(`${colour} on ${back}`, [contrast.toFixed(2), text.slice(0, 30), node.className]);
  }
  return [...faint];
})()"""  # noqa: E501

CONTROLS = {"button", "slider", "searchbox", "radio", "combobox", "image", "link", "textbox", "spinbutton", "img"}


def find_controls(page) -> list[tuple[str, str]]:
    """Role and name of every control and picture that a screen reader comes to. Asserts that none lacks its name."""
    page.call("Accessibility.enable")
    nodes = [node for node in page.call("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
    listed = [(node.get("role", {}).get("value"), node.get("name", {}).get("value", "").strip()) for node in nodes]
    controls = [(role, name) for role, name in listed if role in CONTROLS]
    assert [role for role, name in controls if not name] == []
    return controls


def checked(page) -> None:
    """Asserts what holds for every page: it fits, is readable, ran nothing that a model wrote, and says no error."""
    assert page.run(OVERFLOW) == 0
    assert page.run(FAINT) == []
    assert page.run("typeof window.hacked") == "undefined"
    assert page.complaints() == []
