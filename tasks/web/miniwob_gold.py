"""Solutions of MiniWoB++ pages: a script each that reads the page's elements and returns the next right action.

They look at the present state only, so they also find back from wrong actions. For demonstrations and for proving that
a page can be solved; a policy never sees any of this.
"""

from __future__ import annotations

_TOOLS = """
const q = s => document.querySelector(s), all = s => [...document.querySelectorAll(s)], goal = core.getUtterance();
const at = e => { const r = e.getBoundingClientRect();
  const spots = [[.5, .5], [.2, .5], [.8, .5], [.5, .2], [.5, .8], [.1, .1], [.9, .1], [.1, .9], [.9, .9]]
    .map(([u, v]) => [r.x + u * r.width, r.y + v * r.height]);
  return spots.find(p => e.contains(document.elementFromPoint(...p))) || spots[0]; };
const click = e => ['click', ...at(e)];
const quoted = i => [...goal.matchAll(/"([^"]*)"/g)][i || 0][1];
const whole = f => f.value !== '' && f.selectionEnd - f.selectionStart === f.value.length;
const fill = (f, text) => f.value === text ? null : document.activeElement !== f ? click(f)
  : f.value === '' || whole(f) ? ['type', text] : ['key', 'Control+A'];
const tick = wanted => {
  const b = all('#boxes label').find(l => l.querySelector('input').checked !== wanted(l.textContent));
  return click(b ? b.querySelector('input') : q('#subbtn')); };
const rolled = (b, down) => down ? b.scrollHeight - b.scrollTop - b.clientHeight < 2 : b.scrollTop < 2;
"""
_LABELLED = "return click(all('#area button').find(b => b.innerHTML === quoted()));"
_SUBMIT = "click(q('#subbtn'))"
_SOLUTIONS = {
    "circle-center": f"return q('#blue-circle') ? {_SUBMIT} : click(q('.black-circle'));",
    "click-button": _LABELLED,
    "click-checkboxes": "const names = goal.match(/Select (.*) and click/)[1].split(', ');"
    "return tick(text => names.includes(text));",
    "click-collapsible": f"return q('.ui-accordion-content').offsetParent ? {_SUBMIT} : click(q('#area h3'));",
    "click-color": "return click(q(`#area .color[data-color=${goal.match(/the (.*) colored/)[1]}]`));",
    "click-dialog": "return click(q('.ui-dialog button'));",
    "click-dialog-2": "return click(quoted() === 'x' ? q('.ui-dialog-titlebar button')"
    " : all('.ui-dialog-buttonset button').find(b => b.textContent.trim() === quoted()));",
    "click-link": "return click(all('.alink').find(a => a.innerHTML === quoted()));",
    "click-option": "const name = goal.match(/Select (.*) and click/)[1];"
    "const box = all('#boxes label').find(l => l.textContent === name).querySelector('input');"
    f"return box.checked ? {_SUBMIT} : click(box);",
    "click-shades": "const color = goal.match(/shades of (.*) and/)[1];"
    "const wrong = all('#area span').find(s => (s.dataset.color === color) !== (s.className === 'selected'));"
    "return click(wrong || q('#submit'));",
    "click-tab": "return click(q(`#area ul a[href='#tabs-${goal.match(/#(\\d)/)[1]}']`));",
    "click-test": f"return {_SUBMIT};",
    "click-test-2": f"return {_SUBMIT};",
    "click-widget": "return click(q(`#area [data-type='${quoted()}']`));",
    "drag-box": "const [s, b] = [q('#draggableSmall'), q('#draggableLarge')];"
    "const [r, t] = [s, b].map(e => e.getBoundingClientRect());"
    "const inside = r.x > t.x && r.y > t.y && r.right < t.right && r.bottom < t.bottom;"
    f"return inside ? {_SUBMIT} : ['drag', ...at(s), ...at(b)];",
    "enter-password": f"return fill(q('#password'), quoted()) || fill(q('#verify'), quoted()) || {_SUBMIT};",
    "enter-text": f"return fill(q('#tt'), quoted()) || {_SUBMIT};",
    "focus-text": "return click(q('#tt'));",
    "focus-text-2": "return click(q('#tt' + goal.match(/(\\d)/)[1]));",
    "grid-coordinate": "const name = goal.match(/\\(.*\\)/)[0]; return click(all('circle').find(c => c.id === name));",
    "identify-shape": "const t = q('#area_svg text');"
    "const kind = t ? (/\\d/.test(t.textContent) ? 'digit' : 'letter')"
    " : q('#area_svg circle') ? 'circle' : q('#area_svg rect') ? 'rectangle' : 'triangle';"
    "return click(q(`[data-type=${kind}]`));",
    "login-user": "return fill(q('#username'), quoted(0)) || fill(q('#password'), quoted(1)) || " + _SUBMIT + ";",
    "scroll-text-2": "const b = q('#text-area'), down = goal.includes('bottom');"
    f"return rolled(b, down) ? {_SUBMIT} : ['scroll', ...at(b), down ? 'down' : 'up'];",
    "simple-arithmetic": "const [, a, o, b] = q('#math-problem').textContent.match(/(\\d+) (.) (\\d+)/);"
    "const value = o === '+' ? +a + +b : o === '-' ? a - b : a * b;"
    f"return fill(q('#math-answer'), String(value)) || {_SUBMIT};",
    "unicode-test": _LABELLED,
}
GOLD = {page: _TOOLS + solution for page, solution in _SOLUTIONS.items()}
