"""The report in a real browser: what its reader sees, can reach and is safe from."""

from __future__ import annotations

import base64
import json
from io import BytesIO

import pytest
from page_checks import FAINT, OVERFLOW, find_controls
from PIL import Image
from small_runs import write_lines

from vlrl.report.html import write_report

CARDS = "[...document.querySelectorAll('#cards > article:not([hidden])')]"

SET = """(() => {{
  const control = document.querySelector("{selector}");
  control.value = "{value}";
  control.dispatchEvent(new Event("input", {{ bubbles: true }}));
}})()"""

# Over all cards with a box and a point: how far marks are drawn from where the data puts them on the picture.
PLACES = """(() => {
  const rows = JSON.parse(document.getElementById("data").textContent).cards;
  const worst = { cards: 0, shape: 0, point: 0, box: 0, boxWidth: 0 };
  document.querySelectorAll("#cards > article").forEach((card, k) => {
    const { marks, image_size: [width, height] } = rows[k];
    if (marks.length !== 2 || marks[1].kind !== "point") return;
    const image = card.querySelector("img").getBoundingClientRect(), scale = image.width / width;
    const distance = (selector, x, y) => {
      const box = card.querySelector(selector).getBoundingClientRect();
      const dx = box.left + box.width / 2 - image.left - x * scale;
      return Math.hypot(dx, box.top + box.height / 2 - image.top - y * scale);
    };
    const [x1, y1, x2, y2] = marks[0].xy, rect = card.querySelector(".mark.truth.box rect");
    const wide = rect.getBBox().width * rect.getScreenCTM().a;
    const found = {
      shape: Math.abs(image.height - height * scale),
      point: distance(".mark.prediction.point", ...marks[1].xy),
      box: distance(".mark.truth.box", (x1 + x2) / 2, (y1 + y2) / 2),
      boxWidth: Math.abs(wide - (x2 - x1) * scale),
    };
    for (const [name, error] of Object.entries(found)) worst[name] = Math.max(worst[name], error);
    worst.cards += 1;
  });
  return worst;
})()"""


@pytest.fixture
def report(run_folder):
    return write_report(run_folder)


def test_curves_and_cards_are_drawn_without_error_or_network(open_page, report):
    """Else the page is blank, or it tells some server which run its reader looks at."""
    page = open_page(report)
    curves = page.run(
        "[...document.querySelectorAll('.line')].map(line => line.getAttribute('d').split(/[ML]/).length)"
    )
    assert len(curves) > 15 and all(points > 3 for points in curves)
    assert page.run("document.querySelectorAll('.band').length") == 1
    assert page.run(f"{CARDS}.length") == 200
    assert page.requests() == [report.as_uri()]
    assert page.complaints() == []


@pytest.mark.parametrize("width", [390, 1600])
def test_marks_lie_on_their_pixels(open_page, report, width):
    """Else a right answer looks wrong: pictures are thumbnails of half the size that marks are in."""
    worst = open_page(report, width=width).run(PLACES)
    assert worst.pop("cards") > 50
    assert all(error <= 1.5 for error in worst.values()), worst


@pytest.mark.parametrize("width", [390, 768, 1600])
def test_nothing_sticks_out_sideways(open_page, report, width):
    """Else a telephone's reader has to scroll sideways to read a number."""
    page = open_page(report, width=width)
    assert page.run(OVERFLOW) == 0
    page.run("document.querySelectorAll('details').forEach(part => { part.open = true })")
    page.settle()
    assert page.run(OVERFLOW) == 0


def test_a_hostile_completion_is_shown_and_not_run(open_page, report):
    """Else a model (or a data set) runs code in the browser of whoever reads the report."""
    page = open_page(report)
    page.settle()
    assert page.run("typeof window.hacked") == "undefined"
    shown = (
        "[...document.querySelectorAll('.completion')].some(text => text.textContent.startsWith('</script><script>'))"
    )
    assert page.run(shown) is True


def test_images_load_when_their_card_comes_near(open_page, report):
    """Else opening a report decodes hundreds of pictures at once, or they never appear."""
    page = open_page(report, height=700)
    assert page.run("document.querySelectorAll('#cards img[src]').length") == 0
    page.run("document.getElementById('rollouts').scrollIntoView({ behavior: 'instant' })")
    page.settle()
    loaded = page.run("document.querySelectorAll('#cards img[src]').length")
    assert 0 < loaded < page.run("document.querySelectorAll('#cards img').length")
    assert page.run("document.querySelector('#cards img[src]').decode().then(() => true)") is True


def test_a_few_new_rollouts_stand_above_the_curves(open_page, report):
    """Else what the model does now is found below all the curves, or the same question four times."""
    page = open_page(report)
    few, newest = "[...document.querySelectorAll('.few > article')]", "data.cards.find(row => verdict(row) === 'right')"
    assert page.run(f"{few}.length") == 4
    assert page.run(f"{few}[0].textContent.includes('step ' + {newest}.step)") is True
    assert page.run(f"new Set({few}.map(card => card.querySelector('details').textContent)).size") == 4
    assert page.run(f"{few}.filter(card => card.classList.contains('right')).length") == 2
    top = "document.getElementById('{}').getBoundingClientRect().top"
    assert page.run(f"{top.format('strip')} < {top.format('curves')}") is True
    assert page.until(f"{few}[0].querySelector('img').naturalWidth") > 0


