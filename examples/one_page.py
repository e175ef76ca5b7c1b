"""GRPO and MSSR on one page: what a training step of vlrl does, without its plug-ins. The reader's map of the trainer.

    python examples/one_page.py [grpo | mssr]

It trains the embedded vision-language model to click widgets on drawn screens, with the numbers of
`vlrl train configs/gui_grounding.yaml` (and `configs/recipes/mssr.yaml`): a test holds the two to each other. The
trainer adds what a long run needs: checkpoints, evaluation, turns, micro-batches, many processes, engines, reports.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tasks.gui_grounding import GuiGrounding
from vlrl.config import PolicySection
from vlrl.policies import loading
from vlrl.types import Decision, Episode, Sample, Turn


@dataclass(frozen=True)
class Settings:
    """The sizes and constants of a run; the comments say where they stand in its YAML."""

    method: str = "grpo"
    prompts_per_step: int = 16  # train.prompts_per_step: in a step
    group_size: int = 8  # train.group_size: completions of a prompt
    steps: int = 600
    lr: float = 3e-4  # falls linearly to 0
    max_grad_norm: float = 1.0
    clip: tuple[float, float] = (0.2, 0.2)  # losses.0.low, high
    dual: float | None = None  # losses.0.dual: bound of the loss where the advantage is negative
    kl_coef: float = 0.0  # losses.1.coef
    pool: int | None = None  # sampler.limit: prompts that recur
    seed: int = 0


GRPO = Settings()
MSSR = Settings("mssr", 128, 1, 600, max_grad_norm=0.5, clip=(0.2, 0.3), dual=3.0, kl_coef=0.01, pool=2048)


def draw_prompts(n: int, settings: Settings) -> Callable[[int], list[int]]:
    """Positions of the next prompts: each once an epoch, in an order that depends on the seed and the epoch alone."""

    def positions():
        epoch = 0
        while True:
            yield from np.random.default_rng([settings.seed, epoch]).permutation(n).tolist()
            epoch += 1

    endless = positions()
    return lambda count: [next(endless) for _ in range(count)]


def collect(policy, task, samples: Sequence[Sample], group_size: int) -> list[Episode]:
    """`group_size` scored episodes of each sample. Every completion has random numbers of its own: (key, place)."""
    episodes = [Episode(sample, group) for group, sample in enumerate(samples) for _ in range(group_size)]
    key = policy.draw_key()
    for place, episode in enumerate(episodes):
        episode.stream = (key, place)
    environments = [task.environment(episode.sample) for episode in episodes]
    observations = [environment.reset() for environment in environments]
    decisions = policy.act(episodes, observations)
    for episode, environment, observation, decision in zip(
        episodes, environments, observations, decisions, strict=True
    ):
        episode.turns.append(Turn(observation, decision, environment.step(decision.action, decision.frames)))
        episode.score = task.score(episode)
        episode.reward = task.reward(episode.score)
    return episodes


# -- advantages ------------------------------------------------------------------------------------------------------


def group_advantage(reward: Tensor, group_size: int) -> Tensor:
    """GRPO: reward minus its group's mean, over the group's standard deviation; 0 where all are equal. -> [B]"""
    groups = reward.view(-1, group_size)
    centred = groups - groups.mean(1, keepdim=True)
    equal = groups.amax(1, keepdim=True) == groups.amin(1, keepdim=True)
    deviation = groups.std(1, keepdim=True).masked_fill(equal, 0.0)
    return (centred.masked_fill(equal, 0.0) / (deviation + 1e-6)).flatten()


@dataclass
class Tracker:
    """MSSR's baseline: a Beta(a, b) for every prompt, which forgets faster or slower with the policy's drift."""

    counts: dict[str, tuple[float, float]] = field(default_factory=dict)
    drift: list[float] = field(default_factory=list)  # the last 20 steps' KL from the reference

    def start(self, key: str, correct: float) -> None:
        """A first response of the initial policy, worth 8 observations."""
        rate = (float(correct > 0.5) + 0.5) / 2
        self.counts[key] = (8 * rate, 8 * (1 - rate))

    def advantage(self, keys: Sequence[str], reward: Tensor, correct: Sequence[float], kl: float) -> Tensor:
        """Reward minus the prompt's success rate, read before this outcome updates it. -> [B]"""
        values = torch.tensor([a / (a + b) for a, b in (self.counts[key] for key in keys)])
        self.drift = [*self.drift, kl][-20:]
        mean = sum(self.drift) / len(self.drift)
        eta = 0.875 if mean > 0.01 else 0.875 + mean / 0.01 * (0.96 - 0.875)
        for key, outcome in zip(keys, correct, strict=True):
            (a, b), success = self.counts[key], float(outcome > 0.5)
            self.counts[key] = (eta * a + success, eta * b + 1 - success)
        return reward - values


