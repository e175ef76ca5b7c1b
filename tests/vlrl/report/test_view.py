"""`vlrl view`: runs that are being written, side by side, in a real browser; and what its server refuses."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from page_checks import checked, find_controls
from small_runs import HOSTILE, jigsaw, picture, write_lines

from vlrl.cli import main
from vlrl.report.run_reader import Tail
from vlrl.report.server import Viewer
from vlrl.types import UserError

CARDS = "[...document.querySelectorAll('#columns article')]"
STEPS = "[...document.querySelectorAll('#steps button')].map(button => Number(button.dataset.step))"
NOW = "Number(document.querySelector('#steps [aria-current]')?.dataset.step ?? -1)"
SHIFT = """(() => {
  const shift = (card) => {
    const image = card.querySelector("img").getBoundingClientRect(), scale = image.width / 480;
    const dot = card.querySelector(".mark.prediction circle").getBoundingClientRect();
    const x = dot.left + dot.width / 2 - image.left, y = dot.top + dot.height / 2 - image.top;
    return Math.hypot(x - 150 * scale, y - 90 * scale);
  };
  return Math.max(...[...document.querySelectorAll("#columns article")].map(shift));
})()"""


def saved(run: Path, step: int, sample: str, x: float = 150.0, **changes) -> dict:
    return {
        "step": step, "split": "eval", "sample_id": sample, "group": 0, "images": ["rollouts/images/a.png"],
        "image_size": [480, 320], "prompt": "Point.", "completion": f"{run.name} at {step}", "answer": [x, 90.0],
        "parts": {"hit": 1.0}, "reward": 1.0, "correct": 1.0, "reason": None,
        "marks": [{"role": "prediction", "kind": "point", "xy": [x, 90.0], "label": ""}], **changes,
    }  # fmt: skip


def written(run: Path, steps: range) -> Path:
    """A run that has saved two samples at each of these steps."""
    (run / "rollouts" / "images").mkdir(parents=True)
    (run / "config.yaml").write_text("task:\n  name: pointing\n")
    picture(run / "rollouts" / "images" / "a.png", 150, 90)
    for step in steps:
        go_on(run, step)
    return run


def go_on(run: Path, step: int) -> None:
    """What a trainer writes at a step."""
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "reward": step / 100, "eval/accuracy": 0.5, "eval/low": 0.4,
                               "eval/high": 0.6, "eval/n": 64}) + "\n")  # fmt: skip
    same = [saved(run, step, "point/0"), saved(run, step, "other/1", completion=HOSTILE, marks=[], correct=0.0)]
    write_lines(run / "rollouts" / f"step_{step:06d}.jsonl", [*same, {**saved(run, step, f"once/{step}"), **jigsaw()}])


@pytest.fixture
def serve():
    """serve(folder, ...) -> a viewer that answers."""
    started = []

    def served(*folders: Path) -> Viewer:
        started.append(Viewer(folders))
        threading.Thread(target=started[-1].serve, daemon=True).start()
        return started[-1]

    yield served
    for viewer in started:
        viewer.close()


@pytest.fixture
def runs(tmp_path):
    return written(tmp_path / "first", range(10, 60, 10)), written(tmp_path / "second", range(10, 40, 10))


def asked(viewer: Viewer, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=20)
    connection.request("GET", path, headers={"Host": f"127.0.0.1:{viewer.port}", **headers})
    answer = connection.getresponse()
    found = answer.status, dict(answer.headers), answer.read()
    connection.close()
    return found


def test_a_new_step_appears_by_itself(open_page, serve, runs):
    """Whoever watches a run would have to reload, and lose the sample and the step they look at."""
    page = open_page(serve(*runs).url)
    page.until(f"{CARDS}.length && {NOW} === 50")
    page.run("document.querySelector('.plot').dataset.kept = 'yes'")
    go_on(runs[0], 60)
    page.until(f"{NOW} === 60")  # who looks at the newest step stays at the newest
    page.until("document.querySelector('#runs td:nth-child(3)').textContent === '60'")
    page.until(f"{CARDS}.some(card => card.textContent.includes('step 60'))")
    assert page.run("document.querySelector('.plot').dataset.kept") == "yes"  # the charts are not made anew
    page.press("ArrowLeft")
    assert page.run(NOW) == 50
    go_on(runs[0], 70)
    page.until(f"{STEPS}.includes(70)")
    assert page.run(NOW) == 50  # who looks back is left there
    assert page.complaints() == []


def test_the_same_sample_stands_side_by_side(open_page, serve, runs):
    """Rollouts of different questions, or of different steps, would be compared."""
    page = open_page(serve(*runs).url, height=1600)
    page.until(f"{CARDS}.length === 6")
    columns = page.run("[...document.querySelectorAll('#columns > div')].map(one => one.textContent.slice(0, 400))")
    assert [f"step {step} " in text for step, text in zip((20, 30, 40, 50), columns[:4], strict=True)] == [True] * 4
    assert [text.startswith("not saved at step") for text in columns[4:]] == [False, False, True, True]
    assert page.run("document.querySelector('[name=sample]').value") in ("other/1", "point/0")
    assert page.run("document.querySelectorAll('.chart .line').length") >= 4  # both runs in each chart
    page.run("(() => { const s = document.querySelector('[name=sample]'); s.value = 'point/0';"
             " s.dispatchEvent(new Event('change')); })()")  # fmt: skip
    page.until(f"{CARDS}.length === 6 && document.querySelectorAll('#columns .mark.prediction').length === 6")
    page.run("document.getElementById('rollouts').scrollIntoView({ behavior: 'instant' })")
    page.until("[...document.querySelectorAll('#columns img')].every(image => image.naturalWidth > 0)")
    assert page.run(SHIFT) < 1


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1600, "light")])
def test_keys_reach_every_sample_and_step(open_page, serve, runs, width, scheme):
    """Only those with a mouse, or with a wide and bright screen, could compare; a hostile answer would be run."""
    page = open_page(serve(*runs).url, width=width, scheme=scheme)
    page.until(f"{CARDS}.length")
    first = page.run("document.querySelector('[name=sample]').value")
    page.press("j")
    page.until(f"{CARDS}.length && document.querySelector('[name=sample]').value !== '{first}'")
    checked(page)
    page.press("k", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowRight")
    assert page.run(NOW) == 20
    page.press("/", *"once/30")
    page.until(f"document.querySelector('[name=sample]').value === 'once/30' && {STEPS}.join() === '30'")
    assert {("button", "Earlier step"), ("button", "Later step"), ("combobox", "Sample")} <= set(find_controls(page))
    page.press("Escape")
    assert page.run("document.activeElement === document.body") is True
    checked(page)


def test_what_has_not_changed_is_not_sent_again(serve, runs):
    """A page that is left open would load a long run's curves anew each second."""
    viewer = serve(*runs)
    for path in ("/runs/0/curves", "/runs/1/samples", "/runs/0/rollouts?sample=point/0"):
        status, headers, body = asked(viewer, path)
        assert status == 200 and json.loads(body)
        assert asked(viewer, path, **{"If-None-Match": headers["ETag"]})[::2] == (304, b"")
    _, headers, _ = asked(viewer, "/runs/0/curves")
    go_on(runs[0], 90)
    status, _, body = asked(viewer, "/runs/0/curves", **{"If-None-Match": headers["ETag"]})
    assert status == 200 and json.loads(body)["step"] == 90


