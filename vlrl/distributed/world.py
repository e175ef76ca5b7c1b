"""Which of a run's processes this is, what they say to each other, how they share out episodes and add up gradients.

Imports torch where there are several."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vlrl.decoders import pack_value, unpack_value
from vlrl.io import HeldError, hold_folder
from vlrl.types import Decision, Episode, Observation, Sample, Turn, UserError, Video

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import Tensor, nn

# What carries bytes between the processes of a run: the group that they were launched as, or one of its own.

HOURS = 12  # that processes wait for each other: an episode of a robot may take long, and a launcher ends all with one
WAIT = "VLRL_WAIT_S"  # the environment variable that says otherwise, in seconds
DEVICES = "GLOO_SOCKET_IFNAME"  # read by torch: the network devices that a link takes turns with


def report_lost_process[T](method: Callable[..., T]) -> Callable[..., T]:
    """A lost process is told of in one line: its own says why it ended."""

    @functools.wraps(method)
    def tried(*given: Any) -> T:
        try:
            return method(*given)
        except RuntimeError as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise UserError(f"another process of this run does not answer, see its own message ({reason})") from None

    return tried


def patience() -> timedelta:
    """How long processes wait for each other: what hangs is told from what takes long by this alone."""
    setting = os.environ.get(WAIT)
    try:
        seconds = float(setting) if setting else HOURS * 3600.0
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 1e8:
        raise UserError(f"{WAIT}: {setting!r}: must be seconds, at least 1")
    return timedelta(seconds=seconds)


def device(link: Any) -> str:
    """Where a link (a process group of torch; None: the run's own) reads and writes."""
    from torch import distributed

    return "cuda" if "nccl" in distributed.get_backend(link) else "cpu"


def make_link() -> Any:
    """A link of its own, between CPUs. All processes make it, in the same order."""
    from torch import distributed

    return distributed.new_group(backend="gloo", timeout=patience())


def cut(link: Any) -> None:
    """Ends a link: what waits in any thread, of this process or of its neighbours, fails with a RuntimeError.

    Of gloo, `abort` does nothing, but where one wait took too long it closes all that the link consists of.
    """
    import torch

    for other in set(range(link.size())) - {link.rank()}:
        for number in range(1 + os.environ.get(DEVICES, "").count(",")):
            with suppress(RuntimeError):
                link.recv([torch.zeros(1)], other, number).wait(timedelta(milliseconds=1))


def gather_bytes(data: bytes, size: int, link: Any) -> list[bytes]:
    """Every process's bytes; all are padded to the longest on their way."""
    import torch
    from torch import distributed

    there = device(link)
    lengths = [torch.zeros(1, dtype=torch.int64, device=there) for _ in range(size)]
    distributed.all_gather(lengths, torch.tensor([len(data)], device=there), link)
    longest = max(int(length) for length in lengths)
    own = torch.zeros(longest, dtype=torch.uint8, device=there)
    own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    buffers = [torch.empty_like(own) for _ in range(size)]
    distributed.all_gather(buffers, own, link)
    pairs = zip(buffers, lengths, strict=True)
    return [each[: int(length)].cpu().numpy().tobytes() for each, length in pairs]


# set by torchrun and accelerate, or by an MPI; the same that accelerate reads
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")


@dataclass(frozen=True)
class World:
    """The processes of a run. What is not a plain question must be called by all of them, in the same order.

    Threads that talk at the same time have a link each (`on_own_link`): what they call asks `here()` and need not know.
    """

    rank: int = 0
    size: int = 1
    link: Any = None  # a process group of torch; None: the run's own

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process writes what the run leaves behind."""
        return self.rank == 0

    def part(self, count: int) -> range:
        """Which of `count` things are this process's own: as many as another's, or one more."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def owner(self, decision: Decision, number: int) -> int:
        """The rank of the process that evaluates a decision: that made it, or by its number where all can."""
        return number % self.size if self.size == 1 or decision.owner_rank is None else decision.owner_rank

    def keeps(self, decision: Decision, number: int) -> bool:
        """Whether a decision is this process's to evaluate."""
        return self.size == 1 or self.owner(decision, number) == self.rank

    @report_lost_process
    def gather(self, value: Any) -> list[Any]:
        """Every process's value (`vlrl.decoders.pack_value`), in the order of their ranks."""
        if self.size == 1:
            return [value]
        return [unpack_value(data) for data in gather_bytes(pack_value(value), self.size, self.link)]

    @report_lost_process
    def broadcast(self, value: Any, rank: int) -> Any:
        """One process's value, as of `gather`; what the others give does not count."""
        import torch
        from torch import distributed

        data = pack_value(value) if self.rank == rank else b""
        length = torch.tensor([len(data)], device=device(self.link))
        distributed.broadcast(length, group=self.link, group_src=rank)
        content = torch.frombuffer(bytearray(data or int(length)), dtype=torch.uint8).to(length.device)
        distributed.broadcast(content, group=self.link, group_src=rank)
        return value if data else unpack_value(content.cpu().numpy().tobytes())

    @report_lost_process
    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place; bit by bit the same in all of them."""
        if self.size > 1:
            from torch import distributed

            there = device(self.link)
            local = values if str(values.device) == there or values.is_cuda else values.to(there)
            distributed.all_reduce(local, group=self.link)
            values.copy_(local)
        return values

    def any(self, here: bool) -> bool:
        """Whether it is true in any process."""
        if self.size == 1:
            return here
        import torch

        return bool(self.sum(torch.tensor([float(here)])) > 0)

    def wait(self) -> None:
        """Until all have come this far."""
        self.any(False)

    def join(self) -> None:
        """Meets the others, where `accelerate.Accelerator` has not yet done so."""
        if self.size > 1:
            from accelerate import PartialState

            PartialState(cpu=on_cpu(), timeout=patience(), **_fresh_store(self))

    def on_own_link(self) -> World:
        """The same processes over a link of their own, between CPUs: for bytes, while the run's own is in use."""
        if self.size == 1:
            return self
        self.wait()  # tells of a lost process, whom a new link would wait for
        return replace(self, link=report_lost_process(make_link)())

    def call[**P, R](self, function: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        """Calls a function; `here()` is this meanwhile, in this thread."""
        token = _TALKING.set(self)
        try:
            return function(*given, **named)
        finally:
            _TALKING.reset(token)

    def cut(self) -> None:
        """Ends a link that `on_own_link` made: whoever waits in any thread, here or elsewhere, fails."""
        if self.link is not None:
            cut(self.link)


def _fresh_store(world: World) -> dict[str, Any]:
    """Where processes that torchrun has started find each other: it keeps one store, with what ended ones left there.

    Without it a process that comes early waits for a neighbour that is gone (torch 2.11).
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    from torch.distributed import PrefixStore, TCPStore

    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(*place, is_master=False, timeout=patience())
    return {"store": PrefixStore(f"start_{count_restarts()}", store), "rank": world.rank, "world_size": world.size}


_TALKING: ContextVar[World | None] = ContextVar("talking", default=None)


def get_world() -> World:
    """The processes that this one belongs to, as its launcher says, over the link that this thread talks by."""
    size = _number(SIZES, 1)
    return _TALKING.get() or (World() if size == 1 else World(_number(RANKS, 0), size))


def by_main[**P](write: Callable[P, object]) -> Callable[P, None]:
    """A function that writes: called in the main process, and passed over in the others."""

    @functools.wraps(write)
    def once(*given: P.args, **named: P.kwargs) -> None:
        if get_world().is_rank_zero:
            write(*given, **named)

    return once


def on_cpu() -> bool:
    import torch

    return not torch.cuda.is_available()


def _number(names: tuple[str, ...], otherwise: int) -> int:
    return next((int(os.environ[name]) for name in names if os.environ.get(name)), otherwise)


# Meeting the other processes, as the launcher wants it.


def is_engine_requested(engine: str) -> bool:
    """Whether the launcher asks for an engine of accelerate's, as `FSDP`."""
    return os.environ.get(f"ACCELERATE_USE_{engine}", "").lower() == "true"


def in_parts() -> bool:
    """Whether the launcher asks for weights in parts (FSDP2), for more than one process."""
    return get_world().size > 1 and is_engine_requested("FSDP")


def stays_in_parts(policy: Any) -> bool:
    """Whether FSDP2 keeps a policy's weights in parts between updates too: an engine elsewhere writes for it.

    Not those of adapters, which are merged for an engine, and of servers that see no folder, to each of which every
    process may have to send them.

    Args:
        policy: the section of the configuration.
    """
    engine = policy.engine.model_dump()
    return engine["name"] == "server" and bool(engine.get("folder")) and not policy.lora


def optimizer_in_parts() -> bool:
    """Whether the launcher asks for the optimizer in parts (DeepSpeed's ZeRO 1), for more than one process."""
    return get_world().size > 1 and is_engine_requested("DEEPSPEED")


SEQUENCE = "PARALLELISM_CONFIG_SP_SIZE"  # set by accelerate launch (`parallelism_config_sp_size`)


def sequence_size() -> int:
    """Over how many processes the launcher asks for each sequence of an update."""
    setting = os.environ.get(SEQUENCE) or "1"
    if not setting.isdecimal() or int(setting) < 1:
        raise UserError(f"{SEQUENCE}: {setting!r}: must be a number of processes, at least 1")
    return int(setting)


def make_neighbours(world: World, size: int) -> World:
    """The processes that this one shares sequences with, `size` in a row of all. Called by all of them."""
    from torch import distributed

    link, _ = distributed.new_subgroups(size, timeout=patience())
    return World(world.rank % size, size, link)


def launched(out: Path, trackers: Sequence[str]) -> Accelerator:
    """The run's place among others and its trackers. A GPU of its own becomes the process's device."""
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs, ProjectConfiguration

    if in_parts():  # else transformers loads weights in the first process alone, for accelerate to spread
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    place = ProjectConfiguration(project_dir=str(out), logging_dir=str(out / "tensorboard"))
    several: list[Any] | None = [InitProcessGroupKwargs(timeout=patience())] if get_world().size > 1 else None
    with _without_engines():
        return Accelerator(cpu=on_cpu(), log_with=list(trackers) or None, project_config=place, kwargs_handlers=several)


@contextmanager
def hold_run(out: Path) -> Iterator[None]:
    """The first process holds the run folder (`vlrl.io`) for all.

    Raises:
        HeldError: in every process, where somebody else holds it.
    """
    world, problem = get_world(), None
    if world.size > 1:
        with _without_engines():
            world.join()
    with ExitStack() as held:
        if world.is_rank_zero:
            try:
                held.enter_context(hold_folder(out))
            except UserError as error:
                problem = str(error)
        if problem := world.gather(problem)[0]:
            raise HeldError(problem)
        yield


@contextmanager
def _without_engines() -> Iterator[None]:
    """Keeps accelerate from wrapping the model and from cutting sequences itself, where the launcher asks for that."""
    if on_cpu():  # accelerate imports DeepSpeed where it is installed, which else warns that there is no GPU
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    names = ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_PARALLELISM_CONFIG")
    settings = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(settings)


# What the command line makes of a run's many processes. Imports no torch.

SEVERAL = ("train", "eval", "show")  # commands that know of other processes


RESTARTS = "TORCHELASTIC_RESTART_COUNT"  # set by torchrun


def count_restarts() -> int | None:
    """How often torchrun (`--max-restarts`) has started the processes anew, as one died or hung; None: it did not."""
    return int(os.environ[RESTARTS]) if RESTARTS in os.environ else None


def check_command(command: str) -> None:
    """UserError for a command that would be carried out once in every process."""
    if get_world().size > 1 and command not in SEVERAL:
        raise UserError(f"{command}: runs in one process: start it without accelerate launch or torchrun")


def to_tell(error: UserError) -> str:
    """What a process says of an error; nothing of one that the main process has met as well."""
    world = get_world()
    if world.is_rank_zero:
        return str(error)
    alike = error.exit_code is not None or not _met()  # the end of a run, or of reading its configuration
    return "" if alike else f"process {world.rank}: {error}"


def _met() -> bool:
    """Whether the processes have found each other."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


# Sharing out what is played and looked at, and putting it together again: the same in every process.

# Episodes that another process has played: all that was said and scored, without pictures and a policy's own inputs.
#
# A prompt that is its sample's own lies in every process, so such a decision can be evaluated in any; one of a picture
# that an environment drew can be evaluated where it was made alone.

SMALL = 256  # pixels of the longer side of a picture that is sent to be shown


@dataclass(frozen=True, eq=False)
class RemoteImage:
    """A picture that lies in another process: its size and a key of what it shows, perhaps a small copy."""

    size: tuple[int, int]
    fingerprint: str
    small: np.ndarray | None = None  # uint8 [height, width, 3]

    def copy(self) -> Any:
        """The small copy, as a picture."""
        from PIL import Image

        if self.small is None:
            raise RuntimeError("this picture lies in another process")
        return Image.fromarray(self.small)


def fingerprint(image: Any) -> str:
    """A key of a picture: equal for equal ones, wherever they lie."""
    return image.fingerprint if isinstance(image, RemoteImage) else hashlib.sha256(image.tobytes()).hexdigest()


class RemoteInputs:
    """What a policy keeps of its own decision, made anew from what was shown when it is first asked for."""

    def __init__(
        self, policy: Any, shown: Observation, made: Decision, key: str | None, tokens: Sequence[int] | None,
        before: Sequence[Turn] = (),
    ):  # fmt: skip
        self.policy = policy
        known = {} if tokens is None else {"ids": tokens}
        self._again = lambda: self.policy.decide(shown, made.action, key, before=before, **known)
        self._inputs: Any = None
        if tokens is not None:
            self.tokens = tuple(tokens)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._inputs is None:
            self._inputs = self._again().inputs
        return getattr(self._inputs, name)


def pack_episode(episode: Episode, policy: Any, small: bool = False) -> dict[str, Any]:
    """What the other processes get of an episode. small: with small copies of its pictures, to be shown."""
    prompt = episode.sample.prompt
    turns = []
    for turn in episode.turns:
        ids = policy.ids(turn.decision)
        step = replace(turn.step, observation=_light(turn.step.observation, prompt, small))
        observation = _light(turn.observation, prompt, small)
        turns.append([observation, replace(turn.decision, inputs=None), ids, step, turn.process_reward])
    return {
        "turns": turns, "score": episode.score, "reward": episode.reward, "faults": episode.faults,
        "stream": episode.stream,
    }  # fmt: skip


def unpack_episode(row: dict[str, Any], sample: Sample, group: int, policy: Any, home: int) -> Episode:
    """An episode of another process, of what that has told."""
    turns: list[Turn] = []
    for observation, decision, ids, step, process_reward in row["turns"]:
        own, key = (sample.prompt, sample.id) if observation is None else (observation, None)
        inputs = RemoteInputs(policy, own, decision, key, ids, [*turns])
        after = replace(step, observation=sample.prompt if step.observation is None else step.observation)
        turns.append(Turn(own, replace(decision, inputs=inputs, owner_rank=home), after, process_reward))
    return Episode(
        sample, group, turns, row["score"], row["reward"], row["faults"], stream=row["stream"]
    )  # fmt: skip


def assign_policy(policy: Any, episodes: Sequence[Episode]) -> None:
    """From here on this policy makes what is missing of others' decisions: who played may play again meanwhile."""
    for episode in episodes:
        for turn in episode.turns:
            if isinstance(turn.decision.inputs, RemoteInputs):
                turn.decision.inputs.policy = policy


def _light(shown: Observation, prompt: Observation, small: bool) -> Observation | None:
    """None for the sample's own prompt; else with pictures that say where they lie. Videos are sent whole."""
    if shown is prompt:
        return None
    return shown.with_content(
        [part if isinstance(part, str | Video) else _elsewhere(part, small) for part in shown.content]
    )


def _elsewhere(image: Any, small: bool) -> RemoteImage:
    if isinstance(image, RemoteImage):
        return image
    copy = None
    if small:
        shrunk = image.convert("RGB")
        shrunk.thumbnail((SMALL, SMALL))
        copy = np.asarray(shrunk)
    return RemoteImage(tuple(image.size), fingerprint(image), copy)


Columns = Mapping[str, "Tensor | None"]


def gather_episodes(policy: Any, episodes: Sequence[Episode], own: range) -> list[Episode]:
    """All episodes of a collection, of which this process has played those of the range; its own stay as they are."""
    world = get_world()
    if world.size == 1:
        return list(episodes)
    policy.join()
    rows = world.gather([pack_episode(episodes[i], policy) for i in own])
    episodes_of_all, place = [], 0
    for rank, of_rank in enumerate(rows):
        for row in of_rank:
            template = episodes[place]
            if rank == world.rank:
                for i, turn in enumerate(template.turns):
                    template.turns[i] = replace(turn, decision=replace(turn.decision, owner_rank=rank))
                episodes_of_all.append(template)
            else:
                episodes_of_all.append(unpack_episode(row, template.sample, template.group, policy, rank))
            place += 1
    return episodes_of_all


def to_show(policy: Any, episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes with small copies of the pictures that lie in other processes."""
    world, copies = get_world(), list(episodes)
    if world.size == 1:
        return copies
    own = {
        i: pack_episode(e, policy, small=True)
        for i, e in enumerate(copies)
        if e.turns[0].decision.owner_rank == world.rank
    }
    for rank, rows in enumerate(world.gather(own)):
        if rank != world.rank:
            for i, row in rows.items():
                copies[i] = unpack_episode(row, copies[i].sample, copies[i].group, policy, rank)
    return copies


def mine(decisions: Sequence[Decision]) -> list[Decision]:
    """The decisions that are this process's to evaluate."""
    world = get_world()
    return [decision for number, decision in enumerate(decisions) if world.keeps(decision, number)]


def columns_of(
    find: Callable[[Sequence[Episode]], Columns], episodes: Sequence[Episode], once: Sequence[str] = (),
    join: Callable[[], None] = lambda: None,
) -> Columns:  # fmt: skip
    """What `find` says of episodes, each asked where it was played.

    Args:
        find: episodes -> columns by name, [B, width] with a row for each decision; None: nothing to say.
        once: columns with a row for each episode.
        join: called behind it in every process.
    """
    world = get_world()
    if world.size == 1:
        return find(episodes)
    own = [i for i, episode in enumerate(episodes) if world.keeps(episode.turns[0].decision, i)]
    rows_of = find([episodes[i] for i in own]) if own else {}
    join()
    rows: dict[str, dict[int, Tensor]] = {}
    for places, part in world.gather([own, {name: value for name, value in rows_of.items() if value is not None}]):
        for name, value in part.items():
            counts = [1 if name in once else len(episodes[i].turns) for i in places]
            rows.setdefault(name, {}).update(zip(places, value.split(counts), strict=True))
    counts = {name: [1 if name in once else len(e.turns) for e in episodes] for name in rows}
    return {name: _stacked(of, counts[name]) for name, of in rows.items()}


def _stacked(rows: Mapping[int, Tensor], counts: Sequence[int]) -> Tensor:
    """Rows in the order of the episodes; zeros for episodes of which nothing was said, and behind shorter rows."""
    like, width = next(iter(rows.values())), max(value.shape[1] for value in rows.values())
    stacked = like.new_zeros(sum(counts), width, *like.shape[2:])
    for i, part in enumerate(stacked.split(list(counts))):
        if i in rows:
            part[:, : rows[i].shape[1]] = rows[i]
    return stacked


# Gradients of all processes as one: summed after a process's last micro-batch, however many it had.
#
# The weights of all units of an optimizer step sum to 1 over all processes (docs/scale_out.md), so the sum is what one
# process would have found. Nothing else is exchanged while gradients are made: a process with fewer micro-batches, with
# none, or without pictures keeps nobody waiting.

BUCKET = 2**26  # numbers that are sent at a time


class WholeSequences:
    """The sequences of an update, each of them whole in the process that it belongs to."""

    near = World()  # the processes that make this one's passes with it, each one's in turn

    def follow(self, rank: int) -> None:
        """Takes its share of another process's pass, forward and backward."""

    def idle(self) -> None:
        """Nobody waits for a pass that a process does not make."""


def take_turns(owned: Sequence[list], most: int | None, rank: int, near: World) -> list[tuple[int, list]]:
    """What neighbours pass together: whose groups, and which, in order. owned, most: as of `Replicated.share`."""
    first = rank - near.rank
    return [(owner, part) for owner in range(first, first + near.size) for part in chunks(owned[owner], most)]


class Replicated:
    """The parameters that train, all of them in every process."""

    in_parts = False
    sequences = WholeSequences()

    @property
    def joint(self) -> bool:
        """Whether processes make the passes of an update together."""
        return self.in_parts or self.sequences.near.size > 1

    def __init__(self, world: World, parameters: Sequence[nn.Parameter]):
        self.world, self.parameters = world, list(parameters)

    def learning(self) -> AbstractContextManager[None]:
        """Held through an update."""
        return nullcontext()

    def saving(self) -> AbstractContextManager[None]:
        """Held while a checkpoint is written."""
        return nullcontext()

    def share(self, owned: Sequence[list], most: int | None) -> list[tuple[int, list]]:
        """The passes that this process takes part in, of at most `most` groups each, with the rank of whose they are.

        Args:
            owned: the groups of each process.
        """
        return take_turns(owned, most, self.world.rank, self.sequences.near)

    def idle(self) -> None:
        """A pass of this process's own that learns nothing, where others wait for it."""
        self.sequences.idle()

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """The sums of some numbers over all processes. What has a gradient anywhere gets one here, of zeros."""
        if self.world.size == 1:
            return list(numbers)
        import torch

        has = [float(p.grad is not None) for p in self.parameters]
        sums = self.world.sum(torch.tensor([*numbers, *has], dtype=torch.float64)).tolist()
        for parameter, count in zip(self.parameters, sums[len(numbers) :], strict=True):
            if count and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return sums[: len(numbers)]

    def add(self) -> None:
        """Makes every gradient the sum of all processes'. After `sum_numbers`, so that all have the same ones."""
        if self.world.size == 1:
            return
        import torch

        for bucket in _buckets([p.grad for p in self.parameters if p.grad is not None]):
            flat = self.world.sum(torch.cat([grad.flatten() for grad in bucket]))
            for grad, part in zip(bucket, flat.split([grad.numel() for grad in bucket]), strict=True):
                grad.copy_(part.view_as(grad))

    def clip(self, most: float) -> Tensor:
        """Scales the gradients down to a norm of `most`; the norm before."""
        from torch.nn.utils import clip_grad_norm_

        return clip_grad_norm_(self.parameters, most)

    def load(self, policy: Any, folder: Path) -> None:
        """Puts a checkpoint's weights into the policy."""
        policy.load_weights(folder)

    def state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's state."""
        return optimizer.state_dict()

    def restore(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Takes what `state` gave. Whether a step is one kernel is the present optimizer's own affair."""
        ways = [{name: group[name] for name in ("fused",) if name in group} for group in optimizer.param_groups]
        optimizer.load_state_dict(state)
        for group, way in zip(optimizer.param_groups, ways, strict=True):
            group.update(way)


def chunks(groups: list, most: int | None) -> list[list]:
    """The groups in their order, at most so many together."""
    size = most or max(1, len(groups))
    return [groups[start : start + size] for start in range(0, len(groups), size)]


ALONE = Replicated(World(), ())  # of one process: nothing to add


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients of one type, as many as are sent at a time."""
    bucket: list[Tensor] = []
    for grad in gradients:
        full = sum(each.numel() for each in bucket) + grad.numel() > BUCKET
        if bucket and (full or grad.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(grad)
    if bucket:
        yield bucket
