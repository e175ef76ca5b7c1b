"""MiniWoB++ pages in a real browser, seen as screenshots and acted on by mouse and keyboard.

They come with the package `miniwob`; a few of our own, in its protocol, need what earlier screens showed (OWN).
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict
from collections.abc import Collection
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from PIL import Image

from tasks.agent_actions import AgentScreen, ScreenAction, ScreenService, Status
from tasks.web import browser
from vlrl.media import load_rgb
from vlrl.types import Split, UserError

# Solutions of MiniWoB++ pages: a script each that reads the page's elements and returns the next right action.
#
# They look at the present state only, so they also find back from wrong actions. For demonstrations and for proving
# that
# a page can be solved; a policy never sees any of this.

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
_LOGIN = f"fill(q('#username'), quoted(0)) || fill(q('#password'), quoted(1)) || {_SUBMIT}"
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
    "login-user": f"return {_LOGIN};",
    "login-user-popup": f"return q('#popup') ? click(q('#popup-cancel')) : {_LOGIN};",
    "multi-orderings": "const [, ...wanted] = goal.match(/for (.*) movies directed by (.*) from year (.*)\\./);"
    "const field = name => all('#area tr').find(row => row.textContent === name).querySelector('input');"
    "const names = ['Genre', 'Director', 'Year'], next = names.findIndex((name, i) => field(name).value !== wanted[i]);"
    "return next < 0 ? click(q('.final')) : fill(field(names[next]), wanted[next]);",
    "scroll-text-2": "const b = q('#text-area'), down = goal.includes('bottom');"
    f"return rolled(b, down) ? {_SUBMIT} : ['scroll', ...at(b), down ? 'down' : 'up'];",
    "simple-arithmetic": "const [, a, o, b] = q('#math-problem').textContent.match(/(\\d+) (.) (\\d+)/);"
    "const value = o === '+' ? +a + +b : o === '-' ? a - b : a * b;"
    f"return fill(q('#math-answer'), String(value)) || {_SUBMIT};",
    "unicode-test": _LABELLED,
    "recall-colors": "return click(tiles.right);",
    "one-back": "return click(tiles.right);",
}
GOLD = {page: _TOOLS + solution for page, solution in _SOLUTIONS.items()}


OWN = Path(__file__).with_name("agent_pages")  # pages of ours
SIZE = (160, 210)  # of a MiniWoB++ screen in pixels: 50 rows of instruction over 160 x 160
WINDOW = (500, 320)  # of the whole page, whose other parts show the score and are cut off
TABS = 8
REFRESH = 200  # episodes of one page before it is loaded anew, which frees what its scripts left behind
PATIENCE = 30  # seconds after which a browser that does not answer counts as dead
WAIT = 0.5  # seconds of the action `wait`
NOTCH = 100  # pixels that one scroll action turns the wheel
# No clock: an episode ends by its page or by its turns, so that a slow machine fails nobody. No animations, so that
# a screenshot shows the end of what an action began. No blinking caret, so that equal states look equal.
PREPARE = "if (window.jQuery) jQuery.fx.off = true; core.setDataMode(arguments[0]);"
STEADY = 'document.head.insertAdjacentHTML("beforeend", "<style>* { caret-animation: manual; }</style>");'
BEGIN = """core.endEpisode(0); core.EPISODE_MAX_TIME = 1e9; Math.seedrandom(arguments[0]); core.startEpisodeReal();
document.activeElement.blur();"""
STATUS = "return [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL, WOB_TASK_READY, core.getUtterance()];"


@cache
def folder() -> Path:
    """Where the installed package keeps its pages; UserError when it is not installed."""
    spec = find_spec("miniwob")
    if spec is None or spec.origin is None:
        raise UserError("miniwob is not installed: pip install 'vlrl[gui]'")
    return Path(spec.origin).parent / "html" / "miniwob"


def pages() -> tuple[str, ...]:
    """The names of all pages."""
    return tuple(sorted(file.stem for place in (folder(), OWN) for file in place.glob("*.html")))


def address(page: str) -> str:
    """Where a browser finds a page; ours are told where the package keeps the scripts that they share."""
    own = OWN / f"{page}.html"
    core = (folder().parent / "core").as_uri()
    return f"{own.as_uri()}?{core}" if own.exists() else (folder() / f"{page}.html").as_uri()


class MiniWob(AgentScreen):
    """One browser with a tab for each of the pages it played last: loading a page costs more than playing it."""

    NAME, PAGE, SOLVED = "browser", "a page of MiniWoB++", tuple(GOLD)
    SERVICE = f"{__name__}:MiniWobService"
    list_pages = staticmethod(pages)

    def __init__(self):
        self.chrome = browser.launch(WINDOW)
        self.chrome.command_executor.client_config.timeout = PATIENCE
        self.page = ""
        self._tabs: OrderedDict[str, str] = OrderedDict()  # page -> window handle, the last played at the end
        self._played: Counter[str] = Counter()
        self._spare = [self.chrome.current_window_handle]

    @property
    def pages(self) -> Collection[str]:
        """Those that need not be loaded."""
        return self._tabs.keys()

    def begin(self, page: str, seed: str, split: Split) -> None:
        """Starts the page's episode of that seed."""
        self._open(page, split)
        self.page = page
        self._played[page] += 1
        self.chrome.execute_script(BEGIN, seed)
        for _ in range(50):
            if self.chrome.execute_script(STATUS)[2]:
                return
        raise TimeoutError(f"the page {page} did not become ready")

    def _open(self, page: str, split: Split) -> None:
        """Brings the page's tab to the front, loading it where it is not loaded or has been played often."""
        if page in self._tabs and self._played[page] < REFRESH:
            self._tabs.move_to_end(page)
            if page != self.page:
                self.chrome.switch_to.window(self._tabs[page])
        else:
            self.chrome.switch_to.window(self._tabs.pop(page, None) or self._free_tab())
            browser.resize(self.chrome, WINDOW)
            self.chrome.get(address(page))
            self.chrome.execute_script(STEADY)
            self._tabs[page], self._played[page] = self.chrome.current_window_handle, 0
        self.chrome.execute_script(PREPARE, split)

    def _free_tab(self) -> str:
        if self._spare:
            return self._spare.pop()
        if len(self._tabs) >= TABS:
            return self._tabs.popitem(last=False)[1]
        self.chrome.switch_to.new_window("tab")
        return self.chrome.current_window_handle

    def status(self) -> Status:
        done, reward, _, goal = self.chrome.execute_script(STATUS)
        return Status(bool(done), float(reward), goal if isinstance(goal, str) else goal["utterance"])

    def look(self) -> Image.Image:
        """The screen, RGB, SIZE pixels."""
        clip = {"x": 0, "y": 0, "width": SIZE[0], "height": SIZE[1], "scale": 1}
        how = {"format": "png", "optimizeForSpeed": True, "clip": clip}
        shot = self.chrome.execute_cdp_cmd("Page.captureScreenshot", how)
        return load_rgb(base64.b64decode(shot["data"]))

    def act(self, action: ScreenAction) -> None:
        """What a hand would do; points in pixels of the screen. `done` does nothing."""
        from selenium.webdriver.common.action_chains import ActionChains

        chain = ActionChains(self.chrome, duration=0)
        _ADD[action.kind](chain, action)
        chain.perform()

    def gold(self) -> ScreenAction | None:
        """The next right action by the page's own elements; None for a page that we know no solution of."""
        if self.page not in GOLD:
            return None
        kind, *arguments = self.chrome.execute_script(GOLD[self.page])
        numbers = [value for value in arguments if isinstance(value, int | float)]
        points = tuple(zip(numbers[::2], numbers[1::2], strict=True))
        return ScreenAction(kind, points, next((word for word in arguments if isinstance(word, str)), ""))

    def quit(self) -> None:
        browser.end(self.chrome)


