"""Models that rewards are learned by: from preferences, from pictures and sentences, from several policies' answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from vlrl import checkpoint, registry
from vlrl.algorithms.rollout_common import golds, played
from vlrl.config import PolicySection
from vlrl.contrib import encoders
from vlrl.contrib.judges.base import JudgeQuestion, ReferenceJudge
from vlrl.contrib.preferences.labelling import (
    EpisodeMoments,
    PreferenceJudge,
    PreferencesConfig,
    ScriptedJudge,
    StateAlbum,
    against,
    agreement,
    counted,
    frames_of,
    split,
    with_album,
)
from vlrl.contrib.process_rewards.visual import projected, unit_vectors
from vlrl.engines import load_policy
from vlrl.offpolicy.config import ContrastSection, PretrainConfig, passive_read
from vlrl.offpolicy.learner import LEAST, check_task
from vlrl.rollout import collect
from vlrl.runner import SupervisedLearner
from vlrl.types import Decision, Episode, Observation, Sample, Step, Turn, UserError

# The networks that preferences are learned by.


@dataclass(frozen=True)
class RewardModelShape:
    """What a preference model sees, and its size."""

    size: int  # D numbers of a moment: of its state, then of its vector
    names: tuple[str, ...]  # of the S numbers of the state
    seen: tuple[int, ...]  # which of them the networks see
    encoder: Mapping[str, Any] | None = None  # of the moment's vector: name and options; None: the state alone
    hidden: int = 128
    layers: int = 2
    members: int = 3


class Ensemble(nn.Module):
    """Rewards [E, B], one row a member, of moments float32 [B, D].

    Not bounded by tanh as RL-VLM-F's are, after PEBBLE (arXiv 2106.05091): far moments could then not be told apart.
    What keeps sure answers from driving rewards apart without end is the decay of the weights.
    """

    def __init__(self, shape: RewardModelShape):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape.size))
        self.register_buffer("spread", torch.ones(shape.size))
        self.members = nn.ModuleList(_member(shape) for _ in range(shape.members))

    def forward(self, moments: Tensor) -> Tensor:
        return torch.stack([self.of(member, moments) for member in range(len(self.members))])

    def of(self, member: int, moments: Tensor) -> Tensor:
        """One member's rewards [...] of moments [..., D]."""
        return self.members[member]((moments - self.mean) / self.spread)[..., 0]


def _member(shape: RewardModelShape) -> nn.Module:
    widths = [shape.size, *[shape.hidden] * shape.layers]
    layers = (layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.SiLU()))
    return nn.Sequential(*layers, nn.Linear(shape.hidden, 1))


# A reward model that was learned from preferences: how near to its goal a moment looks, by the mean of an ensemble.
#
# A folder holds config.json, model.safetensors and report.json, what was measured on episodes held out.

FAMILY = "vlrl_preference"
BATCH = 4096  # moments at a time
ENCODER = "encoder/"  # before the names of its tensors


