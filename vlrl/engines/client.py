"""Clients of generation servers: one server, a pool, an engine that policies share, statistics, published weights."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from vlrl import config
from vlrl.config import Count, Rate
from vlrl.distributed.world import get_world
from vlrl.engines.protocols import (
    DIALECTS,
    SERVE,
    Caller,
    FailedError,
    PlacedEngines,
    Published,
    RefusedError,
    Written,
)
from vlrl.placement.workers import Worker
from vlrl.policies.engine import Completion, Engine, EngineError, GenerationRequest, Options
from vlrl.types import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

# What an engine reports: counts, seconds, and how far its log-probabilities lie from the trainer's.

COUNTS = ("seconds", "retries", "stale", "published", "publish_seconds")
PREFIX_CACHE = "engine/prefix_cache_hit_rate"


class EngineStats:
    """Adds up between two updates of the weights. Threads may add at the same time."""

    def __init__(self):
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """From zero: new weights."""
        self._counts = dict.fromkeys(COUNTS, 0.0)
        self._gaps, self._tokens, self._largest = 0.0, 0, 0.0
        self._prompt_tokens = self._cached_tokens = 0

    def add(self, **counts: float) -> None:
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def add_prompt(self, tokens: int, cached: int) -> None:
        """A prompt's tokens, and those of them that its server had in its prefix cache."""
        with self._lock:
            self._prompt_tokens, self._cached_tokens = self._prompt_tokens + tokens, self._cached_tokens + cached

    def gaps(self, differences: Sequence[Tensor]) -> None:
        """Log-probabilities of sampled tokens, the trainer's less the engine's, of each completion [T]."""
        for each in differences:
            if len(each):
                self._gaps += float(each.abs().sum())
                self._tokens += len(each)
                self._largest = max(self._largest, float(each.abs().max()))

    def row(self) -> dict[str, float]:
        """seconds that rollouts waited, requests asked again after a failure, answers of other weights that were not
        used, weights given to a server and the seconds of that; the share of prompts' tokens that came from a prefix
        cache, where servers say it; the gap's mean and largest, in nats a token.
        """
        row = {f"engine/{name}": count for name, count in self._counts.items()}
        if self._prompt_tokens:
            row[PREFIX_CACHE] = self._cached_tokens / self._prompt_tokens
        if self._tokens:
            row |= {"engine/logprob_gap": self._gaps / self._tokens, "engine/logprob_gap_max": self._largest}
        return row


# Work spread over servers that may be slow, fail and come back. Clocks are monotonic.

LONGEST = 60.0  # seconds at most until a server that fails is tried again


@dataclass
class Host:
    """A server, and what is known of it from one batch to the next."""

    caller: Caller
    version: str | None = None  # of its weights, as far as is known
    refusal: UserError | None = None  # of weights: it is given no more of them
    pace: float | None = None  # answers a second, lately
    fails: int = 0  # in a row
    until: float = 0.0  # not asked before this time
    busy: int = 0  # requests under way
    done: int = 0  # answers of the present batch
    spent: float = 0.0  # seconds from the batch's beginning to the latest of them
    latest: float = 0.0  # when it said something
    updating: threading.Lock = field(default_factory=threading.Lock)
    worker: Worker | None = None  # around it, where this process has started it


class EnginePool:
    """Servers that share batches of jobs.

    Each takes a job when it has a place for one, so that slow ones get fewer; how many it may hold at a time follows
    its pace so far. A job that fails goes to another server. A server that fails is left alone for `backoff` seconds,
    twice as long each time, then tried with one job; with the first answer it is a server as the others.

    Args:
        concurrent: jobs of a server at a time, at most.
        patience: seconds without any answer, of any server, after which a batch has failed.
    """

    def __init__(self, hosts: Sequence[Host], *, concurrent: int, backoff: float, patience: float):
        self.hosts, self.concurrent, self.backoff, self.patience = hosts, concurrent, backoff, patience
        self.retries = 0  # jobs that were given back

    def run[T, R](self, do: Callable[[Host, T], R], jobs: Sequence[T]) -> list[R]:
        """What `do` makes of each job. FailedError of `do` sends the job elsewhere; any other error is raised here.

        Raises:
            EngineError: no server answered for `patience` seconds.
        """
        batch = _Batch(self, do, jobs)
        for host in self.hosts:
            host.done, host.busy = 0, 0
            for _ in range(min(self.concurrent, len(jobs))):
                threading.Thread(target=batch.work, args=(host,), daemon=True).start()
        return batch.wait()


