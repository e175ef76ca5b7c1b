"""Recipes whose parts remember something, killed in the middle of a step: they go on as if nothing had happened."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import yaml

from vlrl.config import Config
from vlrl.recipe_checks import load_config
from vlrl.registry import find, options_of
from vlrl.types import UserError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
APART = {
    "digirl",  # plays in a browser: tests/vlrl/test_offline.py
    "a_lol",  # needs recorded episodes first: tests/vlrl/contrib/replay_mixing/test_recorded_recipes.py
    *("srpo", "srpo_released", "vla_rl_process"),  # tests/vlrl/process
    "resip",  # needs a residual first: tests/vlrl/test_manipulation_run.py
}
REMEMBERING = ("rollout_strategy", "process_rewards", "reward_shaping", "advantages", "replay_mixing", "callbacks")
SMALL = (
    *(
        "train.steps=4",
        "train.prompts_per_step=2",
        "train.num_minibatches=1",
        "train.update_epochs=1",
        "policy.max_tokens=10",
    ),
    *(
        "eval.num_samples=2",
        "eval.batch_size=2",
        "eval.every_steps=4",
        "log.trackers=[]",
        "log.rollouts=1",
        "log.checkpoint_every=2",
    ),
)
FEW = {"pool": 4, "held_out": 2}  # samples, of tasks that are drawn
MORE = {
    "seele": ("rollout_strategy.rounds=2",), "sws": ("sampler.limit=2",), "webrl": ("sampler.limit=2",),
    "relift": ("replay_mixing=[{name: relift, wait: 2}]",),
    "snapshot_rl": ("train.prompts_per_step=6", "rollout_strategy.share=0.9"),  # something is won, and begun from
}  # fmt: skip
DEADLY = '''
"""Dies once: in the step that follows three."""

import os
import signal
from pathlib import Path

from vlrl.methods import Callback, method


@method(source="a test's")
class Deadly(Callback):
    def __init__(self, policy, task, updater, seed, *, mark: str):
        self.mark = Path(mark)

    def on_step_begin(self, step):
        if step == 3 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


deadly = Deadly
'''


def stateful(config: Config) -> set[tuple[str, str]]:
    """(kind, name) of the parts that a checkpoint must hold."""
    parts = {(kind, part.name) for kind in REMEMBERING for part in _listed(getattr(config, kind))}
    parts |= {("sampler", config.sampler.name)} - {("sampler", "shuffled")}
    return {(kind, name) for kind, name in parts if isinstance(part := find(kind, name), type) and part.is_stateful()}


def _listed(value):
    return value if isinstance(value, list) else [value]


def _parts(value) -> list[dict]:
    return [part for part in _listed(value) if isinstance(part, dict) and "name" in part]


def chosen() -> list[Path]:
    """The fewest recipes, in their order, that have all such parts."""
    seen, files, known = set(), [], set()
    for file in sorted((ROOT / "configs" / "recipes").glob("*.yaml")):
        said = {(k, part["name"]) for k, value in yaml.safe_load(file.read_text()).items() for part in _parts(value)}
        if file.stem in APART or said <= known:
            continue  # to load one takes a while, and this is done for every run of any test
        known |= said
        try:
            own = stateful(load_config(file))
        except UserError:  # lies over a certain task
            continue
        if own - seen:
            files.append(file)
            seen |= own
    return files


@pytest.mark.parametrize("recipe", chosen(), ids=lambda file: file.stem)
def test_a_killed_run_goes_on_exactly(recipe, train, tmp_path):
    """A memory, a curriculum or a schedule that a kill resets changes the result of a long run unseen."""
    own = load_config(recipe)
    size = min(own.train.group_size, 2)
    few = [f"task.{key}={n}" for key, n in FEW.items() if key in options_of(find("task", own.task.name))]
    hooks = [{"name": h.name, **h.options} for h in own.callbacks]
    metrics = []
    for name in ("straight", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "deadly.py").write_text(DEADLY)
        mark = tmp_path / "died"
        if name == "straight":
            mark.touch()
        dying = {"name": "deadly:deadly", "mark": str(mark)}
        arguments = (str(recipe), "out=run", f"train.group_size={size}", *SMALL, *few, *MORE.get(recipe.stem, ()),
                     f"callbacks={[*hooks, dying]}")  # fmt: skip
        code = train(folder, *arguments)
        if name == "straight":
            assert code == 0, (folder / "err").read_text()
            mark.unlink()
        else:
            assert code == -signal.SIGKILL, (folder / "err").read_text()
            assert train(folder, "--resume", "run") == 0, (folder / "err").read_text()
        metrics.append((folder / "run" / "metrics.jsonl").read_text())
    assert metrics[0] == metrics[1]