def test_filters_narrow_the_cards(open_page, report):
    """Else a reader cannot find the failures among 200 rollouts."""
    page = open_page(report)
    page.run("document.querySelector('input[value=failure]').click()")
    verdicts = page.run(f"{CARDS}.map(card => card.querySelector('.badge').textContent)")
    assert 0 < len(verdicts) < 200 and set(verdicts) == {"parse failure"}
    page.run(SET.format(selector="select", value="140"))
    assert 0 < page.run(f"{CARDS}.length") < len(verdicts)
    page.run(SET.format(selector="[type=search]", value="no such text"))
    assert page.run("document.getElementById('count').textContent") == "No rollout matches these filters."


def test_keyboard_reads_a_curve(open_page, report):
    """Else only those with a mouse can read a value."""
    page = open_page(report)
    page.run("document.querySelector('.plot').focus()")
    page.press("End", "ArrowLeft")
    said = page.run("document.querySelector('.plot').getAttribute('aria-valuetext')")
    assert said.startswith("step 275: held out 0.8") and "[" in said
    assert page.run("document.querySelectorAll('.cursor line').length") > 15  # the step shows on all charts


def test_keyboard_goes_through_the_rollouts(open_page, report):
    """Else reading two hundred answers takes two hundred aims of the mouse, or the keys of a field are taken away."""
    page = open_page(report)
    place = f"{CARDS}.indexOf(document.activeElement)"
    page.press("j")
    assert page.run(place) == 0
    page.press("j", "ArrowRight", "ArrowDown", "k")
    assert page.run(place) == 2
    assert page.run("getComputedStyle(document.activeElement).outline").endswith("solid 2px")
    top, bottom = page.run("(({ top, bottom }) => [top, bottom])(document.activeElement.getBoundingClientRect())")
    assert 48 <= top < 900 and bottom > top  # not under the bar
    page.press("/", *"junk")  # letters of the search now
    assert page.run("document.activeElement.value") == "junk" and page.run(f"{CARDS}.length") == 0
    page.run(SET.format(selector="[type=search]", value="cannot"))
    assert 0 < page.run(f"{CARDS}.length") < 200
    page.press("Escape", "j")
    assert page.run(place) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(open_page, report, scheme):
    """Else grey on grey hides numbers from older eyes and from projectors."""
    page = open_page(report, scheme=scheme)
    page.run("document.querySelectorAll('details').forEach(part => { part.open = true })")
    assert page.run(FAINT) == []


def test_ten_thousand_rollouts_make_one_page_below_20_mb(open_page, run_folder):
    """Else a long run's page cannot be mailed, or shows some rollouts as if they were all."""
    small = (run_folder / "rollouts" / "step_000300.jsonl").read_text().splitlines()
    rows = [{**json.loads(line), "completion": "because " * 60} for line in small]
    for step in range(1, 626):
        new = [{**row, "step": step, "sample_id": f"{step}/{k}"} for k, row in enumerate(rows)]
        write_lines(run_folder / "rollouts" / f"step_{step:06d}.jsonl", new)
    report = write_report(run_folder)
    assert report.stat().st_size < 20_000_000
    page = open_page(report)
    assert page.run("document.getElementById('rollouts-note').textContent") == (
        "200 of 10,000 rollouts, of 625 saved steps"
    )
    assert page.complaints() == []


def test_pointer_reads_a_curve(open_page, report):
    """Else hovering shows nothing, or another step's value."""
    page = open_page(report)
    page.run("document.querySelector('.chart.wide').scrollIntoView({ behavior: 'instant', block: 'center' })")
    page.settle()
    x, y, expected = page.run("""(() => {
      const dot = document.querySelector(".chart.wide .series circle:nth-of-type(5)").getBoundingClientRect();
      const points = JSON.parse(document.getElementById("data").textContent).sections[0].charts[0].series[0].points;
      return [dot.left + dot.width / 2, dot.top + 20, points[4]];
    })()""")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert page.run("document.querySelector('.when').textContent") == f"step {expected[0]}"
    assert page.run("document.querySelector('.keys b').textContent").startswith(f"{expected[1]:.3f}")


def test_smoothing_keeps_the_raw_line(open_page, report):
    """Else smoothing hides what was measured, or cannot be switched off."""
    page = open_page(report)
    raw, line = "document.querySelectorAll('.raw').length", "document.querySelectorAll('.line')[1].getAttribute('d')"
    assert page.run(raw) > 15
    page.run(SET.format(selector="#smoothing", value=0.9))
    smooth = page.run(line)
    page.run(SET.format(selector="#smoothing", value=0))
    assert page.run(raw) == 0 and page.run(line) != smooth


def brightness(page) -> float:
    shot = page.call("Page.captureScreenshot")["data"]
    with Image.open(BytesIO(base64.b64decode(shot))) as image:
        return image.convert("L").resize((1, 1)).getpixel((0, 0))


def test_dark_scheme_is_dark_and_can_be_switched(open_page, report):
    """Else a reader with a dark desktop is blinded, or a printout is black."""
    page = open_page(report, scheme="dark")
    assert brightness(page) < 60
    page.run("document.getElementById('theme').click()")
    page.settle()
    assert brightness(page) > 200
    assert page.complaints() == []


def test_controls_have_names(open_page, report):
    """Else a screen reader says 'button' and 'slider' and nothing else."""
    assert len(find_controls(open_page(report))) > 20


@pytest.mark.slow
@pytest.mark.parametrize("rows", [[], [{"step": 1, "reward": 0.5}]])
def test_a_young_run_has_a_readable_page(open_page, tmp_path, rows):
    """Else the page of a run that has made no or one step is blank or broken."""
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = open_page(write_report(tmp_path), width=390)
    text = page.run("document.body.innerText")
    assert "No rollouts saved yet." in text
    assert ("No metrics yet" in text) == (not rows)
    assert page.run("document.querySelectorAll('.series circle').length") == len(rows)
    assert page.complaints() == [] and page.run(OVERFLOW) == 0
