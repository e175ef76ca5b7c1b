"""Process rewards from images: classifiers, milestones, embeddings."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from vlrl.config import Count, Rate
from vlrl.contrib import encoders
from vlrl.contrib.encoders import Chosen, cosine, get_picture, list_observations, texts_make
from vlrl.contrib.judges.base import OnFailure, groups_of
from vlrl.contrib.process_rewards.judged import Form as JudgedForm
from vlrl.contrib.process_rewards.judged import answered, filled, paid, truths
from vlrl.contrib.process_rewards.progress import Chosen as ProgressChosen
from vlrl.contrib.process_rewards.progress import Discount, Form, earning, paid_by_form, won
from vlrl.decoders import load_json
from vlrl.methods import ProcessReward, method
from vlrl.system.hub import reach_hub
from vlrl.types import Episode, Observation, Policy, UserError, first_line

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image
    from torch import Tensor


# Trained reward models that `classified` can ask: where they lie, and what pictures they see.

PICTURES = "observation.images."
Sizes = dict[str, tuple[int, int] | None]  # cameras: name -> width and height, None where any will do


def classified_models_load(model: str) -> tuple[Any, Sizes]:
    """An object with `compute_reward`, and its cameras.

    Raises:
        UserError: there is no such model.
    """
    if ":" in model:
        from vlrl import registry

        loaded = registry.find("reward model", model, "process_rewards: classified: model")()
        if not hasattr(loaded, "compute_reward"):
            raise UserError(f"process_rewards: classified: {model} gives an object without compute_reward(batch)")
        return loaded, {}
    from vlrl.imitation import reward_classifier

    about = _read_config(Path(model))
    if "type" in about and about.get("model_type") != reward_classifier.FAMILY:
        return _lerobots(model, about)
    own = reward_classifier.reward_model_load(model)
    return own, {name: (width, height) for name, width, height in own.shape.cameras}


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        about = load_json(folder / "config.json", finite=False)
    except (OSError, ValueError) as error:
        raise UserError(f"process_rewards: classified: no reward model in {folder}: {error}") from None
    return about if isinstance(about, dict) else {}


def _lerobots(folder: str, about: dict[str, Any]) -> tuple[Any, Sizes]:
    """One of lerobot's, behind its own pre-processing where the folder has it."""
    try:
        from lerobot.configs.rewards import RewardModelConfig
        from lerobot.rewards.factory import get_reward_model_class
    except ImportError as error:
        raise UserError(f"process_rewards: classified: needs lerobot: pip install 'vlrl[robot]' ({error})") from None
    try:
        family = get_reward_model_class(str(about["type"]))
        with contextlib.redirect_stdout(io.StringIO()):  # lerobot says that it is loading
            network = family.from_pretrained(folder, config=RewardModelConfig.from_pretrained(folder))
        return Prepared(network, _before(folder)), {
            name.removeprefix(PICTURES): tuple(reversed(feature.shape[1:]))
            for name, feature in network.config.input_features.items() if name.startswith(PICTURES)
        }  # fmt: skip
    except Exception as error:  # the border to lerobot, which raises what its many parts raise
        reason = first_line(error)
        raise UserError(f"process_rewards: classified: cannot load lerobot's reward model {folder}: {reason}") from None


class Prepared:
    """A reward model of lerobot behind its pre-processor, if it has one."""

    def __init__(self, model: Any, before: Any):
        self.model, self.before = model, before

    def compute_reward(self, batch: dict[str, Any]) -> Any:
        return self.model.compute_reward(self.before(batch) if self.before else batch)


def _before(folder: str) -> Any:
    from lerobot.processor import PolicyProcessorPipeline

    files = sorted(Path(folder).glob("*preprocessor.json"))
    return PolicyProcessorPipeline.from_pretrained(folder, config_filename=files[0].name) if files else None


# An answer earns how near it lies to the truth, as a text encoder sees it (MediX-R1's embedding reward).

