"""A small CLIP from rendered pictures and what there is to say of them (`vlrl pretrain` with `contrast`).

What CLIP is to VLM-RM (arXiv 2310.12921), on a simulator that no photo on the web looks like. It is written as any CLIP
of transformers is, so that either goes into the process reward `vlm_rm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlrl import registry
from vlrl.contrib.preferences.labelling import (
    EpisodeMoments,
    ScriptedJudge,
    StateAlbum,
    counted,
    frames_of,
    split,
    with_album,
)
from vlrl.contrib.process_rewards.visual import projected, unit_vectors
from vlrl.offpolicy.config import ContrastSection, PretrainConfig, passive_read
from vlrl.offpolicy.learner import check_task
from vlrl.runner import SupervisedLearner
from vlrl.types import UserError

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


def build(section: ContrastSection, seed: int) -> ContrastModel:
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
        self.policy = build(section, config.seed)
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
                **measured(self.policy, self, self.frames, self.held)}  # fmt: skip


@torch.no_grad()
def measured(model: ContrastModel, learner: ContrastLearner, frames: EpisodeMoments, held: Captioned) -> dict[str, Any]:
    """Of held-out moments: how often the likeliest sentence is the right one, and how far VLM-RM's reward, with the
    first sentence as the goal and the last one as the baseline, ranks them as their distances do (Kendall's tau)."""
    from scipy.stats import kendalltau

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
    k, n, low, high = report["accuracy"]
    return (
        f"{report['moments']} pictures of {report['episodes']} episodes; held out, the right sentence for {k}/{n} "
        f"[{low:.2f}, {high:.2f}], chance {report['chance']:.2f}, Kendall's tau of reward and nearness "
        f"{report['kendall']:.2f}"
    )
