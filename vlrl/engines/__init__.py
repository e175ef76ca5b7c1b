"""Engines: who writes completions. `policy.engine: {name: server, urls: [...]}`; see docs/engines.md.

An engine is a class made with `(policy, source)`, `source` the folder or hub name of the policy's model; its
keyword-only parameters are its options. `local`, the default, is the policy itself (`vlrl.engines`).
"""

from __future__ import annotations

import os
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

from vlrl import registry
from vlrl.config import check_options
from vlrl.engines.protocols import Caller, FailedError, RefusedError
from vlrl.placement.workers import NODE, Packed, Worker, WorkerError, WorkerPool, WorkerService
from vlrl.policies.engine import Completion, Engine, GenerationRequest, Options
from vlrl.system.children import end_child, start_child
from vlrl.types import LOST_MOST, Policy, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from vlrl.config import Component, PolicySection


KNOWN = {
    "local": "vlrl.engines:LocalEngine",
    "server": "vlrl.engines.client:Server",
    "vllm": "vlrl.engines.vllm:InProcess",
}
PATH = "policy.engine"


def check(policy: PolicySection, source: str) -> None:
    """A configuration's engine, before anything is loaded.

    Raises:
        UserError: there is no such engine, it has not these options, or top_p or top_k is set.
    """
    try:
        _target(policy.engine)
        if policy.engine.name != "local" and (policy.top_p < 1 or policy.top_k is not None):
            raise UserError(f"{PATH}: engines sample from all tokens: leave policy.top_p and policy.top_k out")
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def load_policy(
    section: PolicySection, *, shared_prefix: bool | Literal["auto"] = "auto", seed: int = 0,
    device: str | None = None, passes_of: Any = None,
) -> Policy:  # fmt: skip
    """The policy of a configuration, ready to act and to be trained, with the engine that writes for it.

    passes_of: as `vlrl.policies.loading.load` takes it.

    Raises:
        UserError: as `vlrl.policies.loading.load`, as `check`, or the engine's own.
    """
    from vlrl.policies.loading import bundled, load, newest_checkpoint
    from vlrl.policies.vlm import VLM

    policy = load(section, shared_prefix=shared_prefix, seed=seed, device=device, passes_of=passes_of)
    if isinstance(policy, VLM):
        policy.engine = make(section.engine, policy, newest_checkpoint(bundled(section.model)))
    return policy


def make(component: Component, policy: Any, source: str) -> Engine | None:
    """The engine of a policy; None for `local`: the policy writes by itself.

    Raises:
        UserError: as `check`; the engine's own.
    """
    kind, options = _target(component)
    return None if component.name == "local" else kind(policy, source, **options)


def target(component: Component) -> Any:
    """The engine's class. UserError: as `check`."""
    return _target(component)[0]


def _target(component: Component) -> tuple[Any, dict[str, Any]]:
    """The engine's class and its checked options."""
    choice = registry.chosen(component.model_dump(), PATH, "engine", KNOWN)
    target = registry.find("engine", choice.name, PATH)
    options = check_options(choice.options, registry.options_of(target), PATH)
    try:
        target.agree(options)
    except ValueError as error:
        raise UserError(f"{PATH}: {error}") from None
    return target, options


# The policy's own fast decoder as an engine: what `vlrl serve-model` writes with.


class LocalEngine(Engine):
    """Completions of a `vlrl.policies.vlm.VLM`, in this process and with its weights."""

    def __init__(self, policy: Any, source: str = ""):
        self.policy = policy

    def publish(self) -> None:
        """Nothing: its weights are the policy's."""

    def generate(self, asked: Sequence[GenerationRequest], options: Options) -> list[list[Completion]]:
        import numpy as np
        import torch

        from vlrl.policies.processor import going_on

        sampling = self.policy.sampling(options.max_tokens, options.temperature, options.stop)
        uniform = torch.from_numpy(np.concatenate([each.drawn for each in asked])) if options.temperature else None
        prompts = [going_on(each.prompt, each.begun) for each in asked]
        completions = self.policy.write(prompts, [each.count for each in asked], sampling, uniform)
        rows = iter(zip(completions.tokens, completions.logprobs, completions.cut, strict=True))
        return [[_completion(*next(rows)) for _ in range(each.count)] for each in asked]


def _completion(tokens: Sequence[int], logprobs: Tensor, cut: bool) -> Completion:
    return Completion(tuple(tokens), tuple(logprobs.tolist()), cut)


# Generation servers that a run starts where its `placement` says: each is a program around which a worker lies.

