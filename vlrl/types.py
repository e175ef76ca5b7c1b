"""The nouns that tasks, policies, estimators and the trainer share. Imports nothing of ours and no torch at run time.

Shapes: N episodes, B decisions (one per turn), T units of credit (tokens of a completion), padded.
"""

from __future__ import annotations

import difflib
import math
import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import torch
    from PIL.Image import Image
    from torch import Tensor

__version__ = "0.1.0"
Split = Literal["train", "test"]
CORRECT_ABOVE = 0.5  # `correct` of an episode that counts as a success: the one definition, whatever the reward says
MAX_PIXELS = 50_000_000  # of an image; a header of 100 bytes can ask for more than memory holds
Role = Literal["system", "user", "assistant", "tool"]  # of a message
ROLES = get_args(Role)
PILLOW_PIXELS = 178_956_970  # Pillow opens no image with more


class UserError(Exception):
    """Something the user can mend. One line: what is wrong, where (file, row or key), what to do. Exit code 2."""

    exit_code: int | None = None  # of the end of a run, where it is none of 2


def first_line(error: BaseException) -> str:
    """What an error says first, or else its kind, in at most 200 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def one_line(error: BaseException) -> str:
    """An error's kind and what it says, with the line of code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    line = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {first_line(error)}{line}"


TRIES = 3  # of what fails by itself
LOST_MOST = 10  # workers that may be lost over one thing; that is the machines' fault, unless it kills them all
OVERLONG = "overlong"  # in a step's `info`: what would follow is longer than the policy takes


def is_hopeless(failures: int, lost: int) -> bool:
    """Whether to give up what failed so many times, `lost` of them because a worker died."""
    return failures - lost == TRIES or lost == LOST_MOST


class OverlongError(UserError):
    """A prompt is longer than the policy takes: the first one, or those that `episodes` would have to go on from."""

    def __init__(self, message: str, episodes: Sequence[Episode] = ()):
        super().__init__(message)
        self.episodes = tuple(episodes)


@dataclass(frozen=True)
class Data:
    """Where a task's samples come from. No path: what the task renders or bundles."""

    train: str | None = None  # file, folder, or hf://OWNER/NAME:SPLIT (docs/interop.md)
    test: str | None = None
    format: str = "auto"  # a reader's name; `auto` goes by the file's ending and keys
    test_format: str | None = None  # of `test`, where it is another
    images: str | None = None  # folder that image paths are relative to; default: the file's own folder
    on_bad_row: Literal["stop", "skip"] = "stop"  # a bad row: stop with its number, or count it and go on
    max_pixels: int = MAX_PIXELS  # of an image in a row; one with more is a bad row


@dataclass(frozen=True)
class BadRow:
    """A row that was set aside, and why."""

    file: str
    row: int  # from 1
    problem: str


