"""Videos in a report: when each frame of a strip was shown, and spans of time at their place on the axis."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tasks.grounded_video_qa import GroundedVideoQa
from tasks.temporal_grounding import TemporalGrounding
from vlrl.metrics import save_rollouts
from vlrl.report.html import Album, card, write_report
from vlrl.types import Annotation, Decision, Episode, Observation, Sample, Score, Step, Turn, Video

# Of the card's k-th timeline: [role, left, right] of each bar and the place of each tick, in % of the axis.
AXIS = """(() => {
  const timeline = document.querySelectorAll("#cards .timeline")[%d];
  const axis = timeline.querySelector(".axis").getBoundingClientRect();
  const share = (x) => 100 * (x - axis.left) / axis.width;
  const bars = [...timeline.querySelectorAll(".lane i")].map((bar) => {
    const { left, right } = bar.getBoundingClientRect();
    return [bar.parentNode.classList[1], share(left), share(right)];
  });
  const ticks = [...timeline.querySelectorAll(".axis i")].map((tick) => share(tick.getBoundingClientRect().left));
  const texts = (selector) => [...timeline.querySelectorAll(selector)].map((part) => part.textContent);
  return { bars, ticks, numbers: texts(".axis span"), lengths: texts(".length"),
           above: timeline.previousElementSibling.getBoundingClientRect().bottom <= axis.top };
})()"""
# The captions of the first strip and the frame (counted over rows) that each lies on.
CAPTIONS = """[...document.querySelectorAll("#cards .frame .time")].map((caption) => {
  const { left, right, top, bottom } = caption.getBoundingClientRect();
  const strip = caption.parentNode.getBoundingClientRect();
  const column = Math.floor(4 * ((left + right) / 2 - strip.left) / strip.width);
  return [caption.textContent, column + 4 * Math.floor(2 * ((top + bottom) / 2 - strip.top) / strip.height)];
})"""
COLOURS = "[...document.querySelectorAll('#cards .lane i')].map((bar) => getComputedStyle(bar).backgroundColor)"


def film(start: float = 0.0, duration: float = 10.0, every: float = 1.0) -> Video:
    """Ten frames from `start` on, one in `every` seconds of a video of `duration`."""
    times = tuple(start + every * i for i in range(10))
    return Video(np.full((10, 48, 64, 3), 90, np.uint8), times, 25.0, duration)


def played(sample: Sample, completion: str, *marks: Annotation) -> Episode:
    decision = Decision(completion, logprobs=None, entropy=None, truncated=False)
    episode = Episode(sample, 0, [Turn(sample.prompt, decision, Step(sample.prompt, terminated=True))])
    episode.score = Score({"iou": 0.0}, 0.0, marks=marks)
    return episode


def marked(*content: str | Video | Image.Image, truth: tuple[float, float], said: tuple[float, float]) -> Episode:
    marks = Annotation("truth", "span", truth), Annotation("prediction", "span", said)
    return played(Sample("q/1", Observation(content)), "", *marks)


def scored(task, completion: str) -> Episode:
    """A real task's first sample, answered."""
    episode = played(task.samples("train")[0], completion)
    episode.score = task.score(episode)
    return episode


def report(folder: Path, *episodes: Episode) -> Path:
    save_rollouts(folder, 1, episodes, None)
    return write_report(folder)


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1600, "light")])
def test_spans_lie_at_their_seconds(open_page, tmp_path, width, scheme):
    """A right answer would look wrong, or a wrong one right."""
    task = TemporalGrounding()
    truth = task.samples("train")[0].answer[0]
    page = open_page(report(tmp_path, scored(task, "<answer>1.5 to 6.25</answer>")), width=width, scheme=scheme)
    found = page.run(AXIS % 0)
    roles, places = [bar[0] for bar in found["bars"]], [bar[1:] for bar in found["bars"]]
    assert roles == ["truth", "prediction"] and found["above"]
    assert places[0] == pytest.approx([12.5 * time for time in truth], abs=0.3)  # of eight seconds
    assert places[1] == pytest.approx([12.5 * 1.5, 12.5 * 6.25], abs=0.3)
    assert found["numbers"] == ["0", "2", "4", "6", "8 s"]
    assert found["lengths"] == [f"{truth[1] - truth[0]:g} s", "4.75 s"]
    assert page.run(COLOURS) == ["rgb(22, 163, 74)", "rgb(249, 115, 22)"]  # those of boxes and points
    assert page.complaints() == []


def test_frames_say_when_they_were_shown(open_page, tmp_path):
    """Nobody could check an answer by eye."""
    page = open_page(report(tmp_path, marked(film(), truth=(2, 4), said=(3, 5))))
    times = [0, 1, 3, 4, 5, 6, 8, 9]  # eight of ten
    assert page.run(CAPTIONS) == [[f"{time} s", place] for place, time in enumerate(times)]
    assert page.run(AXIS % 0)["ticks"] == pytest.approx([10 * time for time in times], abs=0.3)


