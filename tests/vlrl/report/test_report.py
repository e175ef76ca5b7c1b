"""The report of a run: complete where the run is, there when it has hardly begun, safe whatever a model wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vlrl.api import Run
from vlrl.report.html import (
    MAX_FILE,
    MAX_POINTS,
    MAX_SIDE,
    Album,
    card,
    columns,
    duration,
    gain,
    script_json,
    sections,
    thin,
    title,
    write_report,
)
from vlrl.report.run_reader import MAX_ROLLOUTS, choose, read_run, spread
from vlrl.types import UserError

BLOCK = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.S)


def data_of(page: Path) -> dict:
    return json.loads(BLOCK.search(page.read_text())[1])


def line_charts(data: dict) -> dict:
    return {chart["title"]: chart for section in data["sections"] for chart in section["charts"]}


def test_a_finished_run_gets_one_small_page_and_nothing_else(run_folder):
    """Else the report would litter the run folder, or grow too big to mail."""
    before = set(run_folder.iterdir())
    page = write_report(run_folder)
    assert page == run_folder / "report.html"
    assert set(run_folder.iterdir()) - before == {page}
    assert page.stat().st_size < 2_000_000
    assert write_report(run_folder) == page  # and again, over the old one


@pytest.mark.parametrize("files", [(), ("config.yaml",), ("metrics.jsonl",), ("summary.json",), ("rollouts",)])
def test_a_run_that_has_just_begun_has_a_report(run_folder, tmp_path, files):
    """Else someone who looks at step 0, or at a run without evaluation, gets an error in place of a page."""
    young = tmp_path / "young"
    young.mkdir()
    for name in files:
        (run_folder / name).rename(young / name)
    text = write_report(young).read_text()
    assert "young" in text and "</html>" in text


def test_a_missing_folder_is_the_users_mistake(tmp_path):
    """Else a mistyped run name ends in a traceback, or in a new empty folder."""
    with pytest.raises(UserError, match=r"no run folder at .*nowhere"):
        write_report(tmp_path / "nowhere")


def test_half_a_line_costs_that_line_and_is_said(run_folder):
    """Else a report of a running or killed run fails on the line that is being written, or hides that it lost one."""
    with (run_folder / "metrics.jsonl").open("a") as out:
        out.write('{"step": 301, "rew')
    (run_folder / "summary.json").write_text('{"seed"')
    page = write_report(run_folder)
    assert "metrics.jsonl: 1 unreadable line left out" in page.read_text()
    assert "summary.json: 1 unreadable line left out" in page.read_text()
    assert line_charts(data_of(page))["Reward"]["series"][0]["points"][-1][0] == 300


def test_every_number_of_the_metrics_has_a_curve(run_folder):
    """Else a metric that a new method logs stays invisible."""
    data = data_of(write_report(run_folder))
    charts = line_charts(data)
    assert next(iter(charts)) == "Held-out accuracy" and charts["Held-out accuracy"]["wide"]
    assert [series["name"] for series in charts["Reward parts"]["series"]] == ["format", "hit"]
    assert [series["name"] for series in charts["Parse failures"]["series"]] == ["no_answer", "not_a_number"]
    titles = {section["title"]: [chart["title"] for chart in section["charts"]] for section in data["sections"]}
    assert list(titles) == ["At a glance", "Learning", "Optimisation", "Time", "Other", "Never changed"]
    assert titles["At a glance"] == ["Held-out accuracy", "Reward", "Zero-advantage share"]
    assert titles["Other"] == ["gpu/memory_gib"] and titles["Never changed"] == ["Cut completions", "Skipped updates"]
    assert [section["fold"] for section in data["sections"]] == [False] * 5 + [True]
    assert charts["KL"]["series"][0]["points"][39] == [40, None]  # nan is a gap
    band = charts["Held-out accuracy"]["series"][0]["band"]
    assert len(band) == 13 and all(low < high for _, low, high in band)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ((0.7, 0.6, 0.8), "Held-out accuracy rose from 0.400 to 0.700 in 7 steps and 1 min 30 s of CPU time."),
        ((0.1, 0.05, 0.2), "Held-out accuracy fell from 0.400 to 0.100 in 7 steps and 1 min 30 s of CPU time."),
        (
            (0.45, 0.35, 0.55),
            "Held-out accuracy went, within its intervals, from 0.400 to 0.450 in 7 steps and 1 min 30 s of CPU time.",
        ),
    ],
)
def test_the_first_sentence_says_what_happened(after, words, tmp_path):
    """A gain that is none would be read out of two numbers side by side."""
    ends = [dict(zip(("value", "low", "high"), each, strict=True)) for each in ((0.4, 0.3, 0.5), after)]
    summary = {"metric": "held-out_accuracy", "before": ends[0], "after": ends[1], "cpu_s": 90.0}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "metrics.jsonl").write_text('{"step": 7, "loss": 1.0}\n')
    assert f'<p class="story">{words}</p>' in write_report(tmp_path).read_text()


def test_a_resumed_run_shows_its_last_word_on_a_step():
    """Else steps that were run twice draw a line that jumps back in time."""
    rows = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 9.0}, {"step": 2, "loss": 2.0}, {"note": "no step"}]
    assert columns(rows) == {"loss": [[1, 1.0], [2, 2.0]]}


def test_words_and_lists_among_the_metrics_are_no_curves():
    """Else a text value in a row breaks the page for all other curves."""
    rows = [{"step": 1, "phase": "warm-up", "sizes": [1], "loss": 1.0}, {"step": "two", "loss": 2.0}]
    assert columns(rows) == {"loss": [[1, 1.0]]}
    assert sections([], []) == []


def test_thinning_keeps_spikes_and_ends():
    """Else the one step at which a long run blew up vanishes from the curve."""
    curve = [[step, 0.0] for step in range(100_000)]
    curve[54_321][1] = 9.0
    curve[777][1] = None
    thinned = thin(curve)
    assert len(thinned) <= MAX_POINTS + 2
    assert [54_321, 9.0] in thinned and thinned[0] == curve[0] and thinned[-1] == curve[-1]
    assert [point[0] for point in thinned] == sorted(point[0] for point in thinned)


@given(st.lists(st.integers(), max_size=60), st.integers(2, 40))
def test_spread_keeps_order_and_ends(items, count):
    """Else the gallery repeats rollouts, or misses a run's first or last step."""
    places = spread(range(len(items)), count)
    assert len(places) == min(len(items), count) == len(set(places))
    assert places == sorted(places)
    assert not items or (places[0], places[-1]) == (0, len(items) - 1)


