"""A Linux desktop on a screen of its own (Xvfb): a calculator and a text editor, seen as screenshots and acted on by
mouse and keyboard.

Success is what the applications leave behind: a file, or the clipboard. Scripted solutions read the accessibility tree
(AT-SPI); a policy never sees it. Needs Debian's packages, which `make system` installs, and `jeepney`
(`pip install 'vlrl[desktop]'`).
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from tasks.agent_actions import AgentScreen, ScreenAction, ScreenService, Status
from vlrl.system.children import end_child, start_child
from vlrl.types import Split, UserError, first_line

SIZE = (720, 400)  # of the screen in pixels
PATIENCE = 30.0  # seconds after which a server or an application that does not answer counts as dead
WAIT = 0.5  # seconds of the action `wait`
QUIET = 0.06  # seconds between two looks at the screen; it is still once STILL of them in a row are equal
STILL = 5
STILL_DIALOG = 13  # behind an action on a file dialog: GTK carries out what was entered up to 0.5 s later
MAX_UNREST = 10.0  # seconds after which a screen that still moves is taken as it is
PACKAGES = {
    "Xvfb": "xvfb", "openbox": "openbox", "dbus-daemon": "dbus", "xdotool": "xdotool", "xclip": "xclip",
    "mate-calc": "mate-calc", "l3afpad": "l3afpad",
}  # fmt: skip
LAUNCHER = Path("/usr/libexec/at-spi-bus-launcher")
CALCULATOR, EDITOR, NOTES = "mate-calc", "l3afpad", "notes.txt"

# Nothing that depends on time: no blinking caret, no animations, no double clicks.
SETTINGS = """[Settings]
gtk-cursor-blink=0
gtk-enable-animations=0
gtk-double-click-time=1
gtk-font-name=DejaVu Sans 9
"""
PLACE = (
    '<application name="{}" type="normal"><position force="yes"><x>{}</x><y>0</y></position>'
    "<size><width>{}</width><height>{}</height></size></application>"
)
CLICKS = (
    '<context name="{}"><mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/>'
    "</mousebind></context>"
)
WINDOWS = f"""<openbox_config xmlns="http://openbox.org/3.4/rc">
<theme><titleLayout>LC</titleLayout></theme><desktops><number>1</number></desktops>
<mouse><doubleClickTime>1</doubleClickTime>{CLICKS.format("Client")}{CLICKS.format("Titlebar")}
<context name="Close"><mousebind button="Left" action="Click"><action name="Close"/></mousebind></context></mouse>
<applications>{PLACE.format(EDITOR, 0, 306, 340)}{PLACE.format(CALCULATOR, 310, 408, 262)}</applications>
</openbox_config>
"""


class DesktopFaultError(OSError):
    """A server or an application has died, or does not answer."""


@dataclass(frozen=True)
class DesktopTask:
    """One variant of a task: what is there at the start, when it is done, and the next right action."""

    goal: str
    applications: tuple[str, ...]
    is_done: Callable[[Desktop], bool]
    solve: Callable[[Desktop], ScreenAction]
    notes: str = ""  # the text of notes.txt


class Desktop(AgentScreen):
    """One screen, with a window manager and a home folder that each episode finds anew.

    Raises OSError or subprocess.TimeoutExpired when something of it has died; UserError where a program is not
    installed.
    """

    NAME, PAGE = "desktop", "a task of the desktop"
    SOLVED = ("compute", "write-line", "replace-word", "save-as", "note-result")
    SERVICE = f"{__name__}:DesktopService"

    @staticmethod
    def list_pages() -> tuple[str, ...]:
        """The names of all tasks."""
        return tuple(TASKS)

    def __init__(self):
        check_programs()
        self.folder = Path(tempfile.mkdtemp(prefix="vlrl_desktop_"))
        self._processes: dict[str, subprocess.Popen[Any]] = {}
        self._task: DesktopTask | None = None
        self._bus: Accessibility | None = None
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.folder),
            "LC_ALL": "C.UTF-8", "TZ": "UTC", "GDK_BACKEND": "x11", "GSETTINGS_BACKEND": "memory",
        }  # fmt: skip
        try:
            self._start_servers()
        except BaseException:
            self.quit()
            raise

    @property
    def task(self) -> DesktopTask:
        """The one that is played."""
        if self._task is None:
            raise RuntimeError("a desktop is used after `begin`")
        return self._task

    @property
    def accessibility(self) -> Accessibility:
        if self._bus is None:
            self._bus = Accessibility(self.environment["DBUS_SESSION_BUS_ADDRESS"])
        return self._bus

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def pages(self) -> Collection[str]:
        """Those that need no start: none."""
        return ()

    def _start_servers(self) -> None:
        self._write_home("")
        screen = "x".join(map(str, (*SIZE, 24)))
        options = ("-screen", "0", screen, "-fbdir", str(self.folder), "-nolisten", "tcp", "-nocursor")
        self.environment["DISPLAY"] = f":{self._start_server('Xvfb', *options, '-displayfd')}"
        options = ("--session", "--nofork", "--print-address")
        self.environment["DBUS_SESSION_BUS_ADDRESS"] = self._start_server("dbus-daemon", *options)
        self._start("openbox", "--sm-disable")

    def _start_server(self, program: str, *arguments: str) -> str:
        """The first line that a program writes to the descriptor whose number is its last argument."""
        reader, writer = os.pipe()
        try:
            self._start(program, *arguments, str(writer), pass_fds=(writer,))
            os.close(writer)
            return read_line(reader, program)
        finally:
            os.close(reader)

    def _start(self, program: str, *arguments: str, pass_fds: Collection[int] = ()) -> None:
        self._processes[program] = start_child(
            [program, *arguments], env=self.environment, cwd=self.home, pass_fds=pass_fds,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def begin(self, page: str, seed: str, split: Split) -> None:
        """Starts a task's applications in a fresh home folder; the seed chooses its variant."""
        for program in (CALCULATOR, EDITOR):
            if program in self._processes:
                end_child(self._processes.pop(program))
        self._task = TASKS[page](Random(f"{page}/{seed}"))
        self._write_home(self.task.notes)
        for program in self.task.applications:
            self._start(program, *([NOTES] if program == EDITOR else ()))
            deadline = time.monotonic() + PATIENCE
            while not any(each.role == "frame" for each in self.widgets(program)):
                self._check_alive()
                if time.monotonic() > deadline:
                    raise DesktopFaultError(f"{program} shows no window")
                time.sleep(QUIET)
        self._input("mousemove", str(SIZE[0] - 1), str(SIZE[1] - 1))  # where nothing lies below it
        self.look()

    def _write_home(self, notes: str) -> None:
        shutil.rmtree(self.home, ignore_errors=True)
        for name, text in (("gtk-3.0/settings.ini", SETTINGS), ("openbox/rc.xml", WINDOWS)):
            file = self.home / ".config" / name
            file.parent.mkdir(parents=True)
            file.write_text(text, encoding="utf-8")
        (self.home / NOTES).write_text(notes, encoding="utf-8")
        os.utime(self.home / NOTES, (1e9, 1e9))  # which file dialogs show

    def status(self) -> Status:
        self._check_alive()
        done = self.task.is_done(self)
        return Status(done, float(done), self.task.goal)

    def _check_alive(self) -> None:
        """DesktopFaultError where a program has died; an application that was closed has not."""
        for name, process in self._processes.items():
            if process.poll() is not None and (process.returncode or name not in (CALCULATOR, EDITOR)):
                raise DesktopFaultError(f"{Path(name).name} ended with {process.returncode}")

    def look(self, still: int = STILL) -> Image.Image:
        """The screen once so many looks at it are equal, RGB, SIZE pixels."""
        deadline, screens = time.monotonic() + MAX_UNREST, [self._read_screen()]
        while len(screens) < still and time.monotonic() < deadline:
            time.sleep(QUIET)
            screen = self._read_screen()
            is_still = self._is_idle() and np.array_equal(screen, screens[-1])
            screens = [*screens, screen] if is_still else [screen]
        return Image.fromarray(screens[-1])

    def _is_idle(self) -> bool:
        """Whether every thread of every program waits for something: on a busy machine a still screen proves little."""
        folders = [Path(f"/proc/{process.pid}/task") for process in self._processes.values()]
        try:
            stats = [file.read_text() for folder in folders for file in folder.glob("*/stat")]
        except OSError:  # a thread has ended meanwhile
            return False
        return all(stat.rpartition(")")[2].split()[0] not in "RD" for stat in stats)

    def _read_screen(self) -> np.ndarray:
        """(height, width, 3) uint8, from the file in X's window dump format that Xvfb keeps, behind what is queued."""
        self._check_alive()
        for name in self._task.applications if self._task else ():
            self.accessibility.wait_for(self._processes[name].pid)
        raw = (self.folder / "Xvfb_screen0").read_bytes()
        header = struct.unpack(">25I", raw[:100])
        start, (width, height), row, colors = header[0], header[4:6], header[12], header[19]
        pixels = np.frombuffer(raw, np.uint8, row * height, start + 12 * colors)
        return np.ascontiguousarray(pixels.reshape(height, row // 4, 4)[:, :width, 2::-1])

    def act(self, action: ScreenAction) -> None:
        """What a hand would do; points in pixels of the screen. `done` does nothing."""
        points = [[str(int(value)) for value in point] for point in action.points]
        still = STILL_DIALOG if read_dialog(self) else STILL
        if action.kind == "wait":
            time.sleep(WAIT)
        elif action.kind == "click":
            self._input("mousemove", *points[0], "click", "1")
        elif action.kind == "type":
            for i, line in enumerate(action.word.split("\n")):  # xdotool leaves line ends out
                if i:
                    self._input("key", "Return")
                if line:
                    self._input("type", "--delay", "3", "--", line)
        elif action.kind == "key":
            self._input("key", KEYSYMS.get(action.word, action.word))
        elif action.kind == "scroll":
            self._input("mousemove", *points[0], "click", "--repeat", "2", "--delay", "5", WHEEL[action.word])
        elif action.kind == "drag":
            halfway = [str((int(a) + int(b)) // 2) for a, b in zip(*points, strict=True)]
            moves = ("mousemove", *halfway, "mousemove", *points[1])
            self._input("mousemove", *points[0], "mousedown", "1", *moves, "mouseup", "1")
        self.look(still)

    def _input(self, *arguments: str) -> None:
        command = ["xdotool", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise DesktopFaultError(f"xdotool: {first_line(RuntimeError(done.stderr))}")

    def gold(self) -> ScreenAction | None:
        """The next right action, by what the applications show now; None where one was closed."""
        self._check_alive()
        with contextlib.suppress(LookupError):
            return self.task.solve(self)
        self.look()  # raises where the application has died: a process ends a little after its windows
        return None

    def read_clipboard(self) -> str:
        """The text that was copied last; '' where there is none."""
        command = ["xclip", "-out", "-selection", "clipboard"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE)
        return done.stdout

    def read_file(self, name: str) -> str | None:
        """A file of the home folder; None: there is none, or it is no text."""
        try:
            return (self.home / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def widgets(self, application: str) -> list[DesktopWidget]:
        """What an application shows; [] where it has no window."""
        process = self._processes.get(application)
        return self.accessibility.list_widgets(process.pid) if process and process.poll() is None else []

    def quit(self) -> None:
        if self._bus is not None:
            with contextlib.suppress(OSError):
                self._bus.close()
        for process in reversed(self._processes.values()):
            end_child(process)
        shutil.rmtree(self.folder, ignore_errors=True)


class DesktopService(ScreenService):
    """A worker's desktop."""

    make_screen = Desktop


KEYSYMS = {
    "Enter": "Return", "Backspace": "BackSpace", "Space": "space", "PageUp": "Prior", "PageDown": "Next",
    "ArrowUp": "Up", "ArrowDown": "Down", "ArrowLeft": "Left", "ArrowRight": "Right",
    **{f"Control+{letter}": f"ctrl+{letter.lower()}" for letter in "ACVX"},
}  # fmt: skip
WHEEL = {"up": "4", "down": "5", "left": "6", "right": "7"}  # buttons


def check_programs() -> None:
    """UserError naming what to install."""
    missing = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    if not LAUNCHER.exists():
        missing.append("at-spi2-core")
    if missing:
        raise UserError(f"task.environment: desktop: needs the Debian packages {', '.join(missing)}: run `make system`")
    try:
        import jeepney  # noqa: F401
    except ImportError:
        raise UserError("task.environment: desktop: pip install 'vlrl[desktop]'") from None


def read_line(descriptor: int, program: str) -> str:
    """The first line that a program writes."""
    text = b""
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([descriptor], [], [], PATIENCE)
        chunk = os.read(descriptor, 4096) if ready else b""
        if not chunk:
            raise DesktopFaultError(f"{program} does not start")
        text += chunk
    return text.decode().strip()


# What applications tell screen readers: AT-SPI, a protocol over D-Bus.

NODE, TEXT = "org.a11y.atspi.Accessible", "org.a11y.atspi.Text"
ROOT = "/org/a11y/atspi/accessible/root"
ACTIVE, FOCUSED, SHOWING = 1, 12, 25  # numbers of states
TEXT_ROLES = ("text", "edit bar")
LONG_ROLES = ("table", "tree table", "list")  # file dialogs have long ones


@dataclass(frozen=True)
class DesktopWidget:
    """A widget that is shown. `window`: the role of the window that it is in; `center`: pixels of the screen."""

    role: str
    name: str
    states: int
    window: str
    center: tuple[float, float] = (0.0, 0.0)
    text: str = ""
    selection: tuple[int, int] = (0, 0)  # of the text: where it begins and ends

    def has(self, state: int) -> bool:
        return bool(self.states >> state & 1)

    @property
    def is_selected(self) -> bool:
        """Whether all of its text is."""
        return self.selection == (0, len(self.text))


class Accessibility:
    """A connection to the bus on which applications describe themselves; `session`: the session bus' address."""

    def __init__(self, session: str):
        from jeepney.io.blocking import open_dbus_connection

        self._names: dict[int, str] = {}  # process -> its name on the bus
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.closing(open_dbus_connection(session)) as bus:
                reply = call(bus, ("org.a11y.Bus", "/org/a11y/bus", "org.a11y.Bus", "GetAddress"))
            if reply:
                break
            if time.monotonic() > deadline:
                raise DesktopFaultError("at-spi-bus-launcher does not answer")
            time.sleep(QUIET)
        self._bus = open_dbus_connection(reply[0])

    def close(self) -> None:
        self._bus.close()

    def _find(self, process: int) -> str:
        """The name of a process on the bus; '': it has not come there yet."""
        if process not in self._names:
            daemon = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
            reply = call(self._bus, ("org.a11y.atspi.Registry", ROOT, NODE, "GetChildren"))
            names = [name for name, _ in reply[0]] if reply else []
            owners = call_many(self._bus, [(*daemon, "GetConnectionUnixProcessID", "s", name) for name in names])
            self._names |= {owner[0]: name for owner, name in zip(owners, names, strict=True) if owner}
        return self._names.get(process, "")

    def wait_for(self, process: int) -> None:
        """Returns when an application has worked off what it was sent before; at once where it is gone."""
        name = self._find(process)
        if name:
            call(self._bus, (name, ROOT, NODE, "GetRoleName"))

    def list_widgets(self, process: int) -> list[DesktopWidget]:
        """All widgets that an application shows, from its windows down, level by level."""
        name = self._find(process)
        widgets: list[DesktopWidget] = []
        level = [(child, "") for child in self._list_children(name, [ROOT])[0]] if name else []
        while level:
            nodes = [(path, each) for (path, _), each in zip(level, self._read(name, level), strict=True) if each]
            widgets += [each for _, each in nodes]
            inner = [(path, each.window) for path, each in nodes if each.role not in LONG_ROLES]
            children = self._list_children(name, [path for path, _ in inner])
            level = [(child, window) for (_, window), each in zip(inner, children, strict=True) for child in each]
        return widgets

    def _list_children(self, name: str, paths: Sequence[str]) -> list[list[str]]:
        replies = call_many(self._bus, [(name, path, NODE, "GetChildren") for path in paths])
        return [[path for _, path in reply[0]] if reply else [] for reply in replies]

    def _read(self, name: str, level: Sequence[tuple[str, str]]) -> list[DesktopWidget | None]:
        """The widgets at these paths, in windows of these roles ('': they are windows); None: not shown, or gone."""
        properties = ("org.freedesktop.DBus.Properties", "Get", "ss", NODE, "Name")
        asks = [
            [(name, path, NODE, "GetRoleName"), (name, path, *properties), (name, path, NODE, "GetState"),
             (name, path, "org.a11y.atspi.Component", "GetExtents", "u", 0)]
            for path, _ in level
        ]  # fmt: skip
        replies = call_many(self._bus, [ask for each in asks for ask in each])
        widgets: list[DesktopWidget | None] = []
        for number, (path, window) in enumerate(level):
            role, label, states, extents = replies[4 * number : 4 * number + 4]
            widget = None
            if role and label and states and extents:
                (low, high), (x, y, width, height) = states[0], extents[0]
                center = x + width / 2, y + height / 2
                widget = DesktopWidget(role[0], label[0][1], low | high << 32, window or role[0], center)
            widgets.append(self._read_text(name, path, widget) if widget and widget.has(SHOWING) else None)
        return widgets

    def _read_text(self, name: str, path: str, widget: DesktopWidget) -> DesktopWidget:
        if widget.role not in TEXT_ROLES:
            return widget
        asks = [(name, path, TEXT, "GetText", "ii", 0, -1), (name, path, TEXT, "GetSelection", "i", 0)]
        text, selection = call_many(self._bus, asks)
        return replace(widget, text=text[0], selection=tuple(selection)) if text and selection else widget


def call(bus: Any, ask: tuple) -> tuple:
    return call_many(bus, [ask])[0]


def call_many(bus: Any, asks: Sequence[tuple]) -> list[tuple]:
    """What methods on a bus return, all sent at once; () where an object is gone, or refuses.

    Args:
        asks: destination, path, interface, method, then perhaps the signature of arguments, and these.
    """
    from jeepney import DBusAddress, HeaderFields, MessageType, new_method_call

    serials = []
    for name, path, interface, method, *arguments in asks:
        signature, values = (arguments[0], tuple(arguments[1:])) if arguments else (None, ())
        serials.append(next(bus.outgoing_serial))
        bus.send(new_method_call(DBusAddress(path, name, interface), method, signature, values), serial=serials[-1])
    replies: dict[int, tuple] = {}
    while any(serial not in replies for serial in serials):
        message = bus.receive(timeout=PATIENCE)
        is_answer = message.header.message_type == MessageType.method_return
        replies[message.header.fields.get(HeaderFields.reply_serial, 0)] = message.body if is_answer else ()
    return [replies[serial] for serial in serials]


# The tasks: each makes a variant of random numbers. Solutions look at the present state only, so that they also find
# back from wrong actions.

WORDS = (
    "apple",
    "bridge",
    "candle",
    "desert",
    "engine",
    "forest",
    "garden",
    "harbor",
    "island",
    "jacket",
    "kettle",
    "lemon",
)


def make_compute(random: Random) -> DesktopTask:
    sum_text, result = draw_sum(random)
    return DesktopTask(
        f"Compute {sum_text} with the calculator and copy the result to the clipboard.", (CALCULATOR,),
        is_done=lambda desktop: desktop.read_clipboard().strip() == result,
        solve=lambda desktop: calculate(desktop, sum_text, result) or ScreenAction("key", (), "Control+C"),
    )  # fmt: skip


def make_note_result(random: Random) -> DesktopTask:
    sum_text, result = draw_sum(random)

    def solve(desktop: Desktop) -> ScreenAction:
        edit = edit_text(desktop, result)
        if edit is None:
            return choose(desktop, "File", "Save")
        return calculate(desktop, sum_text, result, focus=False) or edit

    return DesktopTask(
        f"Compute {sum_text} with the calculator, write the result into {NOTES} and save it.", (EDITOR, CALCULATOR),
        is_done=lambda desktop: (desktop.read_file(NOTES) or "").strip() == result, solve=solve,
    )  # fmt: skip


def make_write_line(random: Random) -> DesktopTask:
    line = " ".join(random.sample(WORDS, 3))
    return make_edit(f'Write the line "{line}" into {NOTES} and save it.', "", line)


def make_replace_word(random: Random) -> DesktopTask:
    *words, other = random.sample(WORDS, 6)
    old = random.choice(words)
    text = " ".join(words)
    goal = f'Replace the word "{old}" by "{other}" in {NOTES} and save it.'
    return make_edit(goal, text, text.replace(old, other))


def make_edit(goal: str, before: str, after: str) -> DesktopTask:
    return DesktopTask(
        goal, (EDITOR,),
        is_done=lambda desktop: (desktop.read_file(NOTES) or "").strip() == after,
        solve=lambda desktop: edit_text(desktop, after) or choose(desktop, "File", "Save"),
        notes=before,
    )  # fmt: skip


def make_save_as(random: Random) -> DesktopTask:
    name, *words = random.sample(WORDS, 4)
    file, text = f"{name}.txt", " ".join(words)
    return DesktopTask(
        f"Save the text of {NOTES} under the name {file} in the same folder.", (EDITOR,),
        is_done=lambda desktop: (desktop.read_file(file) or "").strip() == text,
        solve=lambda desktop: fill_dialog(desktop, file) or choose(desktop, "File", "Save As..."),
        notes=text,
    )  # fmt: skip


TASKS: Mapping[str, Callable[[Random], DesktopTask]] = {
    "compute": make_compute, "write-line": make_write_line, "replace-word": make_replace_word,
    "save-as": make_save_as, "note-result": make_note_result,
}  # fmt: skip


def draw_sum(random: Random) -> tuple[str, str]:
    """Two numbers of two digits with a sign between, as typed, and what comes out."""
    first, second, sign = random.randint(51, 99), random.randint(11, 50), random.choice("+-*")
    return f"{first}{sign}{second}", str({"+": first + second, "-": first - second, "*": first * second}[sign])


def click_on(widget: DesktopWidget) -> ScreenAction:
    return ScreenAction("click", (widget.center,))


def search(widgets: Sequence[DesktopWidget], role: str, name: str | None = None) -> DesktopWidget | None:
    """The first widget of a role, and of a name where one is asked for; None: there is none."""
    return next((each for each in widgets if each.role == role and name in (None, each.name)), None)


def find(widgets: Sequence[DesktopWidget], role: str, name: str | None = None) -> DesktopWidget:
    """As `search`; LookupError: there is none, as in an application that was closed."""
    widget = search(widgets, role, name)
    if widget is None:
        raise LookupError(role)
    return widget


def calculate(desktop: Desktop, sum_text: str, result: str, *, focus: bool = True) -> ScreenAction | None:
    """The next action until the calculator shows the result and, where `focus`, has the focus; None then."""
    widgets = desktop.widgets(CALCULATOR)
    display, frame = find(widgets, "edit bar"), find(widgets, "frame")
    text = display.text.replace("\N{MULTIPLICATION SIGN}", "*").replace("\N{MINUS SIGN}", "-")
    if text == result and (frame.has(ACTIVE) or not focus):
        return None
    if not frame.has(ACTIVE):
        return click_on(display)
    if text in ("", sum_text):
        return ScreenAction("key", (), "Enter") if text else ScreenAction("type", (), sum_text)
    return click_on(find(widgets, "push button", "clear"))


def edit_text(desktop: Desktop, text: str) -> ScreenAction | None:
    """The next action until the editor holds the text; None then."""
    area = find([each for each in desktop.widgets(EDITOR) if each.window == "frame"], "text")
    if area.text.strip() == text:
        return None
    if not area.has(FOCUSED):
        return click_on(area)
    return ScreenAction("type", (), text) if area.is_selected else ScreenAction("key", (), "Control+A")


def choose(desktop: Desktop, menu: str, item: str) -> ScreenAction:
    """The next click towards an item of the editor's menus."""
    widgets = desktop.widgets(EDITOR)
    return click_on(search(widgets, "menu item", item) or find(widgets, "menu", menu))


def read_dialog(desktop: Desktop) -> list[DesktopWidget]:
    """What the editor's dialog that asks for a file shows; [] where it is closed."""
    return [each for each in desktop.widgets(EDITOR) if each.window == "file chooser"]


def fill_dialog(desktop: Desktop, name: str) -> ScreenAction | None:
    """The next action in the editor's dialog that asks for a file's name; None where it is closed."""
    entry = search(read_dialog(desktop), "text")
    if entry is None:
        return None
    if entry.text == name:
        return ScreenAction("key", (), "Enter")
    return ScreenAction("type", (), name) if entry.is_selected else ScreenAction("key", (), "Control+A")