Weight = Annotated[float, Field(ge=0)]


@method(
    gives=paid_by_form,
    reads=("all_episodes",),
    source="MediX-R1, arXiv 2602.23363; github.com/mbzuai-oryx/MediX-R1, examples/reward_function/medical.py",
)
class EmbeddedAnswer(ProcessReward):
    """An answer earns 1 where its cosine with a right text reaches `threshold`, else 0; without one, the cosine.

    What the task cannot read earns 0, and what equals a right text but for case and outer spaces 1, without asking.
    The part `embedded` of the score. `embedded/cosine` in the log is the mean over the answers that were compared,
    `embedded/failed` the share of them without a vector.

    Published: MedEmbed-large, threshold 0.8, right text and answer without final dots; answers of one character, or
    with `__`, `:` or `?`, earn 0 there, so that `C` or `1:2` can never be right; here they are compared as others are.
    Text without any tag counts as an answer there.

    Args:
        embedder: who compares: `vlrl.contrib.encoders`.
        threshold: cosine from which on an answer counts as the truth; null: negative cosines are 0.
        keep: how much of the task's own reward remains beside it.
        amount: what an answer like the truth earns.
        form: `outcome` or `reward`, see `vlrl.contrib.process_rewards.judged.paid`.
        on_failure: an answer without a vector has the mean of its group's (`neutral`), 0 (`zero`), or `stop`s the run.

    Raises:
        UserError: there is no such embedder; with `stop`, the first failure.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        embedder: Chosen, threshold: Annotated[float, Field(gt=0, le=1)] | None = 0.8, keep: Weight = 1.0,
        amount: Weight = 1.0, form: JudgedForm = "outcome", on_failure: OnFailure = "neutral",
    ):  # fmt: skip
        self._embedder = texts_make(embedder, "process_rewards: embedded_answer: embedder")
        self._task, self.threshold, self.on_failure = task, threshold, on_failure
        self.keep, self.amount, self.form = keep, amount, form

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        said = [answered(episode) for episode in episodes]
        rights = [truths(self._task, episode) for episode in episodes]
        values: list[float | None] = [None if text is not None else 0.0 for text in said]
        compared = []
        for i, (text, right) in enumerate(zip(said, rights, strict=True)):
            if text is not None and _plain(text) in map(_plain, right):
                values[i] = 1.0
            elif text is not None:
                compared.append(i)
        near = self._nearness([(said[i], rights[i]) for i in compared])
        for i, value in zip(compared, near, strict=True):
            values[i] = value if value is None or self.threshold is None else float(value >= self.threshold)
        known = [value for value in near if value is not None]
        failed = 1 - len(known) / len(near) if near else 0.0
        if failed and self.on_failure == "stop":
            raise UserError(
                f"process_rewards: embedded_answer: {len(near) - len(known)} of {len(near)} answers have no vector"
            )
        whole = filled(values, groups_of(episodes), self.on_failure == "zero")
        self.metrics = {"embedded/cosine": sum(known) / max(1, len(known)), "embedded/failed": failed,
                        "embedded/like": sum(whole) / len(whole)}  # fmt: skip
        return paid(episodes, "embedded", whole, keep=self.keep, amount=self.amount, form=self.form)

    def _nearness(self, pairs: Sequence[tuple[str, Sequence[str]]]) -> list[float | None]:
        """The largest cosine with a right text, at least 0; None where a vector is missing."""
        distinct = list(dict.fromkeys(text for answer, rights in pairs for text in (answer, *rights)))
        vectors = dict(zip(distinct, self._embedder.embed(distinct), strict=True)) if distinct else {}
        values: list[float | None] = []
        for answer, rights in pairs:
            own, others = vectors[answer], [vectors[right] for right in rights if vectors[right] is not None]
            lost = own is None or not others
            values.append(None if lost else max(0.0, *(cosine(own, other) for other in others)))
        return values


embedded_answer = EmbeddedAnswer


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


# Milestones of an episode: where the gripper has changed, where the hand has come nearly to rest, and the end.

GRIPPED = 0.3  # of what the gripper moved through in the episode: a step that changes it by more opens or closes it
RIGID = 1e-6  # a gripper that moves by less does not move


def positions(episode: Episode, numbers: Sequence[int] | None) -> np.ndarray:
    """Where the body was, float64 [turns + 1, n]; without states the sums of the actions, which then are speeds.

    Args:
        numbers: which of the state's or of an action's numbers; None: all.

    Raises:
        UserError: there is neither, or it has no such numbers.
    """
    import numpy as np

    states = [each.state for each in list_observations(episode)]
    if all(state is not None for state in states):
        way = np.stack(states).astype(np.float64)
    elif any(isinstance(turn.decision.action, str) for turn in episode.turns):
        raise UserError(
            "process_rewards: milestones: the episodes have no states and their actions no numbers: use srpo"
        )
    else:
        moved = [np.atleast_2d(turn.decision.action).astype(np.float64).mean(0) for turn in episode.turns]
        way = np.cumsum([np.zeros_like(moved[0]), *moved], axis=0)
    if any(number >= way.shape[1] for number in numbers or ()):
        raise UserError(
            f"process_rewards: milestones: the state has {way.shape[1]} numbers, counted from 0 (got {numbers})"
        )
    return way if numbers is None else way[:, list(numbers)]


def rests(way: np.ndarray, still: float) -> list[int]:
    """Where the body [turns + 1, n] has come nearly to rest: the beginning of each step that is slower than the one
    before, no faster than the one behind it, and slower than `still` times the episode's median step."""
    import numpy as np

    speed = np.linalg.norm(np.diff(way, axis=0), axis=1)
    slow = still * np.median(speed)
    return [t for t in range(1, len(speed) - 1) if speed[t - 1] > speed[t] <= speed[t + 1] and speed[t] < slow]


