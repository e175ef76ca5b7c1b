"""What the GUI action benchmarks report, over all samples that they ask about.

The published evaluators differ; docs/gui_data.md has the list. GUI-R1's counts a category only from its first hit on,
has no step success for actions without place or text, gives it to the right place of a wrong action, and measures to a
box's corner. OS-Atlas compares the second word of a text only. GUI-Odyssey takes any text that contains the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rewards.actions import PLACED, Action
from tasks.gui.gui_steps import Truth, odyssey_step, os_atlas_place, os_atlas_step
from tasks.metrics import breakdown
from vlrl.types import Episode


@dataclass(frozen=True)
class Step:
    """One scored step: the right action, the model's (None: not readable), and the episode that it was taken in."""

    truth: Truth
    action: Action | None
    episode: Episode

    @property
    def correct(self) -> float:
        return self.episode.score.correct

    @property
    def right_kind(self) -> float:
        return float(self.action is not None and self.action.kind == self.truth.kind)

    def by(self, rule: Callable[[Action, Truth, tuple[int, int]], float]) -> float:
        """What a rule of tasks/gui/gui_steps.py says; nothing is right that cannot be read."""
        return rule(self.action, self.truth, self.episode.frames[0].original) if self.action else 0.0

    def tag(self, name: str) -> str:
        return self.episode.sample.tags.get(name, "")


def metrics(steps: Sequence[Step]) -> dict[str, float]:
    """Shares in 0 to 1.

    `type`: the kind is right; `grounding`: so is the place, over samples that have one; `step`: kind and argument;
    `step_macro`: its mean over the true kinds; `step/KIND`, `group/GROUP`: by true kind and by the data set's group;
    `os_atlas/..`: grounding and step by 14 % of the screen; `gui_odyssey/..`: see `odyssey`; `parse_fail`: what cannot
    be read; `zero_hit`: the number of kinds without a single right step.
    """
    kinds = breakdown.by_category((step.truth.kind, step.correct) for step in steps)
    groups = breakdown.by_category((step.tag("group"), step.correct) for step in steps)
    placed = [step for step in steps if step.truth.kind in PLACED]
    return {
        "type": breakdown.mean([step.right_kind for step in steps]),
        "grounding": breakdown.mean([step.correct for step in placed]),
        "step": breakdown.mean([step.correct for step in steps]),
        "step_macro": breakdown.mean(list(kinds.values())),
        **{f"step/{kind}": value for kind, value in kinds.items()},
        **{f"group/{group}": value for group, value in groups.items()},
        "os_atlas/grounding": breakdown.mean([step.right_kind * step.by(os_atlas_place) for step in placed]),
        "os_atlas/step": breakdown.mean([step.by(os_atlas_step) for step in steps]),
        **odyssey([step for step in steps if step.tag("episode")]),
        "parse_fail": breakdown.parse_failures([step.episode for step in steps]),
        "zero_hit": float(sum(value == 0 for value in kinds.values())),
    }


def odyssey(steps: Sequence[Step]) -> dict[str, float]:
    """GUI-Odyssey's numbers, where samples are steps of episodes; {} where they are not.

    `ams`: share of right steps; `episode`: share of episodes all of whose steps are right; each over all and as the
    mean over categories (`_macro`; the benchmark's own script calls that one micro). Episodes of which steps are
    missing are left out and counted as `incomplete`.
    """
    if not steps:
        return {}
    scored = [(step, step.by(odyssey_step)) for step in steps]
    ams = breakdown.by_category((step.tag("category"), value) for step, value in scored)
    episodes: dict[str, list[tuple[Step, float]]] = {}
    for step, value in scored:
        episodes.setdefault(step.tag("episode"), []).append((step, value))
    whole = [taken for taken in episodes.values() if len(taken) == int(taken[0][0].tag("steps"))]
    done = [(taken[0][0].tag("category"), float(all(value for _, value in taken))) for taken in whole]
    return {
        "gui_odyssey/ams": breakdown.mean([value for _, value in scored]),
        "gui_odyssey/ams_macro": breakdown.mean(list(ams.values())),
        "gui_odyssey/episode": breakdown.mean([value for _, value in done]),
        "gui_odyssey/episode_macro": breakdown.mean(list(breakdown.by_category(done).values())),
        "gui_odyssey/incomplete": float(len(episodes) - len(whole)),
    }
