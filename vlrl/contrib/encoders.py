"""Encoders: what episodes showed, as vectors that can be compared. Named in options as `encoder: classical`, or with
options, `encoder: {name: vjepa2, model: FOLDER}`; `my_module:MyEncoder` from anywhere on the Python path.
"""

from __future__ import annotations

import json
import math
import time
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Protocol
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field

from vlrl import config, registry
from vlrl.config import Count, Rate
from vlrl.contrib.judges.endpoint import AGAIN, UnansweredError, post
from vlrl.contrib.judges.tournament import concurrently
from vlrl.decoders import parse_json
from vlrl.methods import StepMethod, method
from vlrl.system.hub import reach_hub
from vlrl.types import Episode, Observation, UserError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor


# What an encoder is.


class Encoder(StepMethod, ABC):
    """Vectors of what was shown. Made with its options alone; one that learns has `state_dict`, `load_state_dict`."""

    @abstractmethod
    def encode(self, episodes: Sequence[Episode]) -> list[np.ndarray]:
        """float32 [turns + 1, D] of each episode: of everything shown, what the last step led to included."""

    @abstractmethod
    def embed_episodes(self, episodes: Sequence[Episode]) -> np.ndarray:
        """float32 [N, W]: one vector an episode."""


def list_observations(episode: Episode) -> list[Observation]:
    """Everything that an episode showed, in order: [turns + 1]."""
    return [*(turn.observation for turn in episode.turns), episode.turns[-1].step.observation]


def get_picture(observation: Observation, image: int) -> Image:
    """One picture of an observation, RGB.

    Raises:
        IndexError: it has none of that number.
    """
    return observation.images[image].convert("RGB")


KNOWN = {"classical": "vlrl.contrib.encoders:Classical", "vjepa2": "vlrl.contrib.encoders:VJEPA2"}


def make(chosen: str | Mapping[str, Any], path: str) -> Encoder:
    """The encoder of an option at `path`: its name, or its name with options.

    Raises:
        UserError: there is none of that name; its options are wrong; its model is not there.
    """
    return registry.make("encoder", registry.chosen(chosen, path, "encoder", KNOWN), path)


# Encoders of texts, for rewards by likeness in meaning. Named in options as `embedder: hashed`, or with options,
# `embedder: {name: endpoint, url: ..., model: ...}`; `my_module:MyEmbedder` from anywhere on the Python path.

TEXTS_KNOWN = {
    "endpoint": "vlrl.contrib.encoders:EmbeddingEndpoint", "hashed": "vlrl.contrib.encoders:Hashed",
    "sentences": "vlrl.contrib.encoders:Sentences",
}  # fmt: skip
Chosen = Annotated[str | dict[str, Any], Field(union_mode="left_to_right")]  # the option `embedder`
MOST = 4_000  # characters of a text that are encoded