def shape_by_entropy(advantage: Tensor, logprobs: Tensor, mask: Tensor) -> Tensor:
    """MSSR: normalised over the batch, plus min(0.4 * -p log p, |A| / 2) at each token. -> [B, T]"""
    centred = advantage - advantage.mean()
    normal = (centred * centred.pow(2).mean().clamp(min=1e-6).rsqrt())[:, None] * mask
    return normal + (0.4 * -logprobs.exp() * logprobs).minimum(normal.abs() / 2) * mask


# -- the objective ---------------------------------------------------------------------------------------------------


def clipped_loss(settings: Settings, logprobs: Tensor, old_logprobs: Tensor, advantage: Tensor) -> Tensor:
    """PPO's surrogate per token [B, T], with a bound from above where the advantage is negative."""
    low, high = settings.clip
    ratio = (logprobs - old_logprobs).exp()
    loss = (-advantage * ratio).maximum(-advantage * ratio.clamp(1 - low, 1 + high))
    return loss if settings.dual is None else loss.minimum(-advantage * settings.dual).where(advantage < 0, loss)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """An estimate of KL(policy || reference) per token [B, T]."""
    gap = reference - logprobs
    return gap.exp() - gap - 1


def pad(rows: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def train_step(
    settings: Settings, policy, optimizer: torch.optim.Optimizer, episodes: Sequence[Episode], tracker: Tracker
) -> dict[str, float]:
    """Advantages, loss and one optimizer step; the step's metrics."""
    decisions: list[Decision] = [episode.turns[0].decision for episode in episodes]
    reward = torch.tensor([episode.reward for episode in episodes])
    correct = [episode.score.correct for episode in episodes]
    old_logprobs = pad([decision.logprobs for decision in decisions])
    mask = pad([torch.ones(len(decision.logprobs), dtype=torch.bool) for decision in decisions])
    reference = policy.reference(decisions) if settings.kl_coef else None
    if settings.method == "grpo":
        advantage = group_advantage(reward, settings.group_size)[:, None] * mask
    else:
        kl = (k3(old_logprobs, reference) * mask).sum(1) / mask.sum(1)
        keys = [episode.sample.key for episode in episodes]
        advantage = tracker.advantage(keys, reward, correct, float(kl.mean()))
        advantage = shape_by_entropy(advantage, old_logprobs, mask)
    now = policy.evaluate(decisions)  # the visual prompt is forwarded once per group
    loss = clipped_loss(settings, now.logprobs, old_logprobs, advantage)
    if reference is not None:
        loss = loss + settings.kl_coef * k3(now.logprobs, reference)
    objective = (loss * mask).sum() / mask.sum()  # weighing: every token counts the same
    optimizer.zero_grad(set_to_none=True)
    objective.backward()
    norm = torch.nn.utils.clip_grad_norm_(policy.model.parameters(), settings.max_grad_norm)
    optimizer.step()
    return {
        "reward": float(reward.mean()), "accuracy": sum(correct) / len(correct), "loss": objective.item(),
        "grad_norm": float(norm), "length": float(mask.sum(1).float().mean()),
    }  # fmt: skip


def train(settings: Settings) -> list[dict[str, float]]:
    """A run; the metrics of its steps."""
    torch.manual_seed(settings.seed)
    task = GuiGrounding(objects=4, text_share=0.5, widget=(0.14, 0.28))
    samples = task.samples("train")
    policy = loading.load(PolicySection(model="embedded", max_tokens=12), seed=settings.seed)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=settings.lr, weight_decay=0.0, fused=True)
    pool, tracker, rows = min(settings.pool or len(samples), len(samples)), Tracker(), []
    if settings.method == "mssr":
        policy.freeze_reference()
        for begin in range(0, pool, settings.prompts_per_step):  # one response to every prompt, before the first step
            chosen = [samples[i] for i in range(begin, min(begin + settings.prompts_per_step, pool))]
            for episode in collect(policy, task, chosen, 1):
                tracker.start(episode.sample.key, episode.score.correct)
    draw = draw_prompts(pool, settings)
    for step in range(settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * (1 - step / settings.steps)
        episodes = collect(policy, task, [samples[i] for i in draw(settings.prompts_per_step)], settings.group_size)
        rows.append(train_step(settings, policy, optimizer, episodes, tracker))
        print(f"step {step + 1}", *(f"{name} {value:.3f}" for name, value in rows[-1].items()))
    return rows


if __name__ == "__main__":
    train({"grpo": GRPO, "mssr": MSSR}[sys.argv[1] if len(sys.argv) > 1 else "grpo"])