def grips(opening: np.ndarray) -> list[int]:
    """Where the gripper [turns + 1] has been opened or closed: the end of each run of steps that change it much."""
    import numpy as np

    moved = np.abs(np.diff(opening))
    reach = float(np.ptp(opening))
    if reach < RIGID:
        return []
    much = moved > GRIPPED * reach
    return [t + 1 for t in range(len(much)) if much[t] and not much[t + 1 : t + 2].any()]


def labels(length: int, found: Sequence[int], window: int) -> np.ndarray:
    """1 for what was shown at a milestone and up to `window` - 1 before it, else 0: uint8 [length]."""
    import numpy as np

    near = np.zeros(length, np.uint8)
    for place in found:
        near[max(0, place - window + 1) : place + 1] = 1
    return near


# VLM-RM: a picture earns what CLIP thinks of how near it is to a goal that is told in words.

Prompts = Annotated[list[str], Field(min_length=1)]


def check_model(options: Mapping[str, Any]) -> None:
    """UserError at once where the weights are neither in a folder nor in the cache, and the hub cannot be reached."""
    reach_hub(options["model"])


@method(
    gives=paid_by_form,
    reads=("all_episodes",),
    source="VLM-RM, arXiv 2310.12921, as released: github.com/AlignmentResearch/vlmrm, reward_model.py",
    check=check_model,
)
class VLMRM(ProcessReward):
    """Steps earn `R(x) = 1 - |P (x - g)|^2 / 2` of the picture x that they led to.

    x is the picture's embedding, of length 1; g and b are the means of those of the goals and of the baselines, each of
    length 1 before the mean and not brought to it again, as in the released code; with `d = g - b`,
    `P = alpha d d^T / |d|^2 + (1 - alpha) I`. With alpha = 0 and one goal R is the cosine of x and g; with alpha = 1
    what counts is how far along the line from baseline to goal x lies.

    Args:
        model: a CLIP or SigLIP, any with text and image features: a folder, or a name on the hub.
        goal: what the picture shows when the job is done, in one or several wordings.
        baseline: what such a picture shows at any time.
        alpha: how much of what lies off the line is left out.
        coef: a step earns as many times R, as published, or with `form: potential` the difference that it made
            (`earning.earning`). R is mostly above 0: where success ends an episode the former pays to put it off.
        image: which of the pictures of an observation.
        batch: pictures at a time.

    Raises:
        UserError: there is no such model; an episode shows no such picture; goals and baselines mean the same.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        model: str, goal: Prompts, baseline: Prompts, alpha: Annotated[float, Field(ge=0, le=1)] = 0.5,
        coef: float = 1.0, form: Form = "reward", gamma: Discount = 1.0, image: Annotated[int, Field(ge=0)] = 0,
        batch: Count = 64,
    ):  # fmt: skip
        import torch

        self.alpha, self.coef, self.form, self.gamma, self.image, self.batch = alpha, coef, form, gamma, image, batch
        self._processor, self._model = _pretrained(model)
        self._model = self._model.eval().requires_grad_(False).to("cuda" if torch.cuda.is_available() else "cpu")
        self._goal, self._baseline = (self._texts(prompts).mean(0) for prompts in (goal, baseline))
        if alpha and float((self._goal - self._baseline).norm()) < 1e-6:
            raise UserError(
                "process_rewards: vlm_rm: goal and baseline mean the same to the model: say what sets them apart"
            )

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        import numpy as np

        values = self.values([each for episode in episodes for each in list_observations(episode)])
        self.metrics = {"vlm_rm/reward": float(values.mean())}
        of_each = np.split(values, np.cumsum([len(e.turns) + 1 for e in episodes])[:-1])
        return [
            earning(e, value, coef=self.coef, form=self.form, gamma=self.gamma)
            for e, value in zip(episodes, of_each, strict=True)
        ]

    def values(self, observations: Sequence[Observation]) -> np.ndarray:
        """R of what was shown, float64 [M]."""
        vectors = self._pictures([self._picture(each) for each in observations])
        return projected(vectors, self._goal, self._baseline, self.alpha).double().numpy()

    def _picture(self, observation: Observation) -> Image:
        try:
            return get_picture(observation, self.image)
        except IndexError:
            problem = f"the episodes show no picture {self.image} (its option `image`): give the robot a camera"
            raise UserError(f"process_rewards: vlm_rm: {problem}") from None

    def _texts(self, prompts: Sequence[str]) -> Tensor:
        """float32 [P, D], of length 1."""
        import torch

        # SigLIP learned from texts that were all filled up
        whole = "max_length" if self._model.config.model_type.startswith("siglip") else True
        inputs = self._processor(text=list(prompts), padding=whole, truncation=True, return_tensors="pt")
        with torch.no_grad():
            return unit_vectors(self._model.get_text_features(**inputs.to(self._model.device)))

    def _pictures(self, pictures: Sequence[Image]) -> Tensor:
        """float32 [M, D], of length 1."""
        import torch

        made = []
        for start in range(0, len(pictures), self.batch):
            given = self._processor(images=list(pictures[start : start + self.batch]), return_tensors="pt")
            with torch.no_grad():
                made.append(unit_vectors(self._model.get_image_features(**given.to(self._model.device))))
        return torch.cat(made)


vlm_rm = VLMRM


def projected(x: Tensor, goal: Tensor, baseline: Tensor, alpha: float) -> Tensor:
    """R [M] of unit vectors x [M, D], the goal [D] and the baseline [D]."""
    away, line = x - goal, goal - baseline
    # P needs no matrix: what it makes of a vector is a share of it and a share of its part along the line
    along = (away @ line)[:, None] * line / line.dot(line) if alpha else 0.0
    return 1 - (alpha * along + (1 - alpha) * away).square().sum(1) / 2


def unit_vectors(features: Any) -> Tensor:
    """Features [M, D] as transformers gives them, of length 1, float32 on the CPU."""
    from transformers.utils import ModelOutput

    vectors = (features["pooler_output"] if isinstance(features, ModelOutput) else features).float().cpu()
    return vectors / vectors.norm(dim=-1, keepdim=True)


def _pretrained(source: str) -> tuple[Any, Any]:
    """Processor and model in float32; UserError where they cannot be loaded, or would be random in part."""
    import torch
    from transformers import AutoModel, AutoProcessor

    try:
        model, info = AutoModel.from_pretrained(
            source, dtype=torch.float32, output_loading_info=True, use_safetensors=True
        )
        processor = AutoProcessor.from_pretrained(source)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"process_rewards: vlm_rm: cannot load the model {source!r}: {reason}") from None
    if odd := [*info["missing_keys"], *info["mismatched_keys"]]:
        raise UserError(
            f"process_rewards: vlm_rm: the weights of {source!r} do not fit: {len(odd)} keys, first {sorted(odd)[0]}"
        )
    if not hasattr(model, "get_text_features") or not hasattr(model, "get_image_features"):
        raise UserError(
            f"process_rewards: vlm_rm: {source!r} is no model of texts and pictures, as CLIP and SigLIP are"
        )
    return processor, model


# A trained reward model as a process reward: this project's own, lerobot's, or any with their interface.


@method(
    gives=paid_by_form,
    reads=("all_episodes",),
    source="HIL-SERL's success classifier, arXiv 2410.21845; lerobot's PreTrainedRewardModel.compute_reward",
)
class Classified(ProcessReward):
    """Steps earn what a trained reward model gives for what they led to.

    Args:
        model: a folder that `vlrl reward-model` wrote; one of lerobot's reward models of single moments; or
            my_module:make, which called gives an object with `compute_reward(batch) -> float32 [B]`, whose batch has
            `observation.images.NAME`, 0..1 [B, 3, height, width], `observation.state` [B, S] and `task`, texts.
        cameras: names of the pictures that an observation shows, in order; default: as the model has them.
        coef: a step earns as many times the reward, or with `form: potential` the difference that it made
            (`earning.earning`): a job that is done for a while pays but once.
        batch: moments at a time.

    Raises:
        UserError: there is no such model; the episodes show other pictures than it was made for.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        model: str, cameras: list[str] | None = None, coef: float = 1.0, form: Form = "reward", gamma: Discount = 1.0,
        batch: Count = 64,
    ):  # fmt: skip
        self.coef, self.form, self.gamma, self.batch = coef, form, gamma, batch
        self._model, self._sizes = classified_models_load(model)
        self._cameras = list(self._sizes) if cameras is None else cameras

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        import torch

        moments = [each for episode in episodes for each in list_observations(episode)]
        with torch.no_grad():
            parts = [
                torch.as_tensor(self._model.compute_reward(self._batched(moments[i : i + self.batch]))).float().cpu()
                for i in range(0, len(moments), self.batch)
            ]
        values = torch.cat(parts)
        self.metrics = {"classified/reward": float(values.mean())}
        of_each = values.split([len(e.turns) + 1 for e in episodes])
        return [
            earning(e, value.tolist(), coef=self.coef, form=self.form, gamma=self.gamma)
            for e, value in zip(episodes, of_each, strict=True)
        ]

    def _batched(self, moments: Sequence[Observation]) -> dict[str, Any]:
        """lerobot's batch of observations."""
        import numpy as np
        import torch

        inputs: dict[str, Any] = {"task": [each.text for each in moments]}
        pictures = [self._pictures(each) for each in moments]
        for number, name in enumerate(self._cameras):
            stacked = np.stack([each[number] for each in pictures])
            inputs[f"{PICTURES}{name}"] = torch.from_numpy(stacked).permute(0, 3, 1, 2).float() / 255
        if all(each.state is not None for each in moments):
            inputs["observation.state"] = torch.from_numpy(np.stack([each.state for each in moments])).float()
        return inputs

    def _pictures(self, shown_: Observation) -> list[Any]:
        """uint8 [height, width, 3] of each camera; UserError where they are not those that the model knows."""
        import numpy as np

        sizes = [image.size for image in shown_.images]
        wanted = [self._sizes.get(name) for name in self._cameras]
        if len(sizes) != len(wanted) or any(want and want != size for want, size in zip(wanted, sizes, strict=True)):
            listing = ", ".join(f"{n} {w[0]}x{w[1]}" if w else n for n, w in zip(self._cameras, wanted, strict=True))
            found = ", ".join(f"{width}x{height}" for width, height in sizes)
            raise UserError(
                f"process_rewards: classified: the model sees {listing or 'no pictures'}; the episodes show "
                f"{found or 'none'}: see its option `cameras`"
            )
        return [np.asarray(image.convert("RGB")) for image in shown_.images]


