"""Conversations that were played: what tests of pages, exports and scores have in common."""

from __future__ import annotations

from dataclasses import replace

from tasks.dialogue import Dialogue
from tasks.gui_grounding import GuiGrounding
from tasks.visual_search import VisualSearch
from vlrl.algorithms.rollout_common import decide_gold
from vlrl.config import PolicySection
from vlrl.engines import load_policy
from vlrl.types import Episode, Turn

TASKS = {
    "visual_search": (VisualSearch, {"size": (128, 128), "template": "short", "system": "You see sharply."}),
    "dialogue": (Dialogue, {}),
    "gui_grounding": (GuiGrounding, {}),
}


def make_task(name: str, **options):
    kind, own = TASKS[name]
    return kind(**{"held_out": 4, **own, **options})


def embedded(max_pixels: int = 4096):
    return load_policy(PolicySection(model="embedded", max_pixels=max_pixels, max_tokens=16))


def play_gold(task, policy, count: int) -> list[Episode]:
    """Episodes of the task's gold actions, scored, with the policy's own log-probabilities of them."""
    episodes = []
    for group in range(count):
        sample = task.samples("test")[group]
        environment, episode, over = task.environment(sample), Episode(sample, group), False
        shown = environment.reset()
        while not over:
            decision = decide_gold(policy, task, environment, episode, shown)
            found = policy.evaluate([decision])
            length = len(decision.logprobs)
            likely = {
                "logprobs": found.logprobs[0, :length].detach(),
                "entropy": found.entropy[0, :length].detach(),
            }
            decision = replace(decision, **likely)
            step = environment.step(decision.action, decision.frames)
            episode.turns.append(Turn(shown, decision, step))
            shown, over = step.observation, step.terminated or step.truncated
        episode.score = task.score(episode)
        episode.reward = task.reward(episode.score)
        episodes.append(episode)
    return episodes