class Embedder(Protocol):
    """Made with its options alone."""

    def embed(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        """float32 [D], of length 1, for each; None where there was no answer. Bounded in time; equal for equal texts.

        It does not raise on any text.
        """
        ...


def texts_make(chosen: str | Mapping[str, Any], path: str) -> Embedder:
    """The embedder of an option at `path`: its name, or its name with options.

    Raises:
        UserError: there is none of that name; its options are wrong; its model is not there.
    """
    return registry.make("embedder", registry.chosen(chosen, path, "embedder", TEXTS_KNOWN), path)


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    """Of two vectors of length 1, within [-1, 1]; 0 for vectors that are not finite."""
    similarity = float(one.astype("float64") @ other.astype("float64"))
    return min(1.0, max(-1.0, similarity)) if similarity == similarity else 0.0


# An encoder without weights: the numbers of the state, and simple features of the pictures.

STILL = 1e-3  # a number that varies by less than this is noise, and is not stretched to a spread of 1
COLOUR, GREY, EDGES = 8, 16, 32  # sides of the pictures that the features are taken from


@method(source="histograms of gradients: Dalal and Triggs, CVPR 2005")
class Classical(Encoder):
    """The state, and of each picture a colour thumbnail, its edges and what has changed since the episode began.

    The edges are histograms of oriented gradients (OpenCV's, of 32 x 32 pixels), the change is the difference to the
    episode's first picture, 16 x 16 grey. Every number of the state is standardised by the mean and the deviation in
    the first episodes that are encoded, every kind of picture feature by its mean and one deviation of them all; these
    stay, so that vectors of different steps can be compared. Each block is divided by the root of its length: the
    state and each feature of the pictures count the same, whatever their size.

    A whole episode is `points` of these vectors, evenly over its time, side by side, divided by the root of `points`:
    the squared distance of two episodes is the mean of those along the way.
    """

    def __init__(self, *, points: Count = 8):
        self.points = points
        self._mean: list[np.ndarray] | None = None  # of each block
        self._spread: list[np.ndarray] = []

    def encode(self, episodes: Sequence[Episode]) -> list[np.ndarray]:
        """float32 [turns + 1, D] of each episode.

        Raises:
            UserError: what is shown has neither a state nor a picture, or is not the same everywhere.
        """
        blocks = _stacked([_blocks(now, e.turns[0].observation) for e in episodes for now in list_observations(e)])
        if self._mean is None:
            self._fit(blocks)
        if [len(mean) for mean in self._mean] != [block.shape[1] for block in blocks]:
            raise UserError(
                "encoder classical: the episodes show another state, or other pictures, than the first ones"
            )
        scaled = [
            (block - mean) / spread / block.shape[1] ** 0.5
            for block, mean, spread in zip(blocks, self._mean, self._spread, strict=True)
        ]
        joined = np.concatenate(scaled, 1).astype(np.float32)
        return np.split(joined, np.cumsum([len(e.turns) + 1 for e in episodes])[:-1])

    def embed_episodes(self, episodes: Sequence[Episode]) -> np.ndarray:
        """float32 [N, points * D]."""
        rows = []
        for vectors in self.encode(episodes):
            places = np.linspace(0, len(vectors) - 1, self.points).round().astype(int)
            rows.append(vectors[places].ravel() / self.points**0.5)
        return np.stack(rows)

    def _fit(self, blocks: Sequence[np.ndarray]) -> None:
        self._mean = [block.mean(0) for block in blocks]
        numbers, *pictures = (block.std(0) for block in blocks)
        # pixels hardly seen to change would be nothing but noise, so those of a kind share their deviation
        alike = [np.full_like(each, max(float((each**2).mean() ** 0.5), STILL)) for each in pictures]
        self._spread = [np.maximum(numbers, STILL), *alike]

    def state_dict(self) -> dict[str, Any]:
        import torch

        mean = self._mean or []
        return {"fitted": self._mean is not None, "mean": [torch.from_numpy(each) for each in mean],
                "spread": [torch.from_numpy(each) for each in self._spread]}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._mean = [each.numpy() for each in state["mean"]] if state["fitted"] else None
        self._spread = [each.numpy() for each in state["spread"]]


classical = Classical


def _blocks(now: Observation, first: Observation) -> list[np.ndarray]:
    """float64: the state (of no numbers where there is none), then three blocks of each picture."""
    state = np.zeros(0) if now.state is None else np.asarray(now.state, np.float64)
    if not len(state) and not now.images:
        raise UserError(
            "encoder classical: the episodes show neither a state nor a picture: there is nothing to compare"
        )
    if len(now.images) != len(first.images):
        raise UserError("encoder classical: the pictures that an episode shows change in number")
    pictures = [part for pair in zip(now.images, first.images, strict=True) for part in _picture(*pair)]
    return [state, *pictures]


def _picture(now: Any, first: Any) -> list[np.ndarray]:
    import cv2

    pixels = np.asarray(now.convert("RGB"))
    grey, before = (np.asarray(each.convert("L")) for each in (now, first))
    colour = cv2.resize(pixels, (COLOUR, COLOUR), interpolation=cv2.INTER_AREA)
    then, since = (cv2.resize(each, (GREY, GREY), interpolation=cv2.INTER_AREA) for each in (before, grey))
    edges = cv2.HOGDescriptor((EDGES, EDGES), (16, 16), (8, 8), (8, 8), 9).compute(cv2.resize(grey, (EDGES, EDGES)))
    change = since.astype(np.float64) - then
    return [colour.ravel() / 255.0, np.asarray(edges, np.float64).ravel(), change.ravel() / 255.0]


def _stacked(rows: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """float64 [M, size] of each block; UserError where they differ."""
    if len({tuple(len(block) for block in row) for row in rows}) > 1:
        raise UserError("encoder classical: the episodes do not all show the same numbers and pictures")
    return [np.stack(column) for column in zip(*rows, strict=True)]


# An encoder of texts behind HTTP: any server that speaks OpenAI's embeddings (vLLM, TEI, a provider's).


class EmbeddingEndpoint:
    """Asks a server for vectors, `batch` texts a request, and remembers them while the run lasts.

    A request that fails is repeated; texts without an answer after that have None. All ends within `patience` seconds.

    Args:
        url: up to and without `/embeddings`: http://localhost:8000/v1
        model: as the server names it.
        key: the environment variable that holds the server's key.
        timeout: seconds for one request. patience: for all that are asked at once.
        retries: repetitions of a request. backoff: seconds before the first, twice as many before each further one.
        concurrent: requests at a time. batch: texts of a request.

    Raises:
        UserError: the URL is none; there is no such environment variable.
    """

    def __init__(
        self, *, url: str, model: str, key: str | None = None, timeout: Rate = 30.0, patience: Rate = 300.0,
        retries: Annotated[int, Field(ge=0)] = 3, backoff: Rate = 1.0, concurrent: Count = 8, batch: Count = 64,
    ):  # fmt: skip
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"embedder.url: {url!r}: write http://HOST:PORT/v1")
        self._url, self._model = f"{url.rstrip('/')}/embeddings", model
        self._headers = config.header(key, "embedder.key")
        self._timeout, self._patience, self._retries, self._backoff = timeout, patience, retries, backoff
        self._concurrent, self._batch = concurrent, batch
        self._known: dict[str, np.ndarray] = {}

    def embed(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        until = time.monotonic() + self._patience
        short = [text[:MOST].encode("utf-8", "replace").decode() for text in texts]
        new = [text for text in dict.fromkeys(short) if text not in self._known]
        parts = [new[i : i + self._batch] for i in range(0, len(new), self._batch)]
        rows = concurrently(lambda part: self._request_vectors(part, until), parts, self._concurrent, until)
        for part, vectors in zip(parts, rows, strict=True):
            self._known.update(zip(part, vectors or (), strict=False))
        return [self._known.get(text) for text in short]

    def _request_vectors(self, texts: Sequence[str], until: float) -> list[np.ndarray] | None:
        body = json.dumps({"model": self._model, "input": list(texts)}).encode()
        for attempt in range(self._retries + 1):
            left = until - time.monotonic()
            if left <= 0:
                return None
            try:
                answer = post(self._url, body, self._headers, min(self._timeout, left))
                if answer.status == 200:
                    return vectors(answer.body, len(texts))
                if answer.status not in AGAIN and answer.status < 500:
                    return None
            except (UnansweredError, ValueError):
                pass  # asked again
            if attempt < self._retries:
                time.sleep(max(0.0, min(self._backoff * 2**attempt, until - time.monotonic())))
        return None


def vectors(body: bytes, count: int) -> list[np.ndarray]:
    """Vectors of length 1 from an answer, in the order that was asked for.

    Raises:
        ValueError: it holds no such vectors.
    """
    import numpy as np

    try:
        rows = {row["index"]: row["embedding"] for row in parse_json(body)["data"]}
        matrix = np.asarray([rows[i] for i in range(count)], np.float64)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("an answer that holds no embeddings") from None
    norms = np.linalg.norm(matrix, axis=1) if matrix.ndim == 2 and matrix.size else np.zeros(1)
    if not all(math.isfinite(norm) and norm > 0 for norm in norms):
        raise ValueError("embeddings that are no vectors")
    return list((matrix / norms[:, None]).astype(np.float32))


# No model of meaning: runs of characters, counted. For tests, and to try a recipe without one.


class Hashed:
    """Runs of `n` characters of each word, its ends included, hashed into `size` counts; the roots of the counts.

    It knows spelling alone: `myocardial infarction` and `heart attack` are unlike, `two` and `not two` alike.

    Args:
        n: characters of a run.
        size: numbers of a vector.
    """

    def __init__(self, *, n: Count = 3, size: Count = 1024):
        self.n, self.size = n, size

    def embed(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> np.ndarray:
        import numpy as np

        words = [f"^{word}$" for word in text[:MOST].casefold().split()] or ["^$"]
        runs = Counter(word[i : i + self.n] for word in words for i in range(max(1, len(word) - self.n + 1)))
        vector = np.zeros(self.size, np.float32)
        for run, count in runs.items():
            vector[zlib.crc32(run.encode("utf-8", "surrogatepass")) % self.size] += count
        vector = np.sqrt(vector)
        return vector / np.linalg.norm(vector)


# A sentence encoder of Hugging Face's, in this process.


class Sentences:
    """The mean of a text encoder's last states over a text's tokens, of length 1, as sentence-transformers has it.

    Args:
        model: a folder, or a name on the hub: abhinand/MedEmbed-large-v0.1 (MediX-R1's), sentence-transformers/...
        batch: texts at a time.
        max_tokens: of a text that are read.

    Raises:
        UserError: there is no such model, or some of its weights are missing.
    """

    def __init__(self, *, model: str, batch: Count = 64, max_tokens: Count = 256):
        import torch

        self.batch, self.max_tokens = batch, max_tokens
        self._tokenizer, loaded = _text_sentences_pretrained(model)
        if self._tokenizer.pad_token is None:
            raise UserError(f"embedder.model: {model!r} has no token to fill texts up with: it is no sentence encoder")
        self._model = loaded.eval().requires_grad_(False).to("cuda" if torch.cuda.is_available() else "cpu")

    def embed(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        import torch

        vectors: list[np.ndarray | None] = []
        for start in range(0, len(texts), self.batch):
            chosen = [text[:MOST].encode("utf-8", "replace").decode() for text in texts[start : start + self.batch]]
            tokens = self._tokenizer(
                chosen,
                padding=True,
                truncation=True,
                max_length=self.max_tokens,
                return_tensors="pt",
                split_special_tokens=True,
            ).to(self._model.device)
            with torch.no_grad():
                states = self._model(**tokens).last_hidden_state.float()
            mask = tokens["attention_mask"][..., None].float()
            mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
            unit = torch.nn.functional.normalize(mean, dim=1).cpu()
            vectors += [row.numpy() if bool(row.isfinite().all()) else None for row in unit]
        return vectors


def _text_sentences_pretrained(source: str) -> tuple[Any, Any]:
    """Tokenizer and model in float32; UserError where they cannot be loaded, or would be random in part."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    try:
        reach_hub(source)
        model, info = AutoModel.from_pretrained(
            source, dtype=torch.float32, output_loading_info=True, use_safetensors=True
        )
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (UserError, OSError, ValueError, RuntimeError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"embedder.model: cannot load {source!r}: {reason}") from None
    missing = [key for key in info["missing_keys"] if "pooler" not in key]  # unused: the mean is taken
    if odd := [*missing, *info["mismatched_keys"]]:
        raise UserError(f"embedder.model: the weights of {source!r} do not fit: {len(odd)} keys, first {odd[0]}")
    return tokenizer, model


# V-JEPA 2 (arXiv 2506.09985) as an encoder of what episodes showed.


@method(source="V-JEPA 2: arXiv 2506.09985, as SRPO reads it: github.com/sii-research/siiRL")
class VJEPA2(Encoder):
    """The mean over all tokens of the video encoder, of a whole episode or of single pictures.

    An episode is `frames` pictures evenly over its time; a shorter one is repeated from its beginning until there are
    as many. A single picture is shown as a video that stands still, as long as one of the model's steps in time.

    Args:
        model: a folder, or a name on the hub, for example facebook/vjepa2-vitg-fpc64-384, which SRPO uses.
        image: which of the pictures of an observation.
        batch: videos at a time; of single pictures `frames` times as many.

    Raises:
        UserError: there is no such model; an episode shows no such picture.
    """

    def __init__(self, *, model: str, frames: Count = 64, image: Annotated[int, Field(ge=0)] = 0, batch: Count = 4):
        import torch

        self.frames, self.image, self.batch = frames, image, batch
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._processor, self._model = _vjepa2_pretrained(model)
        self._model = self._model.eval().requires_grad_(False).to(device)

    def encode(self, episodes: Sequence[Episode]) -> list[np.ndarray]:
        """float32 [turns + 1, hidden] of each episode."""
        still = self._model.config.tubelet_size
        pictures = [picture for e in episodes for picture in self._pictures(e)]
        vectors = self._vectors([[picture] * still for picture in pictures], self.batch * self.frames)
        return np.split(vectors, np.cumsum([len(e.turns) + 1 for e in episodes])[:-1])

    def embed_episodes(self, episodes: Sequence[Episode]) -> np.ndarray:
        """float32 [N, hidden]."""
        videos = []
        for episode in episodes:
            pictures = self._pictures(episode)
            videos.append([pictures[i] for i in spread(len(pictures), self.frames)])
        return self._vectors(videos, self.batch)

    def _pictures(self, episode: Episode) -> list[np.ndarray]:
        """uint8 [height, width, 3] of everything that the episode showed."""
        try:
            return [np.asarray(get_picture(observation, self.image)) for observation in list_observations(episode)]
        except IndexError:
            raise UserError(f"encoder vjepa2: the episodes show no picture {self.image} (its option `image`)") from None

    def _vectors(self, videos: Sequence[Sequence[np.ndarray]], batch: int) -> np.ndarray:
        import torch

        outputs: list[Tensor] = []
        for start in range(0, len(videos), batch):
            frames = [np.stack(video) for video in videos[start : start + batch]]
            pixels = self._processor(frames, return_tensors="pt", do_sample_frames=False)["pixel_values_videos"]
            with torch.no_grad():
                tokens = self._model.get_vision_features(pixels.to(self._model.device))
            outputs.append(tokens.float().mean(1).cpu())
        return torch.cat(outputs).numpy()


vjepa2 = VJEPA2


def spread(length: int, frames: int) -> np.ndarray:
    """Which `frames` of `length` pictures a video is made of, int64 [frames]: as SRPO's released code takes them."""
    if length >= frames:
        return np.linspace(0, length - 1, num=frames, dtype=int)
    return np.resize(np.arange(length), frames)


def _vjepa2_pretrained(source: str) -> tuple[Any, Any]:
    """Processor and model in float32; UserError where they cannot be loaded, or would be random in part."""
    import torch
    from transformers import AutoVideoProcessor, VJEPA2Model

    try:
        reach_hub(source)
        model, info = VJEPA2Model.from_pretrained(
            source, dtype=torch.float32, output_loading_info=True, use_safetensors=True
        )
        processor = AutoVideoProcessor.from_pretrained(source)
    except (UserError, OSError, ValueError, RuntimeError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"encoder vjepa2: cannot load the model {source!r}: {reason}") from None
    if odd := [*info["missing_keys"], *info["mismatched_keys"]]:
        raise UserError(f"encoder vjepa2: {source!r} is no V-JEPA 2 model: {len(odd)} weights are missing")
    return processor, model