@pytest.mark.parametrize(
    "path",
    ["../../private.png", "..%2f..%2fprivate.png", "%2e%2e/%2e%2e/private.png", "rollouts/../../private.png",
     "rollouts/images/link.png", "config.yaml", "rollouts/step_000010.jsonl", "rollouts/%00.png", "{private}"],
)  # fmt: skip
def test_nothing_but_the_runs_images_is_served(serve, runs, path):
    """Every file of the user could be read by whatever else runs on the machine."""
    private = runs[0].parent / "private.png"
    private.write_bytes((runs[0] / "rollouts" / "images" / "a.png").read_bytes())
    (runs[0] / "rollouts" / "images" / "link.png").symlink_to(private)
    viewer = serve(*runs)
    assert asked(viewer, f"/runs/0/image/{path.format(private=private)}")[0] == 404
    status, headers, _ = asked(viewer, "/runs/0/image/rollouts/images/a.png")
    assert status == 200 and headers["Content-Type"] == "image/png" and headers["X-Content-Type-Options"] == "nosniff"


def test_other_sites_and_machines_are_refused(serve, runs):
    """A web site open in another tab could read the runs under a name of its own."""
    viewer = serve(*runs)
    assert asked(viewer, "/", Host="runs.example.com")[0] == 403
    assert asked(viewer, "/", Host=f"localhost:{viewer.port}")[0] == 200
    elsewhere = ("/runs/7/curves", "/runs/-1/curves", "/runs/0/else", "/etc")
    assert [asked(viewer, path)[0] for path in elsewhere] == [404] * 4
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.2", viewer.port)) != 0