def test_the_gallery_samples_all_steps_and_says_how_many(run_folder):
    """Else a long run's page grows without bound, shows its first steps only, or passes a sample off as all."""
    data = data_of(write_report(run_folder))
    cards = data["cards"]
    steps = [card["step"] for card in cards]
    assert len(cards) == MAX_ROLLOUTS and steps == sorted(steps, reverse=True)
    assert data["shown"] == {"rollouts": 200, "read": 480, "steps": 30, "of_steps": 30}
    even = [card["step"] for card in cards if card["why"] == "even"]
    assert len(even) == 100 and set(even) == set(range(10, 301, 10))
    assert {card["why"] for card in cards} == {"even", "failure", "best", "worst", "surprising"}


def row(sample: str, reward: float, reason: str | None = None) -> dict:
    return {"sample_id": sample, "reward": reward, "reason": reason}


def test_rollouts_worth_reading_are_kept():
    """The one failure of a kind, or the one answer that everybody else got right, drowns among ten thousand."""
    rows = [row(f"s{i % 500}", 0.5) for i in range(10_000)]
    rows[1234] = row("s234", 0.0, "no_box")
    rows[77], rows[88], rows[4321] = row("s77", 0.9), row("s88", 0.1), row("s321", 0.45)
    rows[500:800] = [row(f"t{i}", 0.0, "no_answer") for i in range(300)]
    chosen = choose(rows, 200)
    assert len(chosen) == 200 and list(chosen) == sorted(chosen)
    assert chosen[1234] == "failure" and chosen[77] == "best" and chosen[88] == "worst"
    assert chosen[4321] in ("worst", "surprising")
    kinds = [why for why in chosen.values() if why != "even"]
    assert len(kinds) == 100 and kinds.count("failure") < 40  # failures do not crowd out the rest


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1), st.sampled_from([None, "a", "b"]))), st.integers(3, 30))
def test_choosing_keeps_the_number_and_the_order(rows, count):
    """Else a page shows a rollout twice, or fewer than it says."""
    chosen = choose([row(str(sample), reward, reason) for sample, reward, reason in rows], count)
    assert list(chosen) == sorted(chosen) and len(chosen) == min(count, len(rows))