class PreferenceModel:
    """The networks, and the encoder where they see more than states."""

    def __init__(self, network: Ensemble, shape: RewardModelShape, encoder: Any = None):
        self.network, self.shape, self.encoder = network, shape, encoder

    def value(self, moments: Sequence[Observation]) -> np.ndarray:
        """Rewards float32 [N]: the members' mean."""
        return self.members(moments).mean(0)

    @torch.no_grad()
    def members(self, moments: Sequence[Observation]) -> np.ndarray:
        """Each member's rewards, float32 [E, N]."""
        inputs = inputs_of(moments, self.shape, self.encoder)
        return torch.cat([self.network(part) for part in inputs.split(BATCH)], 1).numpy()

    def compute_reward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Rewards float32 [B]: lerobot's interface of reward models, as
        `vlrl.imitation.reward_classifier.RewardModel` has it.

        Args:
            batch: `observation.state` [B, S] and, where there is an encoder of pictures, `observation.images.NAME`
                [B, 3, height, width], uint8 or 0..1, in the order in which they were shown.
        """
        cameras = [value for name, value in batch.items() if name.startswith("observation.images.")]
        states = batch["observation.state"].float().cpu().numpy()
        views = zip(*(map(_picture, camera) for camera in cameras), strict=True) if cameras else [()] * len(states)
        moments = [Observation(tuple(pictures), state) for pictures, state in zip(views, states, strict=True)]
        return torch.from_numpy(self.value(moments))

    def save(self, folder: Path) -> None:
        """config.json and model.safetensors."""
        folder.mkdir(parents=True, exist_ok=True)
        fitted: dict[str, Tensor] = {}
        state = checkpoint.flatten(self.encoder.state_dict(), fitted) if self.encoder else None
        about = {"model_type": FAMILY, **asdict(self.shape), "encoder_state": state}
        tensors = {name: value.contiguous() for name, value in self.network.state_dict().items()}
        save_file(tensors | {ENCODER + name: value for name, value in fitted.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")

    def load_weights(self, folder: Path) -> None:
        """What `save` wrote of this model's networks, into them."""
        self.network.load_state_dict(model_load(folder).network.state_dict())


def model_load(folder: str | Path) -> PreferenceModel:
    """The model that `save` wrote.

    Raises:
        UserError: the folder holds something else.
    """
    folder = Path(folder)
    with checkpoint.open_model(folder, FAMILY, "preference model") as (about, tensors):
        state, lists = about.pop("encoder_state"), {name: tuple(about.pop(name)) for name in ("names", "seen")}
        shape = RewardModelShape(**lists, **about)
        fitted = {name.removeprefix(ENCODER): tensors.pop(name) for name in list(tensors) if name.startswith(ENCODER)}
        network = Ensemble(shape)
        network.load_state_dict(tensors)
        encoder = encoders.make(shape.encoder, f"{folder}: encoder") if shape.encoder else None
        if encoder is not None and state is not None:
            encoder.load_state_dict(checkpoint.unflatten(state, fitted))
    return PreferenceModel(network, shape, encoder)


def inputs_of(moments: Sequence[Observation], shape: RewardModelShape, encoder: Any) -> Tensor:
    """What the networks see of moments, float32 [N, D].

    Raises:
        UserError: the states have another number of numbers, or there is nothing that the encoder could read.
    """
    states = np.stack([np.asarray(observation.state, np.float32) for observation in moments])
    if states.shape[1] != len(shape.names):
        raise UserError(f"preference model: made for states of {len(shape.names)} numbers, not {states.shape[1]}")
    parts = [states[:, list(shape.seen)]] + ([] if encoder is None else [vectors_of(moments, encoder)])
    return torch.from_numpy(np.concatenate(parts, 1))


def vectors_of(moments: Sequence[Observation], encoder: Any) -> np.ndarray:
    """The encoder's vectors of moments by themselves, as of episodes in which nothing happens: float32 [N, D]."""
    nothing = Decision("", None, None, False)
    episodes = [
        Episode(Sample("", observation), 0, [Turn(observation, nothing, Step(observation))]) for observation in moments
    ]
    return np.stack([vectors[0] for vectors in encoder.encode(episodes)])


def _picture(pixels: Tensor) -> Image.Image:
    """[3, height, width], uint8 or 0..1."""
    whole = pixels if pixels.dtype == torch.uint8 else (pixels * 255).round().to(torch.uint8)
    return Image.fromarray(whole.permute(1, 2, 0).contiguous().cpu().numpy())


# How preferences are learned: the preferred moment's reward should be the larger one (Bradley and Terry 1952).

DECAY = 1.0  # of the weights, times the learning rate


@dataclass(frozen=True, eq=False)
class LabelledPairs:
    """Pairs that were answered."""

    pairs: np.ndarray  # int64 [P, 2], places of moments
    answers: np.ndarray  # int64 [P], 0 or 1
    drawn: int  # answered or not


