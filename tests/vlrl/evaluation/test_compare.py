"""`vlrl compare` from end to end: real runs, a second call that trains nothing, killed runs, failures."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from vlrl.cli import main
from vlrl.evaluation.compare_report import judged_rows

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
RECIPES = ROOT / "configs" / "recipes"
SMALL = {
    "out": "out",
    "task": "task.yaml",
    "recipes": [{"name": "mssr", "files": [str(RECIPES / "mssr.yaml")]},
                {"name": "grpo", "files": [str(RECIPES / "grpo.yaml")]}],
    "budget": {"rollouts": 48, "rollouts_per_update": 16, "passes": 4, "group_size": 4},
    "evaluations": 3,
    "seeds": {"each": 2, "looks": 1},
    "pass_at": {"samples": 2, "k": [1, 2]},
    "reach": [0.01, "grpo"],
}  # fmt: skip
TASK = {"base": str(ROOT / "configs" / "gui_grounding.yaml"), "eval": {"num_samples": 16, "batch_size": 16}}
PATIENCE = 600  # seconds until a command counts as stuck


def command(folder, *arguments):
    return [sys.executable, "-m", "vlrl.cli", "compare", str(folder / "compare.yaml"), *arguments]


def write(folder, **changes):
    (folder / "task.yaml").write_text(yaml.safe_dump(TASK))
    (folder / "compare.yaml").write_text(yaml.safe_dump(SMALL | changes))


def call(folder, *arguments):
    return subprocess.run(command(folder, *arguments), cwd=folder, capture_output=True, text=True, timeout=PATIENCE)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A finished comparison of 2 recipes x 2 seeds x 3 steps, killed once on its way."""
    folder = tmp_path_factory.mktemp("compare")
    write(folder)
    running = subprocess.Popen(command(folder), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + PATIENCE
    while not (folder / "out" / "grpo" / "seed_0" / "metrics.jsonl").exists():
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    running.send_signal(signal.SIGSTOP)  # it would be through before a busy machine has started the second one
    second = call(folder)
    running.send_signal(signal.SIGCONT)
    # they would train over each other
    assert second.returncode == 2 and "out is in use by" in second.stderr
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    before = (folder / "out" / "mssr" / "seed_0" / "summary.json").stat().st_mtime_ns
    done = call(folder)
    assert done.returncode == 0, done.stderr
    return folder, done, before


@pytest.mark.slow
def test_a_comparison_runs_and_goes_on_where_it_was_stopped(compared):
    """Hours of finished runs would be trained again, or a run that was stopped would be lost."""
    folder, done, before = compared
    result = json.loads((folder / "out" / "result.json").read_text())
    assert (folder / "out" / "mssr" / "seed_0" / "summary.json").stat().st_mtime_ns == before
    for arm in result["arms"]:
        assert (arm["counted"]["value"], arm["updates"]["value"]) == (48, 3) and len(arm["seeds"]) == 2
        assert arm["rollouts"]["value"] == 48 and arm["tokens"]["value"] > 48 and arm["cpu_s"]["value"] > 0
        assert 0 < arm["pass_at"]["1"]["value"] <= arm["pass_at"]["2"]["value"] <= 1
    assert result["notes"] == [] and result["test"]["undecided"] is False
    assert [d["verdict"] for d in result["test"]["decisions"]] == ["open"]  # two seeds decide nothing
    assert len(result["courses"]["mssr"]["accuracy"]) == 4 and len(result["courses"]["mssr"]["entropy"]) == 3
    assert result["reach"][0]["arms"]["grpo"]["steps"]["value"] == 0
    assert "different prompts" in done.stdout and "no difference shown" in done.stdout


@pytest.mark.slow
def test_the_page_holds_everything_and_needs_nothing(compared):
    """The page is what people pass on."""
    page = (compared[0] / "out" / "report.html").read_text()
    assert page.count("<svg") == 6 and "http" not in page.replace("http-equiv", "") and "$" not in page
    for said in ("no difference shown", "pass@2", "CPU seconds", "the methods differ", "first responses"):
        assert said in page
    assert (compared[0] / "out" / "curves.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_several_comparisons_make_one_page(compared):
    """A reader sees every recipe's verdict, what it rests on and what it cost, and no finished run is made again."""
    folder, _, before = compared
    shutil.copy(folder / "compare.yaml", folder / "again.yaml")
    done = call(folder, "again.yaml", "pairs=baseline", "--page", "results/page.md")
    assert done.returncode == 0, done.stderr
    assert (folder / "out" / "mssr" / "seed_0" / "summary.json").stat().st_mtime_ns == before
    page = (folder / "results" / "page.md").read_text()
    assert page.count("\n## ") == 2 and "2 recipes against" in page and "48 rollouts a run, 2 seeds" in page
    first = (folder / "out" / "mssr" / "seed_0" / "config.yaml").read_text().partition("\n")[0]
    commit = re.search(r"commit \w+(\+changes)?", first)[0]  # of the code that trained, whichever made the page
    assert page.count(f"CPU-minutes, {commit}. ") == 2
    row = next(line for line in page.splitlines() if line.startswith("| grpo | 0."))
    assert re.search(r"\[[+-]0\.\d{3}, [+-]0\.\d{3}\] \| [01]\.\d{3} \| (undecided|no difference) \|", row)
    assert (folder / "results" / "page.png").read_bytes()[:4] == b"\x89PNG"


def test_a_listed_pair_is_judged_against_its_own_recipe():
    """What two variants differ in would be hidden behind what both have over the first recipe."""
    finals = {"one": (0.1, 0.2), "two": (0.5, 0.6), "three": (0.55, 0.65)}
    arms = [{"name": name, "seeds": [{"value": value} for value in values]} for name, values in finals.items()]
    decisions = [{"a": "two", "b": "three", "verdict": "smaller", "p": 0.01}]
    result = {"arms": arms, "test": {"decisions": decisions}, "config": {"pairs": [["one", "two"], ["two", "three"]]}}
    two, three = judged_rows(result)
    assert (two["name"], two["difference"], two["p"]) == ("two", pytest.approx(0.4), None)
    assert (three["name"], three["difference"]) == ("three, against two", pytest.approx(0.05))
    assert (three["p"], three["verdict"]) == (0.01, "helps")


@pytest.mark.parametrize("page", [".", "file/page.md"])
def test_a_page_that_cannot_be_written_stops_before_the_runs(page, tmp_path, monkeypatch, capsys):
    """Hours of runs would end in an error."""
    write(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "compare.yaml", "--page", page]) == 2
    assert f"--page {page}: cannot be written" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_runs_made_with_other_settings_are_not_taken_for_these(compared):
    """A changed budget would mix old runs with new ones in one mean."""
    done = call(compared[0], "task=" + str(compared[0] / "other.yaml")) if (
        (compared[0] / "other.yaml").write_text(yaml.safe_dump(TASK | {"train": {"lr": 0.01}}))
    ) else None  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "was made with other settings (train.lr: 0.0003 there, 0.01 now)" in done.stderr


@pytest.mark.slow
def test_a_run_that_fails_says_why_in_one_line(tmp_path):
    """Among dozens of runs, the one that fails must name itself."""
    write(tmp_path, task="bad.yaml")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(TASK | {"policy": {"model": str(tmp_path / "nothing")}}))
    done = call(tmp_path)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "mssr" in last and "nothing" in last and last.count("vlrl: ") == 1


def test_a_start_that_is_missing_stops_before_the_runs(tmp_path, monkeypatch, capsys):
    """The first recipes would train for hours before the one that lacks its start."""
    write(tmp_path, task="bad.yaml")
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(TASK | {"policy": {"model": "runs/nothing"}}))
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "compare.yaml"]) == 2
    assert "policy.model: there is no folder 'runs/nothing'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_plan_is_told_without_training(tmp_path):
    """What is compared can be read before hours are spent, and loads no torch."""
    write(tmp_path)
    done = call(tmp_path, "--plan")
    assert done.returncode == 0 and "4 runs of 2 recipes" in done.stdout and not (tmp_path / "out").exists()
    code = ("import sys; from vlrl.evaluation.compare import plan_plan; "
            f"plan_plan({str(tmp_path / 'compare.yaml')!r}); sys.exit('torch' in sys.modules)")  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0