def test_a_line_that_is_being_written_waits_and_a_cut_file_is_read_anew(tmp_path):
    """Half a row would be counted as broken, or a resumed run would show steps that were taken back."""
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    tail.follow()
    path.write_text('{"step": 1}\n{"step": 2, "rew')
    tail.follow()
    assert tail.rows == [{"step": 1}] and tail.unreadable == 0
    with path.open("a") as file:
        file.write('ard": 0.5}\nnonsense\n')
    tail.follow()
    assert tail.rows == [{"step": 1}, {"step": 2, "reward": 0.5}] and tail.unreadable == 1
    path.write_text('{"step": 1}\n')
    tail.follow()
    assert tail.rows == [{"step": 1}]


def test_mistakes_are_said_before_anything_is_served(tmp_path, runs):
    """A mistyped name would open an empty page."""
    with pytest.raises(UserError, match=r"no run folder at .*nowhere"):
        Viewer([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no run in .*empty"):
        Viewer([tmp_path / "empty"])
    both = Viewer([tmp_path, runs[0]])  # a folder of runs, and one of them again
    try:
        assert [run.name for run in both.runs] == ["first", "second"]
        with pytest.raises(UserError, match=f"--port {both.port}: "):
            Viewer([runs[0]], both.port)
    finally:
        both._server.server_close()


def test_a_report_is_made_again_as_both_pages_say(runs, capsys):
    """After an upgrade, or a run that was killed, the page on the disk would stay as it is, or be missing."""
    (runs[0] / "config.yaml").write_text("task:\n  name: pointing\nout: 'runs/first & only'\n")
    assert main(["view", *map(str, runs), "--write"]) == 0
    written = [run.resolve() / "report.html" for run in runs]
    assert capsys.readouterr().out.split() == [str(file) for file in written]
    assert "vlrl view &#x27;runs/first &amp; only&#x27;</code>" in written[0].read_text()
    assert "vlrl view second</code>" in written[1].read_text()
    assert main(["view", *map(str, runs), "--chat"]) == 2
    assert "--chat: of one run, not of 2: name one" in capsys.readouterr().err


def test_the_command_says_where_to_look(runs):
    """The address would have to be guessed."""
    command = [sys.executable, "-m", "vlrl.cli", "view", str(runs[0]), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("first: http://127.0.0.1:") and "Ctrl-C" in line
            page = urllib.request.urlopen(line.split()[1]).read().decode()
            assert f"<code>vlrl view {runs[0]} --write</code>" in page and 'id="chat"' not in page
        finally:
            process.terminate()
