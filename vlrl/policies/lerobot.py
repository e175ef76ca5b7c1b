"""lerobot's policies (ACT, diffusion, SmolVLA, pi0, pi0.5) as `lerobot-train` saves them: to act and be evaluated."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch

from vlrl.policies.lerobot_batch import Inputs
from vlrl.policies.lerobot_files import check_files, checkpoint, fetched
from vlrl.types import Decision, Episode, Observation, Sample, UserError


@dataclass(frozen=True, eq=False)
class Plan:
    """What the policy keeps of its own decision."""

    rest: np.ndarray  # float32 [R, A], for the ticks after it


class LerobotPolicy:
    """A policy of lerobot (`vlrl.types.Policy`), for acting alone: it cannot say how likely its actions were.

    A decision is float32 [K, A] in physical units: the first `n_action_steps` of the predicted chunk. A policy that
    sees several steps of the past (diffusion) is asked tick by tick, since it must see each tick; it plans anew when
    its plan is carried out, as in lerobot. All of an episode's memory is in its turns, so any episodes may be asked in
    one batch.

    Args:
        model, before, after: lerobot's policy, its pre- and its post-processor.
        seed: of the noise that diffusion and flows begin with.
    """

    def __init__(self, model: Any, before: Any, after: Any, *, seed: int = 0):
        self.model, self._before, self._after, self._seed = model, before, after, seed
        self._draws = np.random.default_rng(seed)
        self.inputs, self._steps = Inputs.of(model.config), int(model.config.n_action_steps)

    @torch.no_grad()
    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False, keep: bool = False
    ) -> list[Decision]:
        """One decision for each observation; log-probabilities and entropies are unknown, so NaN [K].

        Args:
            greedy: noise is the same in every run with equal batches, whatever was asked before.

        Raises:
            UserError: the robot shows something else than the policy was made for.
        """
        plans = [_rest(episode) for episode in episodes]
        asked = [i for i, plan in enumerate(plans) if not len(plan)]
        if asked:
            seen = [self.inputs.seen(episodes[i], observations[i]) for i in asked]
            seed = self._seed + len(episodes[asked[0]].turns) if greedy else int(self._draws.integers(2**32))
            for i, plan in zip(asked, self._plan(seen, seed), strict=True):
                plans[i] = plan
        size = 1 if self.inputs.past > 1 else self._steps
        return [_decision(plan[:size], plan[size:]) for plan in plans]

    def check(self, sample: Sample) -> NoReturn:
        """UserError: what the trainer asks before it begins."""
        self._refuse()

    def evaluate(self, decisions: Sequence[Decision]) -> NoReturn:
        """UserError: there are no likelihoods."""
        self._refuse()

    def reference(self, decisions: Sequence[Decision]) -> NoReturn:
        """UserError: there are no likelihoods."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UserError(
            f"policy.model: lerobot's {self.model.config.type!r} cannot be trained by likelihood, for it gives none: "
            "train it with lerobot-train (docs/demos.md), or start from a policy that `vlrl clone` makes"
        )

    def _plan(self, seen: Sequence[Sequence[Observation]], seed: int) -> np.ndarray:
        """Actions float32 [B, n_action_steps, A], physical, after observations [B, past]."""
        self.model.reset()
        self.model.eval()
        device = next(self.model.parameters()).device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)  # lerobot draws from the global generator
            chunk = self.model.predict_action_chunk(self._before(self.inputs.batch(seen)))
        return self._after(chunk[:, : self._steps]).float().cpu().numpy()


def _rest(episode: Episode) -> np.ndarray:
    """What the last decision left for the next ticks."""
    plan = episode.turns[-1].decision.inputs if episode.turns else None
    return plan.rest if isinstance(plan, Plan) else np.zeros((0, 0), np.float32)


def _decision(action: np.ndarray, rest: np.ndarray) -> Decision:
    unknown = torch.full((len(action),), torch.nan)
    return Decision(np.ascontiguousarray(action), unknown, unknown, False, inputs=Plan(rest))


def load_lerobot(source: str, device: str) -> LerobotPolicy:
    """The policy of a folder or hub name in lerobot's layout, or of a run folder of `lerobot-train`.

    Raises:
        UserError: lerobot is missing, or there is no such policy, or it is of a kind that is not loaded.
    """
    source = fetched(checkpoint(source))
    check_files(source)
    try:
        from lerobot.configs.policies import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    except ImportError as error:
        raise UserError(f"policy.model: needs lerobot: pip install 'vlrl[robot]' ({_line(error)})") from None
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # lerobot says that it is loading
            config = PreTrainedConfig.from_pretrained(source, cli_overrides=[f"--device={device}"])
            model = get_policy_class(config.type).from_pretrained(source, config=config, strict=True)
            on = {"device_processor": {"device": device}}
            before, after = make_pre_post_processors(config, source, preprocessor_overrides=on)
    except Exception as error:  # lerobot and what it calls raise what they like
        raise UserError(f"policy.model: lerobot cannot load {source}: {_line(error)}") from None
    return LerobotPolicy(model, before, after)


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
