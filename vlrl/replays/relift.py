"""ReLIFT: what nobody solved is shown, as soon as enough of it has come together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlrl.methods import method
from vlrl.replays.remembered import next_group
from vlrl.replays.showing import check_shows, shown
from vlrl.strict import Count
from vlrl.types import Lesson, Policy, Sample


@method(source="ReLIFT, arXiv 2506.07527; github.com/TheRoadQaQ/ReLIFT")
class Relift:
    """Reinforcement learning moves within what a policy can do; what it never gets right it is shown.

    A prompt whose episodes are all wrong waits; when `wait` prompts do, their gold episodes are added to the step's
    lessons, with credit 0, for the loss `sft` to imitate. Those that nobody solves wait again. A prompt waits once,
    however often it fails.

    Published, the demonstrations make an update of their own, with an optimizer of its own (learning rate 1e-6, entropy
    0.001); here they share the step's, where `sft`'s coef and the weighing say how much they count beside the others.

    Args:
        wait: prompts; the released code waits for 128.

    Raises:
        UserError: the policy is no language model; no gold action to a sample is known.
    """

    def __init__(self, policy: Policy, task: Any, seed: int, *, wait: Count = 128):
        check_shows(policy, "relift")
        self.policy, self.task, self.wait = policy, task, wait
        self.waiting: dict[str, Sample] = {}  # by their ids
        self.metrics: dict[str, float] = {}

    def __call__(self, lessons: Sequence[Lesson], step: int) -> list[Lesson]:
        solved: dict[int, bool] = {}
        sample_of: dict[int, Sample] = {}
        for episode in (lesson.episode for lesson in lessons):
            solved[episode.group] = solved.get(episode.group, False) or episode.score.is_correct
            sample_of[episode.group] = episode.sample
        failed = {sample_of[g].id: sample_of[g] for g, right in solved.items() if not right}
        self.waiting |= {name: sample for name, sample in failed.items() if name not in self.waiting}
        added: list[Lesson] = []
        if len(self.waiting) >= self.wait:
            chosen = list(self.waiting)[: self.wait]
            added = shown(self.policy, self.task, [self.waiting.pop(name) for name in chosen], next_group(lessons))
        self.metrics = {
            "relift/unsolved": len(failed) / len(solved), "relift/waiting": float(len(self.waiting)),
            "relift/shown": float(len(added)),
        }  # fmt: skip
        return [*lessons, *added]

    def state_dict(self) -> dict[str, Any]:
        return {"waiting": list(self.waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Looks the samples up, one after the other until all are found; what the task no longer has is left out."""
        sought, found = set(state["waiting"]), {}
        every = iter(self.task.samples("train"))
        while sought and (sample := next(every, None)) is not None:
            if sample.id in sought:
                found[sample.id] = sample
                sought.remove(sample.id)
        self.waiting = {name: found[name] for name in state["waiting"] if name in found}


relift = Relift