def bradley_terry(first: Tensor, second: Tensor, answer: Tensor) -> Tensor:
    """The mean of -log p(answer), with p(1) = exp(second) / (exp(first) + exp(second)).

    Args:
        first, second: rewards float [P] of the moments of each pair.
        answer: float [P], 0 where the first is preferred, 1 where the second is.
    """
    return functional.binary_cross_entropy_with_logits(second - first, answer)


def ensemble_loss(network: Ensemble, moments: Tensor, asked: LabelledPairs, chosen: Sequence[np.ndarray]) -> Tensor:
    """The members' losses, added.

    Args:
        moments: float32 [N, D].
        chosen: each member's pairs, as places [B] in `asked`.
    """
    targets = torch.from_numpy(asked.answers.astype(np.float32))
    parts = []
    for member, places in enumerate(chosen):
        values = network.of(member, moments[asked.pairs[places]])
        parts.append(bradley_terry(values[:, 0], values[:, 1], targets[places]))
    return torch.stack(parts).sum()


# From answers to a reward model, and what is measured of it.


def make_model(
    config: PreferencesConfig, names: tuple[str, ...], frames: EpisodeMoments, places: np.ndarray
) -> tuple[PreferenceModel, Tensor]:  # fmt: skip
    """A model that has learned nothing, and what it sees of all moments, float32 [N, D].

    Args:
        names: of the state's numbers.
        places: of the moments to learn from, which scales are taken from.
    """
    section, chosen = config.model, config.model.encoder
    component = {"name": chosen.name, **chosen.options} if chosen else None
    encoder = encoders.make(component, "model.encoder") if component else None
    observations = [frames.observation(place) for place in range(len(frames))]
    state_places = tuple(range(len(names)) if section.state is None else (names.index(name) for name in section.state))
    # an encoder that learns a scale learns it from what it sees first
    width = vectors_of([observations[place] for place in places], encoder).shape[1] if encoder else 0
    shape = RewardModelShape(
        len(state_places) + width, names, state_places, component, section.hidden, section.layers, section.members
    )
    moments = inputs_of(observations, shape, encoder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = Ensemble(shape)
    network.mean.copy_(moments[places].mean(0))
    network.spread.copy_(moments[places].std(0).clamp(min=LEAST))
    return PreferenceModel(network, shape, encoder), moments


def measured(
    config: PreferencesConfig,
    frames: EpisodeMoments,
    model: PreferenceModel,
    judge: PreferenceJudge,
    known: LabelledPairs,
    held: LabelledPairs,
) -> dict[str, Any]:
    """What the model says of the pairs that it learned from (`known`) and of those held out (`held`)."""
    each = model.members([frames.observation(place) for place in range(len(frames))])
    values = each.mean(0)
    answers = np.concatenate([known.answers, held.answers])
    report = {
        "judge": config.judge.name, "goal": config.goal, "moments": len(frames),
        "episodes": len(np.unique(frames.episode)), "pairs": known.drawn + held.drawn, "answered": len(answers),
        "first_preferred": counted(answers == 0),  # a judge that looks at places, not pictures, is far from a half
        "agreement": agreement(values, held.pairs, held.answers),
        "agreement_learned": agreement(values, known.pairs, known.answers),
        "agreement_members": [agreement(member, held.pairs, held.answers) for member in each],
    }  # fmt: skip
    progress = judge.progress(frames.state)
    if progress is not None and len(held.pairs):
        report["truth"] = against(values, progress, held.pairs)
    return report


# A small CLIP from rendered pictures and what there is to say of them (`vlrl pretrain` with `contrast`): what CLIP is
# to VLM-RM (arXiv 2310.12921), on a simulator that no photo on the web looks like. It is written as any CLIP of
# transformers is, so that either goes into the process reward `vlm_rm`.

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,-"
LONGEST = 77  # tokens of a sentence, its ends included, as in CLIP
HEADS = 4
ALPHA = 0.5  # of the reward that is measured: half of what lies off the line from baseline to goal is left out


class ContrastModel:
    """A CLIP and its processor."""

    def __init__(self, network: Any, processor: Any):
        self.network, self.processor = network, processor

    def save(self, folder: Path) -> None:
        """As transformers reads it."""
        self.network.save_pretrained(folder)
        self.processor.save_pretrained(folder)

    def load_weights(self, folder: Path) -> None:
        self.network.load_state_dict(type(self.network).from_pretrained(folder).state_dict())

    def embed_pictures(self, pictures: Sequence[Any]) -> Tensor:
        """Unit vectors [B, D], with gradient."""
        return unit_vectors(self.network.get_image_features(**self.processor(images=pictures, return_tensors="pt")))

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """Unit vectors [P, D], with gradient."""
        return unit_vectors(
            self.network.get_text_features(**self.processor(text=list(texts), padding=True, return_tensors="pt"))
        )

    def compute_logits(self, pictures: Tensor, texts: Tensor) -> Tensor:
        """Cosines [B, P], times the learned scale, of unit vectors."""
        return self.network.logit_scale.exp().clamp(max=100) * pictures @ texts.T


def build_contrast(section: ContrastSection, seed: int) -> ContrastModel:
    """A CLIP that has seen nothing and reads letter by letter, so that any wording can be tried on it."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    words = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS), "<|startoftext|>", "<|endoftext|>"]
    last = len(words) - 1
    size = {"hidden_size": section.width, "intermediate_size": 2 * section.width,
            "num_hidden_layers": section.layers, "num_attention_heads": HEADS}  # fmt: skip
    ends = {"bos_token_id": last - 1, "eos_token_id": last, "pad_token_id": last}
    text = size | ends | {"vocab_size": last + 1, "max_position_embeddings": LONGEST}
    vision = size | {"image_size": section.pixels, "patch_size": section.patch}
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=section.width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = CLIPModel(config)
        text_tower, picture_tower = network.text_model.embeddings, network.vision_model.embeddings
        tables = text_tower.token_embedding, text_tower.position_embedding, picture_tower.position_embedding
        with torch.no_grad():  # CLIP's 0.02 is for widths of 512: in small towers all would look alike for long
            for table in tables:
                table.weight.normal_(std=section.width**-0.5)
    side = {"height": section.pixels, "width": section.pixels}
    processor = CLIPProcessor(
        image_processor=CLIPImageProcessor(size=side, do_center_crop=False),  # nothing of a picture is left out
        tokenizer=CLIPTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[], model_max_length=LONGEST),
    )
    return ContrastModel(network, processor)


def contrastive_loss(logits: Tensor, label: Tensor) -> Tensor:
    """CLIP's symmetric cross-entropy, where a sentence that fits several pictures is right for each of them.

    The targets of a row, and of a column, are spread evenly over all that are of its label (UniCL, arXiv 2204.03610):
    with labels that differ this is CLIP's own loss.

    Args:
        logits: [B, B] of pictures and the sentences of these pictures; label: int64 [B].
    """
    same = (label[:, None] == label[None]).to(logits.dtype)
    targets = same / same.sum(1, keepdim=True)
    of_pictures, of_texts = logits.log_softmax(1), logits.T.log_softmax(1)
    return -(targets * (of_pictures + of_texts)).sum(1).mean() / 2


@dataclass(frozen=True, eq=False)
class Captioned:
    """M moments and which of the sentences tells each."""

    places: np.ndarray  # int64 [M], in the moments
    label: np.ndarray  # int64 [M]


def label_distances(distance: np.ndarray, limits: Sequence[float]) -> np.ndarray:
    """The first limit within which each distance [M] lies, int64 [M]; beyond all of them the last."""
    return np.searchsorted(np.asarray(limits[:-1], np.float64), distance, side="left").astype(np.int64)


class ContrastLearner(SupervisedLearner):
    """A CLIP, and what is measured of it on held-out episodes."""

    command = "pretrain"
    recent = 50
    config: PretrainConfig
    policy: ContrastModel

    def setup(self, saved: Path | None = None) -> None:
        """
        Raises:
            UserError: no pictures, no such numbers of the state, or a sentence that fits none of the moments.
        """
        super().setup(saved)
        config, section = self.config, self.config.contrast
        if section is None:
            raise UserError("contrast: say what pictures are told by")
        self.section = section
        self.task = registry.make_task(config)
        check_task(self.task, config.task.name)
        album, scale = StateAlbum(), ScriptedJudge(self.task, config.seed, what=section.what, where=section.where)
        self.frames = frames_of(passive_read(with_album(self.task, album), config.offline, config.seed), album)
        if not all(len(pictures) > section.image for pictures in self.frames.pictures):
            raise UserError(f"contrast: the data shows no picture {section.image}: give the robot a camera")
        self.distance = -scale.progress(self.frames.state)
        label = label_distances(self.distance, [each.within for each in section.sentences])
        if missing := sorted(set(range(len(section.sentences))) - set(label.tolist())):
            raise UserError(f"contrast.sentences.{missing[0]}: no moment of {len(label)} is like that: change within")
        self.learned, self.held = (Captioned(part, label[part]) for part in split(self.frames, 0.2, config.seed))
        self.policy = build_contrast(section, config.seed)
        self.optimizer = torch.optim.AdamW(self.policy.network.parameters(), lr=config.lr, weight_decay=0.01)
        self.text_rows = [(i, text) for i, each in enumerate(section.sentences) for text in each.texts]

    @property
    def steps(self) -> float:
        return self.config.updates

    def pictures(self, places: np.ndarray) -> list[Any]:
        return [self.frames.pictures[place][self.section.image].convert("RGB") for place in places]

    def draw(self) -> tuple[list[Any], np.ndarray, Tensor]:
        """Pictures, which of all texts was said of each, and its sentence; every sentence is as likely."""
        rng, sizes = self.rngs[0], np.bincount(self.learned.label)
        chance = 1 / (np.count_nonzero(sizes) * sizes[self.learned.label])
        rows = rng.choice(len(self.learned.label), self.config.batch_size, p=chance)
        label = self.learned.label[rows]
        texts = [rng.choice([row for row, (own, _) in enumerate(self.text_rows) if own == each]) for each in label]
        return self.pictures(self.learned.places[rows]), np.array(texts), torch.from_numpy(label)

    def loss(self, batch: tuple[list[Any], np.ndarray, Tensor]) -> Tensor:
        pictures, texts, label = batch
        vectors = self.policy.embed_texts([text for _, text in self.text_rows])[torch.from_numpy(texts)]
        return contrastive_loss(self.policy.compute_logits(self.policy.embed_pictures(pictures), vectors), label)

    def evaluate(self, i: int, progress: Callable[[int, int], None]) -> None:
        """Nothing: `report` measures."""

    def report(self) -> dict[str, Any]:
        return {"moments": len(self.frames), "episodes": len(np.unique(self.frames.episode)), **self.summary({}),
                **measure_contrast(self)}  # fmt: skip


@torch.no_grad()
def measure_contrast(learner: ContrastLearner) -> dict[str, Any]:
    """Of held-out moments: how often the likeliest sentence is the right one, and how far VLM-RM's reward, with the
    first sentence as the goal and the last one as the baseline, ranks them as their distances do (Kendall's tau)."""
    from scipy.stats import kendalltau

    model, held = learner.policy, learner.held
    x = torch.cat([model.embed_pictures(learner.pictures(part))
                   for part in np.array_split(held.places, -(-len(held.places) // 256))])  # fmt: skip
    sentences = learner.section.sentences
    means = torch.stack([model.embed_texts(each.texts).mean(0) for each in sentences])
    choice = model.compute_logits(x, means).argmax(1).numpy()
    reward = projected(x, means[0], means[-1], ALPHA).numpy()
    return {
        "accuracy": counted(choice == held.label),
        "chance": float(np.bincount(held.label).max() / len(held.label)),  # of always the most frequent sentence
        "kendall": float(kendalltau(reward, -learner.distance[held.places]).statistic),
    }


def summary_text(report: dict[str, Any]) -> str:
    """A report in a line."""
    if "same_policy" in report:
        same, ranked, likeness = (
            f"{k}/{n} [{low:.2f}, {high:.2f}]"
            for k, n, low, high in (report[name] for name in ("same_policy", "ranked", "ranked_by_characters"))
        )
        return (
            f"held-out prompts: the same policy found for {same}, pairs ranked as the task's reward {ranked}, "
            f"Kendall's tau {report['kendall']:.2f}; by likeness of characters {likeness}"
        )
    k, n, low, high = report["accuracy"]
    return (
        f"{report['moments']} pictures of {report['episodes']} episodes; held out, the right sentence for {k}/{n} "
        f"[{low:.2f}, {high:.2f}], chance {report['chance']:.2f}, Kendall's tau of reward and nearness "
        f"{report['kendall']:.2f}"
    )


# A policy discriminator (`vlrl pretrain` with `discriminate`): a reward model that has learned whether two answers to a
# prompt are one policy's, and then which of two answers is better, as POLAR does (arXiv 2507.05197).

DISCRIMINATOR = "vlrl_discriminator"
HELD_TRIPLES = 1000  # drawn of held-out prompts, to measure by


class DiscriminatorModel:
    """r(reference, answer): a network over `|u - v|` and `u v` of the vectors that an embedder makes of both texts."""

    def __init__(self, embedder: Mapping[str, Any], hidden: int, seed: int = 0):
        self.about = {"model_type": DISCRIMINATOR, "embedder": dict(embedder), "hidden": hidden}
        self.embedder = encoders.texts_make(embedder, "discriminate.embedder")
        width = 2 * len(self.embed(["a"])[0])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = nn.Sequential(nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, 1))
        self.scale = torch.tensor([0.0, 1.0])  # mean and deviation of scores, which a loss of differences leaves open

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors float32 [N, D]; 0 for a text that the embedder has none of."""
        vectors = self.embedder.embed(texts)
        width = next((len(each) for each in vectors if each is not None), 1)
        return torch.from_numpy(np.stack([np.zeros(width, np.float32) if v is None else v for v in vectors]))

    def compare(self, reference: Tensor, answer: Tensor) -> Tensor:
        """Scores [N] of vectors [N, D], with gradient."""
        return self.network(torch.cat([(reference - answer).abs(), reference * answer], 1))[:, 0]

    @torch.no_grad()
    def score(self, references: Sequence[str], answers: Sequence[str]) -> Tensor:
        """[N], the larger the more the answer is one of the reference's policy; about 0 on what it learned from."""
        return (self.compare(self.embed(references), self.embed(answers)) - self.scale[0]) / self.scale[1]

    def save(self, folder: Path) -> None:
        """config.json and model.safetensors."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.network.state_dict() | {"scale": self.scale}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.about, indent=1) + "\n", encoding="utf-8")

    def load_weights(self, folder: Path) -> None:
        self.load_state_dict(load_file(folder / "model.safetensors"))

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """What `save` wrote of the network and the scale."""
        self.scale = state.pop("scale")
        self.network.load_state_dict(state)


def discriminator_load(folder: str | Path) -> DiscriminatorModel:
    """The model that `save` wrote.

    Raises:
        UserError: the folder holds something else.
    """
    with checkpoint.open_model(Path(folder), DISCRIMINATOR, "discriminator of policies") as (about, tensors):
        model = DiscriminatorModel(about["embedder"], about["hidden"])
        model.load_state_dict(tensors)
    return model


@dataclass(frozen=True)
class RankedAnswer:
    """A policy's answer to a prompt, as a place among all texts, and the task's reward of it."""

    policy: int
    text: int
    reward: float


def best_text(answers: Sequence[RankedAnswer]) -> int:
    """The text of the first answer of the highest reward, which others are compared with."""
    return max(answers, key=lambda each: each.reward).text


def list_triples(answers: Sequence[RankedAnswer]) -> list[tuple[int, int, int]]:
    """(best, better, worse) texts of every two answers to a prompt with different rewards."""
    best = best_text(answers)
    ordered = (sorted(pair, key=lambda each: -each.reward) for pair in combinations(answers, 2))
    return [(best, one.text, other.text) for one, other in ordered if one.reward > other.reward]


class DiscriminatorLearner(SupervisedLearner):
    """A policy discriminator: pretrained on who wrote what, then on ranked answers, against the best one known.

    Both by Bradley and Terry's loss `-log sigmoid(r(ref, better) - r(ref, worse))`. At first the reference and the
    better one are two answers of one policy, the worse one another policy's; then the reference is the best answer to
    the prompt, and rewards say which is better. Ours: a network over vectors of a frozen embedder in the place of a
    language model with a scalar head, rewards of a task in the place of people's ranking, no prompt read.
    """

    command = "pretrain"
    recent = 50
    config: PretrainConfig
    policy: DiscriminatorModel

    def setup(self, saved: Path | None = None) -> None:
        """
        Raises:
            UserError: a policy writes no text; the task has no gold answers, or its episodes take turns.
        """
        super().setup(saved)
        config, section = self.config, self.config.discriminate
        if section is None:
            raise UserError("discriminate: say whose answers are told apart")
        component = {"name": section.embedder.name, **section.embedder.options}
        self.policy = DiscriminatorModel(component, config.hidden, config.seed)
        task = registry.make_task(config)
        if task.takes_turns():
            raise UserError("discriminate: compares whole answers, but episodes of this task take turns")
        samples = [task.samples("train")[i] for i in range(min(section.prompts, len(task.samples("train"))))]
        texts: dict[str, int] = {}
        self.answers: list[list[RankedAnswer]] = [[] for _ in samples]
        for number, own in enumerate(section.policies):
            for episode in answer_prompts(
                own, task, samples, section.answers, config.seed, section.gold and not number
            ):
                text = texts.setdefault(episode.completion, len(texts))
                place = -1 if episode.is_demonstration else number
                self.answers[episode.group].append(RankedAnswer(place, text, episode.reward))
        self.texts = list(texts)
        self.vectors = self.policy.embed(self.texts)
        fifth = -(-len(samples) // 5)
        self.training, self.validation = self.answers[fifth:], self.answers[:fifth]
        self.ranked, self.last = [triple for each in self.training for triple in list_triples(each)], section.ranked
        if section.ranked and not self.ranked:
            raise UserError("discriminate.ranked: all answers to a prompt earn the same: set 0, or add other policies")
        self.optimizer = torch.optim.AdamW(self.policy.network.parameters(), lr=config.lr, weight_decay=0.01)

    @property
    def steps(self) -> float:
        return self.config.updates

    def batches(self, steps: range) -> Iterator[np.ndarray]:
        rng, size = self.rngs[0], self.config.batch_size
        for i in steps:
            if i < self.config.updates - self.last:
                yield draw_triples(self.training, size, rng)
            else:
                yield np.array(self.ranked)[rng.integers(len(self.ranked), size=size)]

    def loss(self, batch: np.ndarray) -> Tensor:
        reference, better, worse = self.vectors[torch.from_numpy(batch)].unbind(1)
        first, second = self.policy.compare(reference, better), self.policy.compare(reference, worse)
        return bradley_terry(first, second, torch.zeros(len(batch)))

    def evaluate(self, i: int, progress: Callable[[int, int], None]) -> None:
        """Nothing: `report` measures."""

    @torch.no_grad()
    def export(self, folder: Path) -> None:
        best = [(best_text(own), each.text) for own in self.training for each in own]
        scores = self.policy.compare(*self.vectors[torch.tensor(best)].unbind(1))
        self.policy.scale = torch.stack([scores.mean(), scores.std().clamp(min=LEAST)])
        super().export(folder)

    def report(self) -> dict[str, Any]:
        return {"texts": len(self.texts), **self.summary({}), **measure_discriminator(self)}


def answer_prompts(
    section: PolicySection, task: Any, samples: Sequence[Sample], count: int, seed: int, gold: bool
) -> list[Episode]:
    """`count` scored answers of a policy to each sample; with `gold` also the right one, as a demonstration.

    Raises:
        UserError: the policy writes no text; no gold answer is known.
    """
    policy = load_policy(section, seed=seed)
    if not policy.writes_text:
        raise UserError(f"discriminate.policies: {section.model} writes no text")
    episodes = collect(policy, task, samples, count)
    if not gold:
        return episodes
    right = [policy.decide(s.prompt, text, key=s.id)
             for s, text in zip(samples, golds(policy, task, samples, "discriminate"), strict=True)]  # fmt: skip
    for episode in played(policy, task, samples, right, "discriminate"):
        episode.is_demonstration = True
        episodes += [episode] * count
    return episodes


def draw_triples(prompts: Sequence[Sequence[RankedAnswer]], count: int, rng: np.random.Generator) -> np.ndarray:
    """int64 [count, 3], texts: two answers of one policy to a prompt, and one of another policy."""
    triples = []
    for place in rng.integers(len(prompts), size=count):
        own = [each.policy for each in prompts[place]]
        one, other = rng.permutation(sorted(set(own)))[:2]
        first, second = rng.permutation([i for i, policy in enumerate(own) if policy == one])[:2]
        third = rng.choice([i for i, policy in enumerate(own) if policy == other])
        triples.append([prompts[place][i].text for i in (first, second, third)])
    return np.array(triples)


@torch.no_grad()
def measure_discriminator(learner: DiscriminatorLearner) -> dict[str, Any]:
    """Of held-out prompts: how often the same policy's answer scores above another's different one; how often two
    answers, neither of them the reference, are ranked as their rewards, also by likeness of characters; and how far all
    of a prompt's answers are (Kendall's tau).
    """
    from scipy.stats import kendalltau

    def score(reference: np.ndarray, answer: np.ndarray) -> np.ndarray:
        return learner.policy.compare(learner.vectors[reference], learner.vectors[answer]).numpy()

    def score_characters(reference: np.ndarray, answer: np.ndarray) -> np.ndarray:
        pairs = zip(reference, answer, strict=True)
        asks = [JudgeQuestion((), (learner.texts[a],), "", learner.texts[r]) for r, a in pairs]
        return np.array([verdict.scores[0] for verdict in ReferenceJudge(0).ask(asks)])

    def count_right(triples: np.ndarray, score: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> list[float]:
        reference, better, worse = triples.T
        return counted(score(reference, better) > score(reference, worse))

    same = draw_triples(learner.validation, HELD_TRIPLES, np.random.default_rng(learner.config.seed))
    same = same[same[:, 1] != same[:, 2]]
    ranked = np.array([triple for each in learner.validation for triple in list_triples(each)], np.int64).reshape(-1, 3)
    ranked = ranked[ranked[:, 0] != ranked[:, 1]]
    taus = []
    for answers in learner.validation:
        texts, rewards = np.array([each.text for each in answers]), [each.reward for each in answers]
        taus.append(kendalltau(score(np.full(len(texts), best_text(answers)), texts), rewards).statistic)
    return {
        "same_policy": count_right(same, score),
        "ranked": count_right(ranked, score),
        "ranked_by_characters": count_right(ranked, score_characters),
        "kendall": float(np.nanmean(taus)) if np.isfinite(taus).any() else 0.0,
    }