class MiniWobService(ScreenService):
    """A worker's browser."""

    make_screen = MiniWob


def _pointer(chain, point):
    chain.w3c_actions.pointer_action.move_to_location(*map(math.floor, point))
    return chain.w3c_actions.pointer_action


def _click(chain, action: ScreenAction) -> None:
    _pointer(chain, action.points[0]).click()


def _drag(chain, action: ScreenAction) -> None:
    start, end = action.points
    halfway = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2  # a drag begins when the pressed pointer moves
    _pointer(chain, start).pointer_down()
    _pointer(chain, halfway)
    _pointer(chain, end).pointer_up()


def _scroll(chain, action: ScreenAction) -> None:
    across, along = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}[action.word]
    x, y = map(math.floor, action.points[0])
    chain.w3c_actions.wheel_action.scroll(x=x, y=y, delta_x=NOTCH * across, delta_y=NOTCH * along, duration=0)


def _key(chain, action: ScreenAction) -> None:
    from selenium.webdriver.common.keys import Keys

    if action.word.startswith("Control+"):
        letter = action.word[-1].lower()
        chain.key_down(Keys.CONTROL).send_keys(letter).key_up(Keys.CONTROL)
    else:
        names = {"PageUp": "PAGE_UP", "PageDown": "PAGE_DOWN"}
        name = names.get(action.word) or "".join(f"_{c}" if c.isupper() and i else c for i, c in enumerate(action.word))
        chain.send_keys(getattr(Keys, name.upper()))


_ADD = {
    "click": _click,
    "type": lambda chain, action: chain.send_keys(action.word),
    "key": _key,
    "scroll": _scroll,
    "drag": _drag,
    "wait": lambda chain, action: chain.pause(WAIT),
    "done": lambda chain, action: None,
}