classified = Classified


# VLA-RL's process reward model: it learns which moments of successes were milestones, and pays for the like.

Number = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, eq=False)
class RewardNetworkExample:
    """An episode as the network learns from it."""

    vectors: np.ndarray  # float32 [turns + 1, D]
    near: np.ndarray  # uint8 [turns + 1], 1 at milestones; of a failure 0 everywhere


@method(
    gives=paid_by_form,
    reads=("all_episodes",),
    source="VLA-RL, arXiv 2505.18719: pseudo labels of automatically cut segments",
)
class MilestonesReward(ProcessReward):
    """Steps earn what they did to the probability of being at a milestone, as a network sees it that learns along.

    A success is cut into segments: a milestone is where the gripper has been opened or closed, where the hand has come
    nearly to rest, and the end. What was shown there, and up to `window` - 1 before, is labelled 1; all else, and all
    of a failure, 0. After every step the network (two hidden layers on the encoder's vectors) learns from the
    remembered episodes, in batches half of milestones, a quarter of other moments of successes, a quarter of failures.
    A step's episodes are judged by what was learned from earlier ones; `milestones/gap` says how well: the mean
    probability at the milestones of its successes less that elsewhere.

    Nothing is earned until the network has learned, from `successes` successes. The paper fine-tunes a VLM instead.

    Args:
        encoder: of what was shown; `classical` needs no pictures.
        coef: with `form: potential` a step earns as many times the difference that it made to the probability
            (`earning.earning`), and an episode at most `coef`. With `form: reward` it earns the probability itself:
            where success ends an episode, and `coef` times its steps is not far below 1, that pays to put it off.
        numbers: which of the state's numbers say where the hand is, from 0; default: all. Without states: of an
            action's, which then count as speeds.
        gripper: which of the state's numbers is the opening of the gripper; default: none is.
        still: of the median step of an episode: a hand that moves less is nearly at rest.
        memory: successes, and failures, to remember.
        updates, batch, hidden, lr: how the network learns, and its size.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        encoder: ProgressChosen = "classical", coef: Rate = 0.2, form: Form = "potential", gamma: Discount = 1.0,
        numbers: list[Number] | None = None, gripper: Number | None = None, still: Rate = 0.5, window: Count = 2,
        successes: Count = 8, memory: Count = 200, updates: Count = 50, batch: Count = 128, hidden: Count = 64,
        lr: Rate = 1e-3,
    ):  # fmt: skip
        self.encoder = encoders.make(encoder, "process_rewards: milestones: encoder")
        self.coef, self.form, self.gamma, self.seed = coef, form, gamma, seed
        self.numbers, self.gripper, self.still, self.window = numbers, gripper, still, window
        self.successes, self.memory, self.updates, self.batch = successes, memory, updates, batch
        self.hidden, self.lr = hidden, lr
        self.won, self.lost = list[RewardNetworkExample](), list[RewardNetworkExample]()
        self.learner: Any = (
            None  # vlrl.imitation.reward_classifier.ClassifierTrainer, from the first step that it could learn from
        )
        self.metrics: dict[str, float] = {}

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        paths = self.encoder.encode(episodes)
        found = [RewardNetworkExample(path.copy(), self._near(e)) for e, path in zip(episodes, paths, strict=True)]
        self.metrics = {"milestones/on": float(self.learner is not None)}
        rewarded = list(episodes)
        if self.learner is not None:
            values = [self.learner.probability(path) for path in paths]
            self._tell(found, values)
            how = {"coef": self.coef, "form": self.form, "gamma": self.gamma}
            rewarded = [earning(e, value, **how) for e, value in zip(episodes, values, strict=True)]
        self._learn(found, [won(e) for e in episodes], step)
        return rewarded

    def _near(self, episode: Episode) -> np.ndarray:
        """The labels of what an episode showed."""
        length = len(episode.turns) + 1
        if not won(episode):
            return labels(length, (), self.window)
        places = [length - 1, *rests(positions(episode, self.numbers), self.still)]
        if self.gripper is not None:
            places += grips(positions(episode, [self.gripper])[:, 0])
        return labels(length, places, self.window)

    def _learn(self, found: Sequence[RewardNetworkExample], wins: Sequence[bool], step: int) -> None:
        """Remembers the step's episodes and learns from all; begins when there are enough successes."""
        from vlrl.imitation.reward_classifier import ClassifierTrainer

        self.won = [*self.won, *(each for each, win in zip(found, wins, strict=True) if win)][-self.memory :]
        self.lost = [*self.lost, *(each for each, win in zip(found, wins, strict=True) if not win)][-self.memory :]
        if len(self.won) < self.successes:
            return
        if self.learner is None:
            self.learner = ClassifierTrainer(found[0].vectors.shape[1], hidden=self.hidden, lr=self.lr, seed=self.seed)
        how = {"steps": self.updates, "batch": self.batch, "step": step}
        self.metrics["milestones/loss"] = self.learner.learn(self._groups(), **how)

    def _groups(self) -> list[np.ndarray]:
        """Vectors of milestones, of other moments of successes and of failures."""
        import numpy as np

        vectors = np.concatenate([each.vectors for each in self.won])
        near = np.concatenate([each.near for each in self.won]).astype(bool)
        return [vectors[near], vectors[~near], np.concatenate([vectors[:0], *(each.vectors for each in self.lost)])]

    def _tell(self, found: Sequence[RewardNetworkExample], values: Sequence[np.ndarray]) -> None:
        import numpy as np

        near = np.concatenate([each.near for each in found]).astype(bool)
        value = np.concatenate(values)
        self.metrics["milestones/probability"] = float(value.mean())
        if near.any() and not near.all():
            self.metrics["milestones/gap"] = float(value[near].mean() - value[~near].mean())

    def state_dict(self) -> dict[str, Any]:
        known = {} if self.learner is None else {"learner": self.learner.state_dict()}
        return {"won": _rows(self.won), "lost": _rows(self.lost), "encoder": self.encoder.state_dict(), **known}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        from vlrl.imitation.reward_classifier import ClassifierTrainer

        self.won, self.lost = (
            [RewardNetworkExample(vectors.numpy(), near.numpy()) for vectors, near in state[name]]
            for name in ("won", "lost")
        )
        if "encoder" in state:
            self.encoder.load_state_dict(state["encoder"])
        if "learner" in state:
            self.learner = ClassifierTrainer(state["learner"]["width"], hidden=self.hidden, lr=self.lr, seed=self.seed)
            self.learner.load_state_dict(state["learner"])


milestones = MilestonesReward


def _rows(remembered: Sequence[RewardNetworkExample]) -> list[list[Any]]:
    import torch

    return [[torch.from_numpy(each.vectors), torch.from_numpy(each.near)] for each in remembered]
