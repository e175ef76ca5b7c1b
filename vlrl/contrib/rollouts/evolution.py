"""An evolution strategy that learns a step size for each number: separable CMA-ES."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from vlrl.config import Rate
from vlrl.methods import Recipe, RecipePart, RolloutStrategy, method
from vlrl.rollout import collect
from vlrl.types import Episode, Policy, Sample, UserError

Vector = np.ndarray  # float64 [n]


class SeparableCma:
    """Maximises a function of n numbers by the order of its values at `population` points a generation.

    CMA-ES with a diagonal covariance (Ros and Hansen, PPSN 2008): memory and time grow as n. Weights and rates are
    the tutorial's (Hansen, arXiv 1604.00772, table 1, without negative weights), c_1 and c_mu times (n + 2) / 3.

    Candidate k of a generation hangs on the seed, the generation and k alone, so that any process can make it.

    Args:
        mean: float64 [n], where it begins.
        sigma: the first standard deviation of each number.
        population: candidates a generation, 2 or more; None: 4 + 3 ln n, rounded down.
    """

    def __init__(self, mean: Vector, sigma: float, seed: int, population: int | None = None):
        self.mean, self.sigma, self.seed, n = mean.astype(np.float64), sigma, seed, len(mean)
        self.population = population or 4 + int(3 * np.log(n))
        best = np.log((self.population + 1) / 2) - np.log(np.arange(1, self.population // 2 + 1))
        self.weights = best / best.sum()
        mass = self.mass = 1 / (self.weights**2).sum()
        self.c_sigma = (mass + 2) / (n + mass + 5)
        self.damping = 1 + 2 * max(0.0, np.sqrt((mass - 1) / (n + 1)) - 1) + self.c_sigma
        self.c_path = (4 + mass / n) / (n + 4 + 2 * mass / n)
        faster = (n + 2) / 3
        self.c_one = min(1.0, faster * 2 / ((n + 1.3) ** 2 + mass))
        self.c_mu = min(1 - self.c_one, faster * 2 * (mass - 2 + 1 / mass) / ((n + 2) ** 2 + mass))
        self.usual = np.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))  # length of a normal vector, in the mean
        self.variance, self.path, self.path_sigma = np.ones(n), np.zeros(n), np.zeros(n)
        self.generation = 0

    def candidate(self, k: int) -> Vector:
        """The point of the present generation with number k."""
        return self.mean + self.sigma * self._step(k)

    def tell(self, values: Sequence[float]) -> None:
        """Moves on by the values of candidates 0, 1, ...: larger ones are better, equal ones count in order."""
        if len(values) != self.population:
            raise ValueError(f"{len(values)} values for a population of {self.population}")
        chosen = np.argsort(-np.asarray(values), kind="stable")[: len(self.weights)]
        steps = np.stack([self._step(int(k)) for k in chosen])
        move = self.weights @ steps
        self.mean = self.mean + self.sigma * move
        c, age = self.c_sigma, self.generation + 1
        self.path_sigma = (1 - c) * self.path_sigma + np.sqrt(c * (2 - c) * self.mass) * move / np.sqrt(self.variance)
        length = np.linalg.norm(self.path_sigma)
        steady = length / np.sqrt(1 - (1 - c) ** (2 * age)) < (1.4 + 2 / (len(move) + 1)) * self.usual
        c = self.c_path
        self.path = (1 - c) * self.path + steady * np.sqrt(c * (2 - c) * self.mass) * move
        kept = 1 - self.c_one - self.c_mu + (not steady) * self.c_one * c * (2 - c)
        self.variance = kept * self.variance + self.c_one * self.path**2 + self.c_mu * self.weights @ steps**2
        self.sigma = float(self.sigma * np.exp(self.c_sigma / self.damping * (length / self.usual - 1)))
        self.generation = age

    def _step(self, k: int) -> Vector:
        noise = np.random.default_rng([self.seed, self.generation, k]).standard_normal(len(self.mean))
        return np.sqrt(self.variance) * noise

    def state_dict(self) -> dict[str, Any]:
        return {
            "mean": self.mean.tolist(), "variance": self.variance.tolist(), "path": self.path.tolist(),
            "path_sigma": self.path_sigma.tolist(), "sigma": self.sigma, "generation": self.generation,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, np.array(value) if isinstance(value, list) else value)


# Training without gradients: an evolution strategy over adapters' singular values. Rollout strategy `essa`.


def check_gradient_free(recipe: Recipe, part: RecipePart) -> str | None:
    """Where an evolution strategy sets the weights, no gradient may."""
    if recipe.config.policy.lora is None:
        return "rollout_strategy: essa changes adapters: set policy.lora: {rank: 8}"
    if [estimator.name for estimator in recipe.of("advantages")] != ["silent"]:
        return "rollout_strategy: essa learns without gradients: set advantages: [silent]"
    if recipe.config.train.weight_decay:
        return "rollout_strategy: essa sets the weights, which train.weight_decay would shrink: set it to 0"
    for term in recipe.of("losses"):
        if not term.method.vanishes and not term.undeclared:
            return f"{term.label} moves weights without an advantage, which essa sets: use ppo_clip"
    return None


@method(check_recipe=check_gradient_free, source="ESSA, arXiv 2507.04453; separable CMA-ES: Ros and Hansen, PPSN 2008")
class Essa(RolloutStrategy):
    """Answers of `population` candidates to the same prompts; the mean of the better ones is the policy that follows.

    A candidate is the policy with other singular values of its adapters' factors: `B = U_B S_B V_B^T` and
    `A = U_A S_A V_A^T` of every adapted matrix, U and V fixed. Its fitness is its mean reward on the step's prompts. A
    separable CMA-ES draws candidates and moves its mean, which is the policy that is saved and evaluated. Nothing is
    learned by gradient: put `advantages: [silent]` beside it, so that no update moves the weights.

    Published: the singular values of both factors, CMA-ES, the mean reward as fitness, adapters that were fine-tuned
    first, which is where directions worth going come from (`adapter`). Not found, so ours: population, sigma, greedy
    answers, and the diagonal covariance, as a model has thousands of singular values.

    Args:
        population: candidates a step; null: 4 + 3 ln n, rounded down, of n singular values.
        sigma: their first standard deviation.
        greedy: whether candidates write their likeliest answers. Sampled ones are drawn from seeds of the step and the
            candidate.
        adapter: a folder with a trained adapter of the run's shape, as a checkpoint of a run with the same
            policy.lora; null: B is 0 and its directions are random.

    Raises:
        UserError: the policy has no adapters; those of the folder are others.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        population: Annotated[int, Field(ge=4)] | None = None, sigma: Rate = 0.3, greedy: bool = True,
        adapter: str | None = None,
    ):  # fmt: skip
        from vlrl.policies.weights import Spectrum

        self.seed, self.greedy = seed, greedy
        if adapter is not None:
            essa_load(policy, Path(adapter))
        self.spectrum = Spectrum(policy.model, seed)
        if not len(self.spectrum.start):
            raise UserError("rollout_strategy: essa changes adapters, but there are none: set policy.lora: {rank: 8}")
        self.strategy = SeparableCma(self.spectrum.start, sigma, seed, population)

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        act |= {"greedy": self.greedy, "keep": False}
        answers = [self._answers(policy, task, samples, group_size, k, act) for k in range(self.strategy.population)]
        fitness = [sum(e.reward for e in episodes) / len(episodes) for episodes in answers]
        self.strategy.tell(fitness)
        self.spectrum.become(self.strategy.mean)
        self.metrics = {
            "essa/fitness": sum(fitness) / len(fitness), "essa/best": max(fitness), "essa/worst": min(fitness),
            "essa/sigma": self.strategy.sigma, "essa/numbers": float(len(self.strategy.mean)),
        }  # fmt: skip
        return [episode for episodes in answers for episode in episodes]

    def _answers(
        self, policy: Any, task: Any, samples: Sequence[Sample], group_size: int, k: int, act: dict[str, Any]
    ) -> list[Episode]:
        """A candidate's episodes; each candidate's answers to a sample are a group."""
        import numpy as np

        self.spectrum.become(self.strategy.candidate(k))
        if not self.greedy:
            seeds = np.random.SeedSequence([self.seed, self.strategy.generation, k]).generate_state(1)
            policy.generator.manual_seed(int(seeds[0]))
        episodes = collect(policy, task, samples, group_size, **act)
        for episode in episodes:
            episode.group += k * len(samples)
        return episodes

    def state_dict(self) -> dict[str, Any]:
        return {"strategy": self.strategy.state_dict(), "spectrum": self.spectrum.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.strategy.load_state_dict(state["strategy"])
        self.spectrum.load_state_dict(state["spectrum"])


essa = Essa


def essa_load(policy: Any, folder: Path) -> None:
    """A trained adapter into the policy's.

    Raises:
        UserError: the folder holds none, or one of another shape.
    """
    from vlrl.policies.generation import has_adapter

    if not has_adapter(policy.model):
        raise UserError("rollout_strategy: essa: adapter needs policy.lora, with the settings that it was trained with")
    if not (folder / "adapter_config.json").is_file():
        raise UserError(
            f"rollout_strategy: essa: adapter: {folder} holds no adapter: name a checkpoint of a run with lora"
        )
    try:
        policy.load_weights(folder)
    except (RuntimeError, ValueError, KeyError) as error:
        raise UserError(f"rollout_strategy: essa: adapter: {folder}: {str(error).splitlines()[0]}") from None