def test_a_span_outside_the_video_ends_with_the_axis_and_is_said(open_page, tmp_path):
    """One absurd answer would squeeze the truth into a line, or stick out of the card."""
    page = open_page(report(tmp_path, marked(film(), truth=(2, 4), said=(7, 999))), width=390)
    assert page.run(AXIS % 0)["bars"][1][1:] == pytest.approx([70, 100], abs=0.3)
    assert page.run("document.querySelector('#cards .reason').textContent") == (
        "prediction reaches outside the video: 7 to 999 s"
    )
    assert page.run("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0


def test_a_clip_of_a_long_video_has_an_axis_of_its_own(open_page, tmp_path):
    """Twenty seconds of two hours would be a dot."""
    clip = film(start=3600.0, duration=7200.0)
    found = open_page(report(tmp_path, marked(clip, truth=(3604, 3610), said=(3600, 3605)))).run(AXIS % 0)
    assert found["bars"] == [["truth", pytest.approx(40, abs=0.3), pytest.approx(100, abs=0.3)],
                             ["prediction", pytest.approx(0, abs=0.3), pytest.approx(50, abs=0.3)]]  # fmt: skip
    assert (found["numbers"][0], found["numbers"][-1]) == ("3600", "3610 s")


def test_marks_of_images_and_of_videos_are_counted_apart(open_page, tmp_path):
    """A point would be drawn on a video's frames, or a span under another video."""
    shown = Observation((film(), Image.new("RGB", (200, 100)), film(duration=20.0, every=2.0), "When?"))
    marks = Annotation("truth", "point", (50, 50)), Annotation("truth", "span", (5, 10), image=1)
    page = open_page(report(tmp_path, played(Sample("q/1", shown), "", *marks)))
    assert page.run("[...document.querySelectorAll('#cards .overlay')].map((on) => on.getAttribute('viewBox'))") == [
        "0 0 200 100"
    ]
    assert page.run("document.querySelectorAll('#cards .film').length") == 2
    assert page.run("document.querySelectorAll('#cards .film')[1].querySelectorAll('.timeline').length") == 1
    assert page.run(AXIS % 0)["bars"] == [["truth", pytest.approx(25, abs=0.3), pytest.approx(50, abs=0.3)]]


def test_rollouts_saved_without_times_still_show(open_page, tmp_path):
    """A run of an older version would lose its report."""
    report(tmp_path, marked(film(), truth=(2, 4), said=(3, 5)))
    file = tmp_path / "rollouts" / "step_000001.jsonl"
    row = json.loads(file.read_text())
    del row["strips"]
    texts = [{"role": "truth", "kind": "text", "xy": [], "label": "2 to 4 s", "image": 0}]
    file.write_text("".join(json.dumps({**row, "marks": marks}) + "\n" for marks in (row["marks"], texts, [])))
    page = open_page(write_report(tmp_path))
    assert page.run("document.querySelectorAll('#cards .card img').length") == 3
    assert page.run("document.querySelectorAll('.timeline, .time').length") == 0
    assert page.run("document.querySelector('#cards .chip').textContent") == "2 to 4 s"  # whole, not cut into words
    assert page.complaints() == []


def test_a_strip_that_cannot_be_drawn_is_left_out(tmp_path):
    """One row with a broken time stops the script and all cards after it, or moves spans to another video."""
    save_rollouts(tmp_path, 1, [marked(film(), truth=(2, 4), said=(3, 5))], None)
    row = json.loads((tmp_path / "rollouts" / "step_000001.jsonl").read_text())
    good = row["strips"][0]
    wrong = [{"axis": [3, 3]}, {"axis": [0]}, {"times": [None]}, {"times": 1}, {"grid": [0, 2]}, {"image": 7}]
    row["strips"] = ["strip", *({**good, **one} for one in wrong), good]
    assert card(row, Album(tmp_path))["strips"] == [None] * 7 + [good]
    assert card({"strips": {"image": 0}}, Album(tmp_path))["strips"] == []


def test_every_span_of_an_answer_is_marked():
    """Of several moments that an answer names only one would be seen."""
    episode = scored(GroundedVideoQa(), "<answer>A</answer><glue>[(0, 1), (4.5, 6)]</glue>")
    spans = [(mark.role, mark.xy) for mark in episode.score.marks if mark.kind == "span"]
    truths = [("truth", tuple(span)) for span in episode.sample.answer.spans]
    assert spans == [*truths, ("prediction", (0.0, 1.0)), ("prediction", (4.5, 6.0))] and truths
    unread = scored(TemporalGrounding(), "later")
    assert [mark.role for mark in unread.score.marks if mark.kind == "span"] == ["truth"]