def test_an_image_is_embedded_once(run_folder):
    """Else each member of a group carries its own copy and the page is several times as big."""
    data = data_of(write_report(run_folder))
    used = {place for card in data["cards"] for place in card["images"]}
    assert used == set(range(len(data["images"])))
    assert len(data["images"]) == len({image["src"] for image in data["images"]}) == 20


def test_large_images_shrink_and_bad_ones_are_left_out(tmp_path):
    """Else one folder of photographs makes a page of 100 MB, or one broken file makes none at all."""
    Image.effect_noise((1600, 1200), 80).convert("CMYK").save(tmp_path / "photo.jpg")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnot really")
    album = Album(tmp_path)
    place = album.add_image("photo.jpg")
    assert album.items[place]["size"] == [1600, 1200]
    assert album.items[place]["src"].startswith("data:image/webp;base64,")
    assert len(album.items[place]["src"]) < MAX_SIDE * MAX_SIDE and (tmp_path / "photo.jpg").stat().st_size > MAX_FILE
    assert album.add_image("broken.png") is None and album.add_image("missing.png") is None


def test_a_page_of_long_texts_and_large_images_stays_below_20_mb(run_folder):
    """Else a run with long reasoning or photographs makes a page that browsers and mail refuse."""
    noise = Image.effect_noise((448, 336), 90).convert("RGB")
    for path in (run_folder / "rollouts").glob("step_*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for k, row in enumerate(rows):
            row |= {"prompt": "图" * 10_000, "completion": "\u2028\ud800" * 5_000, "images": [f"{path.stem}_{k}.jpg"]}
            if k == 0:
                noise.save(run_folder / row["images"][0], quality=95)
            else:
                (run_folder / row["images"][0]).hardlink_to(run_folder / f"{path.stem}_0.jpg")
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_report(run_folder)
    data = data_of(page)
    assert page.stat().st_size < 20_000_000
    assert None in [card["images"][0] for card in data["cards"]] and len(data["images"]) > 30
    assert data["cards"][0]["completion"].endswith("… 4,000 more characters")


def test_images_outside_the_run_folder_stay_out(tmp_path):
    """Else a row with ../ puts a private file into a page that is passed around."""
    run = tmp_path / "run"
    run.mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "private.png")
    assert Album(run).add_image("../private.png") is None
    assert Album(run).add_image(str(tmp_path / "private.png")) is None


def test_marks_that_cannot_be_drawn_are_dropped(tmp_path):
    """Else a prediction of 1e999 pixels, read as null, stops the script and all cards after it."""
    good = {"role": "prediction", "kind": "point", "xy": [3, 4.5], "label": ""}
    bad = [{**good, **wrong} for wrong in ({"xy": [None, 4]}, {"xy": [1]}, {"xy": 3}, {"kind": "star"})]
    bad += ["mark", {"role": "truth", "kind": "text"}]
    text = {"role": "truth", "kind": "text", "label": "1 0"}
    assert card({"marks": [*bad, good, text]}, Album(tmp_path))["marks"] == [good, text]


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner), max_leaves=5))
def test_data_cannot_leave_its_script_block(value):
    """Else a completion with a closing script tag runs code in the reader's browser."""
    text = script_json([value, "</script><!--"])
    assert "<" not in text and json.loads(text) == [value, "</script><!--"]