@dataclass(frozen=True, eq=False)
class Video:
    """Frames sampled from a video, and when each of them is shown. Equal by frames and times."""

    frames: np.ndarray  # uint8 [T, height, width, 3], RGB, at least one
    times: tuple[float, ...]  # [T], seconds from the source's beginning, ascending
    fps: float  # of the source
    duration: float  # of the source, seconds

    def __post_init__(self):
        if not len(self.frames) == len(self.times) > 0:
            raise ValueError(f"{len(self.frames)} frames with {len(self.times)} times: each needs its own")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Video) or (self.times, self.frames.shape) != (other.times, other.frames.shape):
            return False
        return self.frames is other.frames or bool((self.frames == other.frames).all())

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the frames, as an image has them."""
        return self.frames.shape[2], self.frames.shape[1]


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool by name, as an assistant's message carries it."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Message:
    """One message of a conversation, as a chat template renders it."""

    role: Role
    content: tuple[str | Image | Video, ...]
    tool_calls: tuple[ToolCall, ...] = ()  # of an assistant

    def __post_init__(self):
        if self.role not in ROLES:
            raise ValueError(f"a message's role is {self.role!r}: one of {', '.join(ROLES)}")


@dataclass(frozen=True)
class Observation:
    """What a policy is shown: text, images, videos in reading order, plus proprioception where there is a body.

    Each is a prompt of its own, unless `messages` make it a part of a conversation: those of the first observation
    begin one, later ones are appended behind what the policy has written since. `content` is then theirs, in order.
    """

    content: tuple[str | Image | Video, ...]
    state: np.ndarray | None = None  # float32 [S]
    role: str = ""  # who is asked, where several agents take turns
    messages: tuple[Message, ...] = ()  # (): one user message, which has no history
    tools: tuple[Mapping[str, Any], ...] = ()  # JSON schemas of the tools that the policy may call, from here on
    restart: bool = False  # the messages begin a new conversation in mid-episode: earlier ones are not shown

    @classmethod
    def from_messages(
        cls, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), restart: bool = False
    ) -> Observation:
        """The observation that appends messages to a conversation, or begins one."""
        content = tuple(part for message in messages for part in message.content)
        return cls(content, messages=tuple(messages), tools=tuple(tools), restart=restart)

    def with_content(self, content: Sequence[Any]) -> Observation:
        """The same with other parts of content, or what stands for them, one in place of each."""
        parts = iter(content)
        messages = tuple(replace(each, content=tuple(next(parts) for _ in each.content)) for each in self.messages)
        return replace(self, content=tuple(content), messages=messages)

    @property
    def media(self) -> tuple[Image | Video, ...]:
        """Images and videos in reading order."""
        return tuple(part for part in self.content if not isinstance(part, str))

    @property
    def images(self) -> tuple[Image, ...]:
        return tuple(part for part in self.content if not isinstance(part, str | Video))

    @property
    def videos(self) -> tuple[Video, ...]:
        return tuple(part for part in self.content if isinstance(part, Video))

    @property
    def text(self) -> str:
        return "\n".join(part for part in self.content if isinstance(part, str))


@dataclass(frozen=True)
class Sample:
    """One question. `id` is stable across runs and machines: baselines, curricula and resume hang on it."""

    id: str
    prompt: Observation
    answer: Any = None
    weight: float = 1.0  # how much the sample counts, for example GUI-G1's difficulty (estimator `weighted`)
    tags: Mapping[str, str] = field(default_factory=dict)  # what its benchmark breaks results down by: platform, ...
    bucket: str = ""  # samples of one bucket share their baseline, as scenes that begin alike; none: its own

    @property
    def key(self) -> str:
        """What baselines are kept for."""
        return self.bucket or self.id


class TaggedSamples(Sequence[Sample]):
    """The samples of a split that knows tags without making samples, which may mean decoding a video."""

    def tag_of(self, position: int, tag: str) -> str | None:
        """The value of a tag; None where it is not known."""
        return None


@dataclass(frozen=True)
class Frame:
    """The coordinates in which a model writes about an image or video, and its sizes (width, height) in pixels.

    space: `original_px` pixels of the task's image; `resized_px` pixels of the image as shown to the model
    (Qwen2.5-VL); `rel1000` and `rel1` fractions times 1000 or 1 (Qwen3-VL, InternVL); `gridN` column and row of an
    N x N grid, standing for the cell's centre (tiny models). With `_yx` behind it the vertical number comes first
    (Gemini's `rel1000_yx`): points are then pairs (y, x), boxes (y1, x1, y2, x2).
    """

    space: str
    original: tuple[int, int]
    shown: tuple[int, int]

    @property
    def step(self) -> float:
        """The smallest difference that a model can write."""
        return 1e-4 if self.space.removesuffix("_yx") == "rel1" else 1.0

    def order(self, pair: Sequence[float]) -> tuple[float, float]:
        """(x, y) -> as the model writes them, and back."""
        first, second = pair
        return (second, first) if self.space.endswith("_yx") else (first, second)

    def _spans(self) -> tuple[float, float, float]:
        """What one axis of the image measures in this space (x, y), and the offset of a value's centre."""
        space = self.space.removesuffix("_yx")
        if space == "original_px":
            return *self.original, 0.0
        if space == "resized_px":
            return *self.shown, 0.0
        if space.startswith("rel") and space[3:].isdigit():
            return float(space[3:]), float(space[3:]), 0.0
        if space.startswith("grid") and space[4:].isdigit():
            return float(space[4:]), float(space[4:]), 0.5
        raise ValueError(f"unknown coordinate space {self.space!r}: original_px, resized_px, rel1000, rel1 or gridN")

    def to_original(self, first: float, second: float) -> tuple[float, float]:
        """A point in the model's coordinates -> pixels (x, y) of the task's image."""
        x, y = self.order((first, second))
        span_x, span_y, offset = self._spans()
        return (x + offset) * self.original[0] / span_x, (y + offset) * self.original[1] / span_y

    def from_original(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of the task's image -> the model's coordinates, rounded to what the model can write."""
        span_x, span_y, offset = self._spans()
        u, v = x * span_x / self.original[0], y * span_y / self.original[1]
        if offset:  # the cell that holds the point
            return self.order((float(min(int(u), int(span_x) - 1)), float(min(int(v), int(span_y) - 1))))
        digits = 4 if self.step < 1 else 0
        return self.order((round(u, digits), round(v, digits)))


@dataclass(frozen=True)
class Decision:
    """One completion (or action) of a policy and the behaviour policy."""

    action: str | np.ndarray  # text, or float32 [K, A] in physical units
    logprobs: Tensor  # float32 [T], under the behaviour policy
    entropy: Tensor  # float32 [T], of that law's full distribution
    truncated: bool  # stopped by the length limit, not by the policy
    frames: tuple[Frame, ...] = ()  # one per image or video of the prompt: how to read coordinates in `action`
    inputs: Any = None  # private to the policy that made it
    forced_mask: Tensor | None = None  # bool [T], units put there and not sampled, which earn no credit; None: none
    owner_rank: int | None = None  # of several processes the one that made it and evaluates it; None: any can
    engine_logprobs: Tensor | None = None  # float32 [T], under the engine that wrote it; None: the policy itself did

    def without_credit(self) -> Decision:
        """The same with every unit forced; one without log-probabilities has no units."""
        forced = None if self.logprobs is None else self.logprobs.new_ones(len(self.logprobs)).bool()
        return replace(self, forced_mask=forced)


@dataclass(frozen=True)
class Step:
    """An environment's reply to an action."""

    observation: Observation
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False  # stopped by a limit: not a failure, not a success
    info: Mapping[str, float] = field(default_factory=dict)
    executed: float = 1.0  # share of the action that was carried out, from its beginning; what follows earns no credit
    fault: str = ""  # the fault, not the policy's, that ended the episode: it says nothing and is to be repeated
    worker_lost: bool = False  # the fault is that its worker died: another one may carry the episode to its end


@dataclass(frozen=True)
class Turn:
    observation: Observation
    decision: Decision
    step: Step
    process_reward: float = 0.0  # a process reward, beside the episode's outcome


@dataclass(frozen=True)
class Annotation:
    """Something to draw on what the episode showed.

    On an image, in its pixels: point [x, y] or box [x1, y1, x2, y2]. On a video's time axis: span [start, end] in
    seconds. Or text (no xy).
    """

    role: Literal["truth", "prediction"]
    kind: Literal["point", "box", "span", "text"]
    xy: tuple[float, ...] = ()
    label: str = ""
    image: int = 0  # which of the images that the episode showed; of a span: which of the videos


MALFORMED, BASELINE = "malformed", "baseline"  # parts of the reward that no task computes: see `Score.part`


@dataclass(frozen=True)
class Score:
    """What a task says of one episode. Parts are named and unweighted; accuracy averages `correct`, in [0, 1]."""

    parts: Mapping[str, float]
    correct: float
    answer: Any = None  # as parsed; None when parsing failed
    reason: str | None = None  # why parsing failed
    marks: tuple[Annotation, ...] = ()

    @property
    def is_correct(self) -> bool:
        """Whether the episode counts as a success. The reward also pays for form and must not decide this."""
        return self.correct > CORRECT_ABOVE

    @property
    def task(self) -> str:
        """The task of a mixture that gave the score and names its rewards; '' where there is no mixture."""
        name, slash, _ = next(iter(self.parts), "").partition("/")
        return name if slash else ""

    def part(self, name: str) -> float:
        """A part of the reward; `malformed` is what `format` lacks of 1, `baseline` is 1 for every answer."""
        if name == BASELINE:
            return 1.0
        return 1.0 - self.parts["format"] if name == MALFORMED else self.parts[name]


UNSCORED = cast("Score", None)


@dataclass(frozen=True)
class Estimate:
    """A mean over n held-out samples with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int


def shallow(value: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, their values as they are: `dataclasses.asdict` would copy all below."""
    return {each.name: getattr(value, each.name) for each in fields(value)}


def plain(value: Any) -> Any:
    """What JSON can hold of an answer: dataclasses become dicts, tuples lists, whatever they hold as well."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(shallow(value))
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def wilson(successes: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a share: it stays inside [0, 1] and is honest for small n."""
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = (centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)
    return max(0.0, min(p, low)), min(1.0, max(p, high))  # rounding must not exclude a share of 0 or 1


@dataclass
class Episode:
    """A sample and all turns taken on it. Episodes with one `group` started from the same observation."""

    sample: Sample
    group: int
    turns: list[Turn] = field(default_factory=list)
    score: Score = UNSCORED  # who reads it comes after the task that scores it
    reward: float = 0.0
    faults: list[str] = field(default_factory=list)  # of earlier tries, which were void
    redraws: int = 0  # tries whose random numbers were others than the first one's
    is_demonstration: bool = False  # not by the policy: a demonstration, to be imitated by a loss that knows how
    stream: tuple[int, int] | None = None  # names its random numbers (vlrl/policies/generation.py); None: nobody did

    @property
    def completion(self) -> str:
        """The text of the last action ('' before the first turn)."""
        return str(self.turns[-1].decision.action) if self.turns else ""

    @property
    def frames(self) -> tuple[Frame, ...]:
        return self.turns[-1].decision.frames if self.turns else ()


class Environment:
    """Single use: made for one episode, reset once, closed at its end. `frames` say how coordinates are to be read."""

    def reset(self) -> Observation:
        raise NotImplementedError

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        raise NotImplementedError

    def gold(self, frames: Sequence[Frame]) -> Any:
        """The best next action, text or float32 [K, A], of an environment with a script; None: none for this turn."""
        raise NotImplementedError

    @property
    def has_script(self) -> bool:
        """Whether it knows gold actions, turn by turn; else the task's gold completion is all that is known."""
        return type(self).gold is not Environment.gold

    def close(self) -> None:
        """Releases what the episode holds."""


class BaseTask(ABC):
    """Samples, scoring and what a run reports: the base of every task. `tasks.base.Task` has further defaults.

    A subclass has `weights`, `samples`, `environment`, `score`, `reward` and `gold`; the hooks below do nothing.
    """

    weights: Mapping[str, float] = MappingProxyType({})  # reward part -> weight
    max_parallel_envs: int | None = None  # open at a time, each in its thread; None: any number, in one thread
    bad_rows: Sequence[BadRow] = ()  # of a large file those met so far
    reward_timeout_s: float | None = None  # of one score; set by the run
    failed_rewards: int = 0  # one after the other, up to the latest episode

    @abstractmethod
    def samples(self, split: Split) -> Sequence[Sample]:
        """The same index gives the same sample on every machine."""

    @abstractmethod
    def environment(self, sample: Sample) -> Environment:
        """A new environment for one episode of a sample."""

    @abstractmethod
    def score(self, episode: Episode) -> Score:
        """What the task says of an ended episode. Never raises, whatever the text."""

    @abstractmethod
    def reward(self, score: Score) -> float:
        """What an episode of this score earns."""

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str | None:
        """The best completion; None where none is known, as where an environment knows it turn by turn."""
        return None

    @classmethod
    def takes_turns(cls) -> bool:
        """Whether its episodes may have several turns."""
        return True

    def truth(self, value: Any) -> Any:
        """A sample's answer from what JSON holds of it, for `vlrl score`. ValueError, TypeError: it is none."""
        return tuple(value) if isinstance(value, list) else value

    def truths(self, sample: Sample) -> Sequence[str]:
        """The texts that are right, for rewards that compare answers themselves; (): what `gold` answers."""
        return ()

    def metrics(self, episodes: Sequence[Episode]) -> Mapping[str, float]:
        """What an evaluation reports beside accuracy and reward: name -> number."""
        return {}

    def facts(self, episodes: Sequence[Episode]) -> Mapping[str, str]:
        """What an evaluation was made on: results with other facts are not comparable."""
        return {}

    def at_step(self, step: int) -> None:
        """Called before each training step: rewards that grow stricter depend on it, and on nothing before it."""

    def fits(self, policy: Policy) -> None:
        """UserError where the policy's actions are none of the task's."""

    def cpu_s(self) -> float:
        """Processor seconds of processes that the task started, as simulators."""
        return 0.0

    def close(self) -> None:
        """Ends processes and frees what the task holds."""


class RobotTask(BaseTask):
    """A task whose episodes move a robot, by numbers or, with `speech`, by words: `tasks.manipulation.Manipulation`."""

    pool: Any  # with `info`: names of the state, hz, whether there is a script
    robot: str = ""  # `module:Class`, where it is a class of robot/ or like one
    options: Mapping[str, Any] = MappingProxyType({})  # of the robot
    horizon: int  # ticks of an episode
    chunk: int  # ticks of an action
    speech: Any = None  # how a language model says an action; None: policies give numbers
    view: Any = None  # what an off-policy run sees of observations (`vlrl.offpolicy.base.AgentView`)

    @property
    def controls(self) -> Any:
        """What the numbers of an action are, and their limits: robot.types.ActionSpec."""
        return self.pool.info.controls

    def arm(self, script: str = "", videos: Mapping[str, Mapping[str, Any]] | None = None) -> BaseTask | None:
        """The task as a policy plays it, or the control arms `expert` and `random`; None: it has no such arms."""
        return None

    def demonstrations(self, count: int, noise: float, seed: int) -> Iterator[Sequence[tuple[Observation, Any]]]:
        """Episodes of the script: observations with the chunks, float32 [K, A], that it would send. UserError: none."""
        raise UserError(f"task: {type(self).__name__} has no script to imitate")

    def add_spoken_state(self, shown: Observation) -> Observation:
        """What a policy is shown of what a robot shows."""
        return shown


def draw_seed(generator: torch.Generator) -> int:
    """A seed below 2**62, from torch's random numbers."""
    import torch

    return int(torch.randint(2**62, (), generator=generator, device=generator.device))


class Policy:
    """A model that acts and can say how likely its actions were: the base of every policy.

    A subclass has `act` and, to be trained, everything down to `load_state_dict`. `act` also takes `greedy` (the
    likeliest action) and `keep`, and `begun` where it writes text (see `vlrl.policies.vlm.VLM.act`).
    """

    model: Any  # torch.nn.Module, whose parameters are learned and saved
    scorer: Any  # torch.nn.Module, the forward pass that is trained: accelerate may wrap it
    writes_text: bool = False  # completions of tokens, as `vlrl.policies.vlm.VLM`; others act in numbers
    shape: Any = None  # of one that acts in numbers: the robot that it was made for
    engine: Any = None  # who writes completions (`vlrl.policies.engine.Engine`); None: the policy itself
    generator: Any = None  # torch.Generator of its random numbers; None: it draws none
    work: Any = None  # counts what is forwarded (`vlrl.performance.profiling.StepProfiler`); None: it does not count
    halted: bool = False  # set from another thread: episodes are broken off between two turns
    acts_at_most: int | None = None  # episodes at a time, where memory does not suffice for all

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the latest episodes, for the log."""
        return {}

    def draw_key(self) -> int:
        """A new key for the episodes of one collection, below 2**62, drawn from its generator; 0: it has none."""
        return 0 if self.generator is None else draw_seed(self.generator)

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], *args: Any, **options: Any
    ) -> list[Decision]:
        """An action for each open episode."""
        raise NotImplementedError

    def evaluate(self, decisions: Sequence[Decision]) -> Evaluation:
        raise NotImplementedError

    def reference(self, decisions: Sequence[Decision]) -> Tensor:
        """Log-probabilities [B, T] under the frozen reference."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends what writes for it."""
        if self.engine is not None:
            self.engine.close()

    def check(self, sample: Sample) -> None:
        """UserError for what it could never be shown."""

    def prepare(self, samples: Sequence[Sample], positions: Sequence[int]) -> None:
        """Is told which samples it is likely to be shown next, while it has time to look at them."""

    def join(self) -> None:
        """Called by all processes of a run, where each has asked the policy for all of its own episodes."""

    def freeze_reference(self) -> None:
        """The policy as it is now becomes the reference."""

    def save(self, folder: Path, *args: Any, **options: Any) -> None:
        raise NotImplementedError

    def load_weights(self, folder: Path) -> None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """What `save` leaves out: its random generator."""
        return {} if self.generator is None else {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` returned."""
        if "generator" in state:
            self.generator.set_state(state["generator"])

    def decide(self, observation: Observation, action: Any, *args: Any, **options: Any) -> Decision:
        """An action that another made, as the policy's own decision, so that it can be evaluated."""
        raise NotImplementedError

    def features(self, decisions: Sequence[Decision]) -> Tensor:
        """[B, H], what the policy makes of each decision's prompt, for critics."""
        raise NotImplementedError

    @property
    def can_decide(self) -> bool:
        return type(self).decide is not Policy.decide

    @property
    def has_features(self) -> bool:
        return type(self).features is not Policy.features

    def ids(self, decision: Decision) -> list[int] | None:
        """The tokens of a completion, as a text can be written in several ways; None: there are none."""
        return None

    def forget(self) -> None:
        """Gives back memory that can be filled anew."""


@dataclass(frozen=True)
class Evaluation:
    """Log-probabilities and entropies of decisions under the policy as it is now, with gradient. Shapes [B, T]."""

    logprobs: Tensor
    entropy: Tensor
    mask: Tensor  # bool
    candidates: Tensor | None = None  # log-probabilities [B, T, K] of `Rollouts.candidates`; None: not asked for


@dataclass(frozen=True)
class Rollouts:
    """The columns that estimators read: one step's episodes (N), their decisions (B) and units (T)."""

    sample_ids: tuple[str, ...]  # [N]
    reward: Tensor  # float32 [N], weighted sum of the parts
    group: Tensor  # int64 [N]
    episode: Tensor  # int64 [B], the episode of each decision
    mask: Tensor  # bool [B, T], units that carry credit
    logprobs: Tensor  # float32 [B, T], under the behaviour policy
    entropy: Tensor  # float32 [B, T], of the sampling distribution
    reference: Tensor | None = None  # float32 [B, T], log-probabilities under the frozen reference
    weight: Tensor | None = None  # float32 [N], how much each sample counts; None: all the same
    features: Tensor | None = None  # float32 [B, H], what the policy makes of each decision's prompt, for critics
    buckets: tuple[str, ...] = ()  # [N], what baselines are kept for (`Sample.key`); (): sample_ids
    correct: Tensor | None = None  # float32 [N] in [0, 1], as accuracy counts it; None: the reward
    texts: tuple[str, ...] = ()  # [N], the last action of each episode where it is text
    parts: Mapping[str, Tensor] = field(default_factory=dict)  # float32 [N] each, the reward's parts, unweighted
    step: int = 0  # training steps done, for what changes with time
    process_reward: Tensor | None = (
        None  # float32 [B], process rewards of the decisions, beside the outcome; None: none
    )
    truncated: Tensor | None = None  # bool [N], broken off by a limit: neither won nor lost; None: none was
    final: Tensor | None = None  # float32 [N, H], features of what was shown last; where not `cut`: anything
    states: Tensor | None = None  # float32 [B, S], the bodies' states at the decisions; None: there are no bodies
    observation_keys: tuple[str, ...] = ()  # [B], what was shown, as a key: equal ones saw the same; (): not asked for
    action_keys: tuple[str, ...] = ()  # [B], what was done, as a key; (): not asked for
    answers: tuple[str, ...] = ()  # [N], each episode's answer as parsed, written in one way; "": none was
    roles: tuple[str, ...] = ()  # [B], who decided, where several agents take turns
    teacher: Tensor | None = None  # float32 [B, T], log-probabilities under `policy.teacher`
    candidates: Tensor | None = None  # int64 [B, T, K], the behaviour policy's likeliest tokens; None: not asked for
    teacher_candidates: Tensor | None = None  # float32 [B, T, K], their log-probabilities under `policy.teacher`
    is_demonstration: Tensor | None = None  # bool [N], demonstrations; None: there are none

    @property
    def keys(self) -> tuple[str, ...]:
        return self.buckets or self.sample_ids

    @property
    def correctness(self) -> Tensor:
        """[N] in the reward's dtype, as accuracy counts it; the reward where a task has no such column."""
        return self.reward if self.correct is None else self.correct.to(self.reward.dtype)

    @property
    def is_correct(self) -> Tensor:
        """bool [N], the episodes that count as successes (`Score.is_correct`)."""
        return self.correctness > CORRECT_ABOVE


@dataclass(frozen=True)
class TrainingEpisode:
    """An episode and what is to be learned from it: what the parts under `replay` take and give."""

    episode: Episode
    advantages: tuple[Tensor, ...]  # the advantages of each decision's units, float32 [T] each


@dataclass(frozen=True)
class Batch:
    """What a loss term sees of one micro-batch, beside the policy's fresh evaluation: whole groups. Shapes [b, T]."""

    advantage: Tensor
    old_logprobs: Tensor  # log-probabilities under the behaviour policy
    mask: Tensor  # bool
    reference: Tensor | None = None
    group: Tensor | None = None  # int64 [b], the group of each decision: all its decisions are in this batch
    episode: Tensor | None = None  # int64 [b], the episode of each decision
    teacher: Tensor | None = None  # log-probabilities under `policy.teacher`
    teacher_candidates: Tensor | None = None  # [b, T, K], as of `Evaluation.candidates`
    is_demonstration: Tensor | None = None  # bool [b], decisions of demonstrations; None: there are none
    is_correct: Tensor | None = None  # bool [b], decisions of successful episodes (`Score.is_correct`)


# What methods are called elsewhere -> the name here.
SYNONYMS = {
    "group": "grpo", "ppo": "ppo_clip", "clip": "ppo_clip", "dual_clip": "ppo_clip", "rloo": "leave_one_out",
    "reinforce": "likelihood", "reinforce_plus_plus": "batch_norm", "dr_grpo": "grpo", "dapo": "filter_refill",
    "dynamic_sampling": "filter_refill", "entropy_bonus": "entropy", "kl_penalty": "kl",
    "seq_mean_token_mean": "sequence_mean", "seq_mean_token_sum_norm": "constant", "sync_ref_model": "soft_sync",
    "length_penalty": "overlong", "random": "shuffled", "bc": "sft",
}  # fmt: skip


def suggest(word: str, known: Sequence[str]) -> str:
    """'; did you mean X? (one of ...)' for an unknown word."""
    return meant(word, known) + (f" (one of: {', '.join(sorted(known))})" if known else "")


def meant(word: str, known: Sequence[str]) -> str:
    """'; did you mean X?' for an unknown word, '' where none is near."""
    if SYNONYMS.get(word) in known:
        return f"; did you mean {SYNONYMS[word]!r}?"
    extensions = sorted(name for name in known if word and name.startswith(f"{word}_"))
    swapped = [name for name in known if sorted(name) == sorted(word)]
    close = extensions or swapped or difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


# Command -> the top-level keys of the YAML that it reads, as tests/vlrl/test_config.py compares with the sections: who
# gives a file to another command is told at once which one, without loading what that one needs.
READERS = {
    "vlrl train": "task out seed data placement policy train eval log sampler rollout_strategy process_rewards "
                  "reward_shaping advantages replay_mixing losses loss_aggregation callbacks published",
    "vlrl compare": "task out recipes budget evaluations seeds pairs pass_at reach jobs",
    "vlrl stages": "out start seed measured_on stages",
    "vlrl warmstart": "out seed threads eval log steps images lr lr_end warmup_steps max_pixels start resize model "
                      "lessons",
    "vlrl clone": "out seed threads eval log task data datasets episodes noise policy start steps batch_size lr",
    "vlrl offpolicy": "task out seed data agent encoder start offline updates ticks warmup_steps episodes utd "
                      "batch_size give_won capacity gamma reward threads eval log",
    "vlrl preferences": "out seed threads eval log task goal judge offline data pairs held_out asked model",
    "vlrl pretrain": "out seed threads eval log task offline data updates hidden layers batch_size lr gamma expectile "
                     "tau contrast discriminate",
    "vlrl learn": "out start episodes corrections demonstrations every rounds shares steps batch_size lr poll_s keep "
                  "seed threads",
    "vlrl reward-model": "out seed threads eval log datasets state false_successes held_out near_s unsure_s hard_s "
                         "steps batch_size lr",
    "vlrl deploy": "robot cameras cameras_stale_s cameras_stop_s policy task episodes seconds seed out home scene "
                   "safety record teleop view practice",
    "vlrl trial": "policies deploy changes alpha delta max_episodes block seed starts out",
    "accelerate launch --config_file": "compute_environment deepspeed_config distributed_type dynamo_backend "
                                       "fsdp_config gpu_ids machine_rank main_process_ip main_process_port "
                                       "main_training_function mixed_precision num_machines num_processes "
                                       "parallelism_config rdzv_backend same_network use_cpu",
}  # fmt: skip


def find_readers(keys: Collection[str], known: Collection[str]) -> list[str]:
    """The commands whose files have all these keys, of which the command that was typed knows not all.

    One unknown key is more likely a mistake in a file of its own, unless a single command has it.

    Args:
        known: keys of the command that was typed.
    """
    unknown = set(keys) - set(known)
    files = {command: set(names.split()) for command, names in READERS.items()}
    is_mistake = len(unknown) < 2 and not any(sum(key in names for names in files.values()) == 1 for key in unknown)
    return [] if is_mistake else [command for command, names in files.items() if set(keys) <= names]
