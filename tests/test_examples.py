"""The scripts and notebooks of `examples/`, as a newcomer starts them, each in an empty folder."""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import vlrl
from vlrl.offpolicy.config import load as load_off_policy
from vlrl.recipe_checks import load_config
from vlrl.registry import make_task
from vlrl.types import Decision, Episode, Turn

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(file.name for file in EXAMPLES.glob("*.py") if file.name != "one_page.py")  # has a test of its own
NOTEBOOKS = sorted(file.name for file in EXAMPLES.glob("*.ipynb"))
SAYS = {  # what a newcomer reads at the end
    "own_task.py": "hits the larger disc:",
    "score_completions.py": "boxes.iou alone: 0.80",
}
# what a reader looks at in the end: reports as pages, images and figures as pictures
SHOWS = {
    "deploy.ipynb": {"text/html"},
    "gui_agent.ipynb": {"image/png", "text/html"},
    "look_at_a_run.ipynb": {"image/png"},
    "own_data.ipynb": {"text/html"},
    "own_method.ipynb": {"text/html"},
    "robot_policy.ipynb": {"image/png", "text/html"},
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Iterator[Path]:
    """An empty folder to work in; the examples' modules can be found, as when Python starts one of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield tmp_path
    for name in [n for n, m in sys.modules.items() if (getattr(m, "__file__", None) or "").startswith(str(EXAMPLES))]:
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_run(name, folder, capsys) -> None:
    """The first thing that a newcomer copies would end in a traceback."""
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert SAYS[name] in capsys.readouterr().out


@pytest.mark.parametrize("method", ["grpo", pytest.param("mssr", marks=pytest.mark.slow)])
def test_one_page_trains_what_the_trainer_does(method, folder) -> None:
    """The reader's map of the trainer would show another method than the one that runs."""
    page = runpy.run_path(str(EXAMPLES / "one_page.py"))
    sizes = (
        {"steps": 3, "prompts_per_step": 8, "group_size": 4}
        if method == "grpo"
        else {"steps": 3, "prompts_per_step": 32, "pool": 64}
    )
    rows = page["train"](replace(page[method.upper()], **sizes))
    changes = {f"train.{name}": value for name, value in sizes.items() if name != "pool"}
    recipe = ["recipes/mssr", {"sampler.limit": 64}] if method == "mssr" else []
    config = vlrl.load_config(
        "gui_grounding", *recipe, changes | {"eval.num_samples": 1, "log.trackers": [], "out": "run"}
    )
    run = vlrl.train(config)
    for name in rows[0]:
        assert run.curve(name)[1] == pytest.approx([row[name] for row in rows], rel=1e-4, abs=1e-6), name


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run(name, tmp_path, monkeypatch) -> None:
    """A cell that fails is met in the middle of a notebook, far from whoever could mend it."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    figures = [cell for cell in code_cells(notebook) if "plt.subplots(" in cell["source"]]
    for cell in figures:  # the kernel shows a cell's figure and forgets it
        cell["source"] += "\nassert figure.axes and all(axis.has_data() for axis in figure.axes)"
    assert bool(figures) == ("matplotlib" in str(notebook))
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in code_cells(notebook) for output in cell["outputs"]]
    said = "".join(output.get("text", "") for output in outputs)
    assert not re.search(r"^vlrl: .*\[VL\d+\]$|Traceback", said, re.MULTILINE)  # a command's failure stops no notebook
    assert SHOWS[name] <= {kind for output in outputs for kind in output.get("data", {})}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_hold_no_outputs(name) -> None:
    """Pictures of somebody's last run would fill the repository and look like what the code does today."""
    cells = code_cells(nbformat.read(EXAMPLES / name, as_version=4))
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize(("name", "package"), [("digits_gym", "gymnasium"), ("sums", "verifiers")])
def test_environments_pay_the_right_answer_and_hold_others_out(name, package, folder, monkeypatch) -> None:
    """The runs by which an ecosystem is tried would learn nothing, or be tested on what they were trained on."""
    pytest.importorskip(package)
    monkeypatch.syspath_prepend(str(EXAMPLES / "environments"))
    task = make_task(load_config(EXAMPLES / "environments" / f"{name}.yaml"))
    shown = {}
    for split in ("train", "test"):
        sample = task.samples(split)[7]
        paid = []
        for guess in range(19):
            answer = task.gold(sample, ()) if guess == 18 else f"<answer>{guess}</answer>"
            if answer is None:
                continue
            with closing(task.environment(sample)) as environment:
                shown[split] = environment.reset()
                turn = Turn(shown[split], Decision(answer, None, None, False), environment.step(answer))
            paid.append(task.reward(task.score(Episode(sample, 0, [turn]))))
        assert max(paid) == 1.0 and paid.count(1.0) == 1 + (task.gold(sample, ()) is not None)
    assert shown["train"].content != shown["test"].content and task.samples("train")[0].id != task.samples("test")[0].id
    task.close()


def test_the_car_needs_to_brake_and_its_script_is_too_slow(folder, monkeypatch) -> None:
    """Where 2 m/s were enough, or full speed, practice would have nothing to learn from slow laps."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "environments"))
    import circuit

    def drive(speed: float) -> tuple[int, circuit.RobotStatus]:
        monkeypatch.setattr(circuit, "SLOW", speed)
        car = circuit.Car()
        car.reset(0)
        for tick in range(1, 300):
            car.send_action(car.expert())
            if (status := car.status()).success or status.failure:
                return tick, status
        raise AssertionError("no end")

    horizon = load_off_policy(EXAMPLES / "environments" / "circuit.yaml").task.options["horizon"]
    assert drive(2.0)[1].success and drive(2.0)[0] > horizon > drive(5.0)[0] and drive(5.0)[1].success
    assert drive(6.0)[1].failure == "off the track"
    car = circuit.Car()
    car.reset(0)
    car.speed, before = 4.0, car.heading
    car.send_action([0.6, 0.0])
    assert car.heading - before == pytest.approx(8 / 4**2 * 4 / 10)  # at 4 m/s the tyres hold a curvature of 0.5