def test_header_values_are_escaped(run_folder):
    """Else a config or summary with markup changes the page."""
    (run_folder / "summary.json").write_text(json.dumps({"metric": "<b>x", "note": "<i>", "before": {"value": 0.1}}))
    text = write_report(run_folder).read_text()
    assert "finds a &lt;shape&gt;" in text and "&lt;i&gt;" in text
    assert "<b>x" not in text and "<i></dd>" not in text


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("task: {data: {}, name: jigsaw}\n", "jigsaw"),
        ("seed: 1\ntask:\n  weights:\n    hit: 1\n  name: 'grounding'\n", "grounding"),
        ("task: my_module:my_task\n", "my_module:my_task"),
        ("seed: 1\npolicy:\n  name: tiny\n", "point-grpo"),
    ],
)
def test_the_title_names_the_task(run_folder, config, expected):
    """Else pages of several runs cannot be told apart."""
    (run_folder / "config.yaml").write_text(config)
    assert title(read_run(run_folder)) == expected


def test_gain_places_dot_and_interval_on_one_axis(run_folder):
    """Else the picture at the top shows a gain that the numbers do not."""
    text = gain(read_run(run_folder))
    dots = [float(left) for left in re.findall(r'class="dot" style="left:([\d.]+)%', text)]
    bars = [tuple(map(float, found)) for found in re.findall(r'"bar" style="left:([\d.]+)%;width:([\d.]+)%', text)]
    assert "+0.720" in text and "[0.795, 0.860]" in text
    # The axis spans 0 to 0.86 + 15 % of (0.86 - 0.085).
    assert dots == pytest.approx([100 * 0.11 / 0.97625, 100 * 0.83 / 0.97625], abs=0.01)
    assert all(left < dot < left + width for dot, (left, width) in zip(dots, bars, strict=True))


def test_a_running_run_shows_first_and_latest_evaluation(run_folder):
    """Else the top of a running run's page is empty although it was evaluated."""
    (run_folder / "summary.json").unlink()
    text = gain(read_run(run_folder))
    assert "first" in text and "latest" in text and "n = 512" in text


def test_a_tasks_own_measures_stand_beside_what_guessing_earns(run_folder):
    """A result below the best constant answer was published, because nobody printed the two together."""
    rows = [
        {"step": 0, "eval/accuracy": 0.4, "eval/miou": 0.418, "eval/best_constant": 0.28, "eval/reward/iou": 0.4},
        {"step": 9, "eval/accuracy": 0.7, "eval/miou": 0.637, "eval/best_constant": 0.28, "eval/<b>": 1, "loss": 3.0},
    ]
    (run_folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    page = write_report(run_folder).read_text()
    listed = re.search(r'<section aria-label="Held-out metrics">.*?</section>', page, re.S)[0]
    found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", listed)
    assert found == [("miou", "0.418 → 0.637"), ("best constant", "0.280"), ("&lt;b&gt;", "1")]


def test_durations_read_as_words():
    """Else wall times have to be divided in one's head."""
    assert [duration(s) for s in (0.25, 59, 185, 7800)] == ["0.25 s", "59 s", "3 min 5 s", "2 h 10 min"]


SHOWN = """(() => {
  const inside = document.querySelector('iframe').contentDocument;
  const shows = id => inside.getElementById(id).getClientRects().length > 0;
  return [shows('curves'), shows('rollouts'), inside.querySelectorAll('#curves svg').length,
    inside.querySelectorAll('#rollouts img').length];
})()"""


@pytest.mark.parametrize(
    ("view", "expected"), [("plot", [True, False]), ("gallery", [False, True]), ("_repr_html_", [True, True])]
)
def test_a_notebook_shows_a_run(open_page, run_folder, tmp_path, view, expected):
    """A cell would show an empty frame, or the whole page where one part was asked for."""
    view = getattr(Run(run_folder), view)()
    html = view if isinstance(view, str) else view._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!DOCTYPE html><title>notebook</title><body>{html}")
    page = open_page(tmp_path / "notebook.html")
    page.until("!!document.querySelector('iframe').contentDocument?.querySelector('#rollouts img')")
    curves, rollouts, charts, images = page.run(SHOWN)
    assert [curves, rollouts] == expected and charts and images