SERVE = "{python} -m vlrl.cli serve-model {model} --host {host} --port {port} --token-env VLRL_ENGINE_TOKEN"
TOKENS = ("VLRL_ENGINE_TOKEN", "VLLM_API_KEY")  # variables that tell a server what its clients must show
ASK_S = 0.2  # between two looks whether a server has come up


class EngineService(WorkerService):
    """A generation server on a worker's node, which ends with the worker."""

    process: subprocess.Popen[bytes] | None = None
    url = ""

    def answers(self) -> Mapping[str, Any]:
        return {"make": self._start, "find": self._find}

    def _start(self, options: Mapping[str, Any], _: Any) -> Packed:
        """Starts `command`, and waits until it answers.

        Raises:
            UserError: there is no such program, or it has ended; with the last that it said.
            RuntimeError: it was killed.
        """
        host = os.environ.get(NODE, "127.0.0.1")
        with socket.create_server((host, 0)) as free:
            port = free.getsockname()[1]
        words = {"python": sys.executable, "host": host, "port": str(port), **options["words"]}
        command = [fill_words(part, words) for part in shlex.split(options["command"])]
        environment = os.environ | dict.fromkeys(TOKENS, options["token"])
        if "{python}" not in options["command"]:
            environment.pop("PYTHONPATH", None)  # of another Python our packages are none
        self.url, output = f"http://{host}:{port}", tempfile.TemporaryFile()  # noqa: SIM115 it writes until it ends
        try:
            self.process = start_child(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise UserError(f"policy.engine.command: cannot start {command[0]}: {error.strerror}") from None
        while not self._is_up():
            if (code := self.process.poll()) is not None:
                if code < 0:  # another time it may live
                    raise RuntimeError(f"the server was killed (signal {-code})")
                output.seek(0)
                last = output.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise UserError(f"policy.engine.command: {command[0]} ended before it answered: {last[:300]}")
            time.sleep(ASK_S)
        return {}, {}

    def _is_up(self) -> bool:
        try:
            Caller(self.url, {}).get("/health", 5.0)
        except FailedError:
            return False
        except RefusedError:  # it has no such route
            pass
        return True

    def _find(self, fields: Mapping[str, Any], _: Any) -> Packed:
        """Where it answers; an error where it has ended."""
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError("the server has ended")
        return {"url": self.url}, {}

    def close(self) -> None:
        if self.process is not None:
            end_child(self.process)


def fill_words(text: str, words: Mapping[str, str]) -> str:
    """A command's part with `{model}` and the like; other braces stay, as in JSON."""
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return text


class PlacedEngines:
    """Generation servers of this process' own, as many as `count`. What is lost is started anew, elsewhere if need be.

    Args:
        command: starts one; `{model}` and what else is in `words`, `{python}`, `{host}` and `{port}` are filled in.
        patience: seconds until one has to answer.
    """

    def __init__(self, command: str, words: Mapping[str, str], count: int, patience: float):
        token = secrets.token_urlsafe(24)
        options = {"command": command, "words": dict(words), "token": token}
        self.headers = {"Authorization": f"Bearer {token}"}
        self.pool = WorkerPool(
            f"{__name__}:EngineService", options, kind="engine", size=count, patience=patience, name="policy.engine"
        )

    def start_all(self) -> list[tuple[Worker, Caller]]:
        """All of them, side by side."""
        with ThreadPoolExecutor(self.pool.size) as threads:
            return list(threads.map(lambda _: self.start(), range(self.pool.size)))

    def start(self) -> tuple[Worker, Caller]:
        """One more, and where it is asked.

        Raises:
            UserError: the command cannot be started, or there is no room for it.
            FailedError: workers were lost, as often as an episode's may be.
        """
        for _ in range(LOST_MOST):
            try:
                worker = self.pool.take()
            except WorkerError as error:
                lost = error
                continue
            try:
                return worker, Caller(worker.ask("find", {})[0]["url"], self.headers)
            except WorkerError as error:
                lost = error
                self.pool.bury(worker, str(error))
        raise FailedError(f"no server could be started ({lost})")

    def end_lost(self, worker: Worker, anyway: bool) -> bool:
        """Ends a worker whose server is gone, or `anyway`, so that another may start; whether it did."""
        try:
            worker.ask("find", {})
            reason = "it answered no more"
        except WorkerError as error:
            anyway, reason = True, str(error)
        if anyway:
            self.pool.bury(worker, reason)
        return anyway