class _Batch:
    def __init__(self, pool: EnginePool, do: Callable[[Host, Any], Any], jobs: Sequence[Any]):
        self.pool, self.do, self.jobs = pool, do, jobs
        self.waiting: deque[tuple[int, Host | None]] = deque((i, None) for i in range(len(jobs)))  # and who failed last
        self.found: dict[int, Any] = {}
        self.error: Exception | None = None
        self.change = threading.Condition()
        self.began = self.latest = time.monotonic()
        self.faults: dict[str, str] = {}  # the latest of each server

    def wait(self) -> list[Any]:
        with self.change:
            while self.error is None and len(self.found) < len(self.jobs):
                left = self.latest + self.pool.patience - time.monotonic()
                if left <= 0:
                    self.error = EngineError(self.describe_faults())
                    break
                self.change.wait(min(left, 1.0))
            self.change.notify_all()
            if self.error is not None:
                raise self.error
            for host in self.pool.hosts:
                if host.done:
                    now = host.done / max(1e-6, host.spent)
                    host.pace = now if host.pace is None else (host.pace + now) / 2
        return [self.found[i] for i in range(len(self.jobs))]

    def describe_faults(self) -> str:
        faults = "; ".join(f"{url}: {fault}" for url, fault in self.faults.items())
        return f"no engine answered for {self.pool.patience:g} s ({faults or 'no answer yet'}): start one, then resume"

    def work(self, host: Host) -> None:
        while (number := self.next(host)) is not None:
            try:
                result, error = self.do(host, self.jobs[number]), None
            except Exception as raised:
                result, error = None, raised
            with self.change:
                host.busy -= 1
                if error is None:
                    self.found[number], self.latest, host.fails = result, time.monotonic(), 0
                    host.done, host.spent = host.done + 1, self.latest - self.began
                elif isinstance(error, FailedError):
                    self.give_back(host, number, error)
                else:
                    self.error = self.error or error
                self.change.notify_all()

    def next(self, host: Host) -> int | None:
        """The next job of a server, when there is one and it may have it; None at the end."""
        with self.change:
            while self.error is None and len(self.found) < len(self.jobs):
                now = time.monotonic()
                place = self.find_job(host, now) if now >= host.until and host.busy < self.room(host) else None
                if place is not None:
                    number, _ = self.waiting[place]
                    del self.waiting[place]
                    host.busy += 1
                    return number
                self.change.wait(min(1.0, max(0.005, host.until - now)))
        return None

    def find_job(self, host: Host, now: float) -> int | None:
        """Where a job stands that the server did not fail at last, or, where it is alone, any."""
        others = any(other is not host and now >= other.until for other in self.pool.hosts)
        return next((at for at, (_, last) in enumerate(self.waiting) if last is not host or not others), None)

    def room(self, host: Host) -> int:
        """How many jobs the server may hold."""
        if host.fails:
            return 1
        paces = [other.pace for other in self.pool.hosts]
        if any(pace is None for pace in paces) or not sum(paces):
            return self.pool.concurrent
        share = -(-len(self.jobs) * host.pace // sum(paces))
        return min(self.pool.concurrent, max(1, int(share)))

    def give_back(self, host: Host, number: int, error: FailedError) -> None:
        now, pool = time.monotonic(), self.pool
        self.waiting.appendleft((number, host))
        pool.retries += 1
        self.faults[host.caller.url] = str(error)
        if now >= host.until:  # not one of several that failed together
            host.until = now + min(LONGEST, pool.backoff * 2**host.fails)
            host.fails, host.version = host.fails + 1, None  # it may begin anew, with other weights


# A policy's weights on their way to engines: which they are, and the file or folder that holds them.

MINUTES = 30  # that weights may take to be written


class Store:
    """Where published weights lie: the newest only.

    They go with this object, or with its `close`.

    Args:
        policy: a VLM.
        folder: one that the servers see as well, under the same path; None: a temporary one of this process.
        whole: the whole model in Hugging Face layout instead of one file of what trains.

    Raises:
        UserError: the folder cannot be made.
    """

    def __init__(self, policy: Any, folder: str | None, whole: bool):
        self._policy, self._whole, self._shared = policy, whole, folder is not None
        try:
            if folder:
                Path(folder).mkdir(parents=True, exist_ok=True)
            self._folder = Path(folder).resolve() if folder else Path(tempfile.mkdtemp(prefix="vlrl-weights-"))
        except OSError as error:
            raise UserError(f"policy.engine: folder: cannot make {folder}: {error.strerror}") from None
        self.newest: Published | None = None
        self._written: list[Path] = [] if folder else [self._folder]  # that is to go with this object
        self.close = weakref.finalize(self, _remove_all, self._written)

    def follow(self, policy: Any) -> None:
        """From here on another policy's weights are the present ones."""
        self._policy = policy

    def take(self, write: bool = True) -> Published:
        """The policy's present weights, written anew where they are others than the newest.

        Args:
            write: now; else where a server turns out to read files.
        """
        policy, is_in_parts = self._policy, self._policy.passes.in_parts
        version = name_weights(policy)
        if self.newest is None or self.newest.version != version:
            old, path = self.newest, self._folder / (version if self._whole else f"{version}.safetensors")
            save = functools.partial(_save_whole if self._whole else _save_learned, self._policy, path)
            once = functools.partial(_once, path, save) if self._shared else save
            if is_in_parts:
                once = functools.partial(_save_parts, self._policy, path, self._whole)
            if write or is_in_parts:  # which all processes do together
                once()
            self.newest = Published(
                version, path, self._shared, functools.partial(_write_late, policy, version, path, once),
                None if is_in_parts else policy.model, functools.partial(_pairs, policy.model),
                lambda: name_weights(policy) == version,
            )  # fmt: skip
            if self._shared:
                self._written[:] = [path]
            if old is not None:
                _remove(old.path)
        return self.newest


def name_weights(policy: Any) -> str:
    """The version of a policy's present weights."""
    return policy.version or version_of(policy.model)


def _write_late(policy: Any, version: str, path: Path, save: Callable[[], None]) -> None:
    """Writes weights that nobody asked for before, unless they are others by now."""
    if not path.exists():
        save()
        if name_weights(policy) != version:
            _remove(path)
            raise FailedError("the weights changed while they were written")


def version_of(model: nn.Module) -> str:
    """A name of the weights that train, by what they are: the same in every process, another after any update."""
    from vlrl.policies.weights import find_moments, name_moments

    learned = [p.detach() for p in model.parameters() if p.requires_grad]
    return name_moments(find_moments(learned)) if learned else "start"


def learned_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Names and values, in the bare model's own names, of what differs from where it began; adapters are merged."""
    from vlrl.policies.generation import bare

    base, merged = bare(model), set()
    for name, module in base.named_modules():
        if hasattr(module, "get_delta_weight"):  # a layer of peft's, with its `base_layer`
            weight = module.base_layer.weight.detach()
            delta = sum(module.get_delta_weight(adapter) for adapter in module.active_adapters)
            merged.add(name)
            yield f"{name}.weight", (weight + delta.to(weight.dtype)).detach()
    for name, parameter in base.named_parameters():
        if parameter.requires_grad and not any(name.startswith(f"{each}.") for each in merged):
            yield name, parameter.detach()


def _state_of(base: nn.Module) -> dict[str, Tensor]:
    """The bare model's parameters by the names of its class, tied ones twice; adapters are merged."""
    state = base.named_parameters(remove_duplicate=False)  # they are whole here, where `state_dict` may part them
    own = {name.replace(".base_layer.", "."): value.detach() for name, value in state if ".lora_" not in name}
    return own | dict(learned_weights(base))


def _pairs(model: nn.Module) -> list[tuple[str, Tensor]]:
    """All weights, adapters merged, by the names that they have in the model's own checkpoint; tied ones twice."""
    from transformers.core_model_loading import revert_weight_conversion

    from vlrl.policies.generation import bare

    base: Any = bare(model)
    return list(revert_weight_conversion(base, _state_of(base)).items())


def _once(path: Path, save: Callable[[], None]) -> None:
    """Has a path that several processes of a run share written by the first that asks; the others wait for it.

    One that has claimed it and written nothing for MINUTES, as a killed one, is not waited for any longer.
    """
    claim = path.with_name(f"{path.name}.claim")
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        patient = time.monotonic() + 60 * MINUTES
        while not path.exists() and claim.exists() and time.monotonic() < patient:
            time.sleep(0.05)
        if path.exists():
            return
    try:
        if not path.exists():
            save()
    finally:
        claim.unlink(missing_ok=True)


def _save_learned(policy: Any, path: Path) -> None:
    """What trains, as one safetensors file that appears at once and complete."""
    from safetensors.torch import save_file

    weights = {name: value.contiguous().cpu() for name, value in learned_weights(policy.model)}
    part = _part(path)
    save_file(weights, str(part))
    part.replace(path)


def _save_parts(policy: Any, path: Path, whole: bool) -> None:
    """As `_save_learned` or `_save_whole`, of weights of which each process has a part; called by all of them."""
    from vlrl.policies.weights import write_parts

    part = path.with_name(f"{path.name}.part")
    if whole:
        policy.save(part, in_parts=True)
    else:
        write_parts(dict(learned_weights(policy.model)), part)
    if get_world().is_rank_zero:
        part.replace(path)
    get_world().wait()


def _save_whole(policy: Any, path: Path) -> None:
    """The model with its adapters merged, and the processor, as `from_pretrained` reads them."""
    from transformers.utils import logging

    from vlrl.policies.generation import bare

    logging.disable_progress_bar()  # it would be another bar in each step
    base, part = bare(policy.model), _part(path)
    base.save_pretrained(part, state_dict=_state_of(base), safe_serialization=True)
    policy.processor.save_pretrained(part)
    try:
        part.replace(path)
    except OSError:  # another process of the run was faster, with the same
        _remove(part)


def _part(path: Path) -> Path:
    """Where a process writes what is to appear at once."""
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def _remove_all(paths: Sequence[Path]) -> None:
    for path in paths:
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# Whether published weights count: a server's log-probabilities have to move where the trainer's own do.

PROBE_TOKENS = 8
EXACT = 1e-4  # nats to the trainer at most, of servers that are as exact at the first publication
MOVED = 0.02  # nats that the trainer's move at least before anything is said of other servers'; rounding is less
STILL = 0.1  # of that, what a server with earlier weights moves at most: batches round otherwise


@dataclass(frozen=True)
class Anchor:
    """A server's earlier answer and the trainer's log-probabilities of it [T], and how far both lay apart at first."""

    answer: Completion
    scores: Tensor
    exact: float | None  # nats at most between both; None: the server rounds otherwise


class WeightProbe:
    """What servers answer to one prompt, and the trainer's log-probabilities of the answer, version by version.

    A server that is exact at first, as in float32, has to stay so. Of others moves are compared, not log-probabilities:
    kernels and types differ, and no threshold would fit them all.

    Args:
        policy: whose weights are published.
        request: for one completion, by numbers that stay the same.
    """

    def __init__(self, policy: Any, request: GenerationRequest, options: Options):
        self.request, self.options = request, replace(options, max_tokens=min(PROBE_TOKENS, options.max_tokens))
        self._policy, self._lock = policy, threading.Lock()
        self._anchors: dict[str, Anchor] = {}  # by URL
        self.greedy = replace(self.options, temperature=0.0)  # always the same, while seeds do not bind batches
        self._latest: dict[str, Completion] = {}  # by URL: greedy ones by the newest weights

    def follow(self, policy: Any) -> None:
        self._policy = policy

    def begin(self) -> None:
        """New weights: nobody has answered by them yet."""
        self._latest = {}

    def compare(self, url: str, answer: Completion) -> None:
        """Takes a server's answer by newly published weights.

        Raises:
            UserError: since an earlier answer of the same tokens the trainer's log-probabilities of them have moved,
                and the server's have not; or an exact server's are not the trainer's any more.
        """
        with self._lock:  # one server at a time has the trainer score
            scores = self._policy.score([self._policy.decision(self.request.prompt, answer.tokens)])[0][0]
        gap, anchor = _distance(scores, answer), self._anchors.get(url)
        exact = (max(EXACT, 10 * gap) if gap <= EXACT else None) if anchor is None else anchor.exact
        if anchor is not None and anchor.answer.tokens == answer.tokens:
            moved, server_moved = float((scores - anchor.scores).abs().max()), _distance(anchor.answer, answer)
            if moved > (MOVED if exact is None else exact) and server_moved < STILL * moved:
                raise UserError(
                    f"policy.engine: {url} still answers by earlier weights: updates moved the trainer's "
                    f"log-probabilities of a probe by {moved:.2g} nats, the server's by {server_moved:.2g}: look at "
                    "its log, and see docs/engines.md"
                )
            if exact is None and moved <= MOVED:
                return  # small steps add up until they can be told
        if exact is not None and gap > exact:
            raise UserError(
                f"policy.engine: {url} answers by other weights than were published: a probe is {gap:.2g} nats from "
                f"the trainer's, {exact:.2g} at most were expected: look at its log, and see docs/engines.md"
            )
        self._anchors[url] = Anchor(answer, scores, exact)

    def remember(self, url: str, answer: Completion) -> None:
        """A greedy answer by the newest weights."""
        self._latest[url] = answer

    def recognises(self, url: str, answer: Completion) -> bool:
        """Whether a server's greedy answer is the one by the newest weights; True where it never gave that."""
        known, anchor = self._latest.get(url), self._anchors.get(url)
        if known is None or anchor is None:
            return True
        return known.tokens == answer.tokens and _distance(known, answer) <= (anchor.exact or MOVED)


def _distance(one: Completion | Tensor, other: Completion) -> float:
    """The largest difference of log-probabilities, in nats."""
    import torch

    own = torch.tensor(one.logprobs) if isinstance(one, Completion) else one
    return float((own - torch.tensor(other.logprobs)).abs().max())


# Servers that write for a policy: `vlrl serve-model`, vLLM, SGLang. `policy.engine: {name: server, urls: [...]}`, or
# `workers: 2` for those that the run starts itself.

STALE = 3  # times that a server is given the weights for one request
STUCK = 3  # failures in a row after which a server of this process' own is started anew
IDLE_S = 2.0  # after which a server that names no weights is asked whether it still has them: it may be another process


class Server(Engine):
    """Asks servers, any number of them, each by HTTP; what it needs of them is in docs/engines.md.

    A server gets new weights before its next request, and whenever its answers name others than the policy's, as after
    a restart: such answers are not used but asked for again.

    Args:
        urls: of the servers, up to and without `/v1`; or
        workers: how many are started, where `placement` says, and started anew when they die. Each process of a run
            starts as many.
        command: what starts one of them: `{model}`, `{folder}`, `{host}` and `{port}` are filled in. Default: a
            `vlrl serve-model`; required for vllm and sglang.
        api: whose way of asking; `vlrl` is `vlrl serve-model`'s.
        model: as the servers name it; default: the policy's own source.
        key: the environment variable that holds the servers' token.
        folder: one that the servers see under the same path, for weights; required for vllm and sglang. Null: they are
            sent.
        concurrent: prompts that a server is asked at a time, at most.
        timeout: seconds for one request. patience: seconds without any answer until the run stops.
        backoff: seconds that a server is left alone after a failure, twice as long after each further one.
        rescore: score what was written by the trainer's own weights: one forward pass more, exact entropies, the gap
            between both in the log.

    Raises:
        UserError: a URL is none; no such environment variable; the folder cannot be made.
    """

    def __init__(
        self, policy: Any, source: str, *,
        urls: Annotated[list[str], Field(min_length=1)] | None = None, workers: Count | None = None,
        command: str | None = None, api: Literal["vlrl", "vllm", "sglang"] = "vlrl",
        model: str | None = None, key: str | None = None, folder: str | None = None, concurrent: Count = 16,
        timeout: Rate = 600.0, patience: Rate = 600.0, backoff: Rate = 1.0, rescore: bool = True,
    ):  # fmt: skip
        self._dialect, self._timeout, self.rescore = DIALECTS[api](policy.codec, model or source), timeout, rescore
        self._placed: PlacedEngines | None = None
        if workers:
            words = {"model": source, "folder": folder or ""}
            self._placed = PlacedEngines(command or _serve_command(policy, folder), words, workers, patience)
            hosts = [Host(caller, worker=worker) for worker, caller in self._placed.start_all()]
        else:
            headers = config.header(key, "policy.engine.key")
            hosts = [Host(Caller(url.rstrip("/"), headers)) for url in urls or ()]
        self._pool = EnginePool(hosts, concurrent=concurrent, backoff=backoff, patience=patience)
        self._store = Store(policy, folder, self._dialect.whole)
        self._tally = EngineStats()
        self._policy = policy
        self._probe: WeightProbe | None = None  # where answers do not name the weights

    @staticmethod
    def agree(options: Mapping[str, Any]) -> None:
        """ValueError where options do not go together; a configuration is checked by it."""
        urls, command = options["urls"] or [], options["command"]
        if bool(urls) == bool(options["workers"]):
            raise ValueError("urls, workers: give one of both: where servers are, or how many are started")
        if command is not None and not options["workers"]:
            raise ValueError("command: it starts servers, so say how many: workers: 1")
        if options["workers"] and command is None and options["api"] != "vlrl":
            raise ValueError(f"command: say how {options['api']} is started: docs/engines.md has an example")
        if command is not None and "{port}" not in command:
            raise ValueError("command: it has to name {port}, at which the server is asked")
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.rstrip("/").endswith("/v1"):
                raise ValueError(f"urls: {url!r}: write http://HOST:PORT, without /v1")
        if len(set(urls)) < len(urls):
            raise ValueError("urls: the same server stands there twice")
        if options["api"] != "vlrl" and options["folder"] is None:
            raise ValueError(f"folder: {options['api']} reads weights from a folder: name one that it sees as well")

    @property
    def metrics(self) -> Mapping[str, float]:
        return self._tally.row() | {"engine/servers": float(sum(not host.fails for host in self._pool.hosts))}

    def check(self, asked: GenerationRequest, options: Options) -> list[Completion]:
        """Asks each server once; what they write, one after the other.

        Raises:
            UserError: none answers, or one answers what cannot be used.
        """
        self.publish()
        # a model in parts is scored by all processes at once, not by the thread that publishes
        if not self._dialect.names_weights and not self._policy.one_pass:
            self._probe = WeightProbe(self._policy, asked, options)
        checked, faults = [], []
        for host in self._pool.hosts:
            try:
                checked += self._write(host, asked, options).completions
            except FailedError as error:
                faults.append(f"{host.caller.url}: {error}")
        if not checked:
            raise UserError(f"policy.engine: no server answers: {'; '.join(faults)}")
        return checked

    def follow(self, policy: Any) -> None:
        self._store.follow(policy)
        if self._probe:
            self._probe.follow(policy)

    def publish(self) -> None:
        before, hosts = self._store.newest, self._pool.hosts
        if self._store.take(any(self._dialect.sends_files(host.caller) for host in hosts)) is before:
            return
        self._tally.begin()
        if self._probe:
            self._probe.begin()

    def generate(self, asked: Sequence[GenerationRequest], options: Options) -> list[list[Completion]]:
        start, retries = time.monotonic(), self._pool.retries
        try:
            return self._pool.run(lambda host, each: self._write(host, each, options).completions, asked)
        finally:
            self._tally.add(seconds=time.monotonic() - start, retries=self._pool.retries - retries)

    def record_gaps(self, gaps: Sequence[Tensor]) -> None:
        self._tally.gaps(gaps)

    def close(self) -> None:
        self._store.close()
        if self._placed:
            self._placed.pool.close()

    def _write(self, host: Host, asked: GenerationRequest, options: Options) -> Written:
        """One server's answer, by the present weights.

        Raises:
            FailedError: the server is in trouble.
            UserError: it says no, or answers what cannot be used.
        """
        version = self._store.newest.version
        for _ in range(STALE):
            self._update(host)
            completions = self._ask(host, asked, options)
            if completions.version in (None, version):
                if completions.cached is not None:
                    self._tally.add_prompt(len(asked.prompt.ids), completions.cached)
                return completions
            host.version = completions.version
            self._tally.add(stale=1)
        raise FailedError("answers by the weights of another version")

    def _ask(self, host: Host, asked: GenerationRequest, options: Options) -> Written:
        """One answer, by whatever weights the server has; errors as `_write`."""
        try:
            answer = self._dialect.call(host.caller, asked, options, self._timeout)
            completions = self._dialect.read(answer, asked)
        except RefusedError as error:
            raise UserError(f"policy.engine: {host.caller.url}{error}") from None
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise UserError(
                f"policy.engine: {host.caller.url}: answers lack what training needs, the sampled tokens' ids and "
                f"log-probabilities ({type(error).__name__}: {error}): see docs/engines.md"
            ) from None
        if len(completions.completions) != asked.count:
            raise FailedError(f"{len(completions.completions)} completions of {asked.count}")
        host.latest = time.monotonic()
        return completions

    def _update(self, host: Host) -> None:
        """Gives a server the newest weights where it has others, or has lost them since it was heard last."""
        with host.updating:
            self._revive(host)
            weights = self._store.newest
            if weights is None or (host.version == weights.version and not self._has_lost(host)):
                return
            if host.refusal is not None:  # it ends the run: requests that wait here must not give weights that go
                raise host.refusal
            start = time.monotonic()
            try:
                self._give(host, weights)
            except UserError as error:
                host.refusal = error
                raise
            finally:
                self._tally.add(publish_seconds=time.monotonic() - start)

    def _revive(self, host: Host) -> None:
        """Another server in the place of one of this process' own that has failed and is gone, or is stuck."""
        if self._placed is None or not host.fails:
            return
        if host.worker and not self._placed.end_lost(host.worker, anyway=host.fails >= STUCK):
            return
        host.worker = host.version = None
        host.worker, host.caller = self._placed.start()

    def _has_lost(self, host: Host) -> bool:
        """Whether a server that was idle has other weights than it was given: restarted, or given another run's."""
        probe = self._probe
        if probe is None or time.monotonic() - host.latest < IDLE_S:
            return False
        if probe.recognises(host.caller.url, self._ask(host, probe.request, probe.greedy).completions[0]):
            return False
        host.version = None
        self._tally.add(stale=1)
        return True

    def _give(self, host: Host, weights: Published) -> None:
        """Errors as `_write`."""
        try:
            named = self._dialect.version(host.caller, self._timeout)
        except (RefusedError, KeyError) as error:
            raise UserError(
                f"policy.engine: {host.caller.url} is no server of this kind ({error}): set policy.engine.api"
            ) from None
        if named != weights.version:  # else another process of the run was faster
            try:
                host.version = None
                self._dialect.publish(host.caller, weights, self._timeout)
            except RefusedError as error:
                raise UserError(
                    f"policy.engine: {host.caller.url} takes no weights ({error}): see docs/engines.md"
                ) from None
            self._verify(host)
            self._tally.add(published=1)
        host.version = weights.version

    def _verify(self, host: Host) -> None:
        """A server's answer by new weights is the trainer's."""
        probe = self._probe
        if probe is None:
            return
        url, greedy = host.caller.url, self._ask(host, probe.request, probe.greedy).completions[0]
        answer = self._ask(host, probe.request, probe.options).completions[0]
        probe.compare(url, answer)
        probe.remember(url, greedy)


def _serve_command(policy: Any, folder: str | None) -> str:
    """`vlrl serve-model` of the policy's own model, which shows images and computes as the policy does."""
    size = policy.codec.processor.image_processor.size
    command = f"{SERVE} --dtype {'bfloat16' if policy.autocast else 'float32'}"
    command += f" --min-pixels {size['shortest_edge']} --max-pixels {size['longest_edge']}"
    return command + (" --weights-folder {folder}" if folder else "")
