"""Workers on the nodes of a Ray cluster: each is an actor, which holds the worker's process on its node.

Ray says where a worker runs, with what, and whether its node is there; the process around a service is the one of
`vlrl.placement.workers`, so that a simulator that dies, hangs, or limits its memory does so as it does without Ray.
What passes through Ray is bytes.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import Field

from vlrl.decoders import wire_pack
from vlrl.placement.workers import (
    NODE,
    Kind,
    LocalWorker,
    LostWorkerError,
    Placement,
    Worker,
    WorkerError,
    start_process,
)
from vlrl.types import UserError, first_line

MARGIN = 10.0  # seconds that a call may take beyond its worker's patience
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class WorkerNeeds:
    """What Ray keeps free on a node for a worker.

    Args:
        cpus: cores. gpus: may be a share of one. memory_gb: of main memory.
        resources: a cluster's own, by name: `{browsers: 1}` for nodes that were started with some.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    cpus: Amount = 1.0
    gpus: Amount = 0.0
    memory_gb: Amount = 0.0
    resources: dict[str, Amount] = field(default_factory=dict)


class WorkerHost:
    """The actor: one worker's process on the node where Ray has put it."""

    def __init__(self, service: str, patience: float, path: Sequence[str], folder: str):
        import ray

        os.environ[NODE] = ray.util.get_node_ip_address()
        if os.path.isdir(folder):  # paths in options are relative to where the run was started
            os.chdir(folder)
        self._worker: LocalWorker = start_process(service, patience, [*sys.path, *path])

    def exchange(self, message: bytes) -> bytes:
        try:
            return self._worker.exchange(message)
        except WorkerError as error:
            return wire_pack({"lost": str(error)})

    def pid(self) -> int:
        return self._worker.pid

    def cpu_s(self) -> float:
        return self._worker.cpu_s()

    def end(self) -> None:
        self._worker.end()


class RayWorker(Worker):
    """A `WorkerHost` as its owner sees it. It goes with its node, with the run, and with this object."""

    def __init__(self, actor: Any, patience: float, needs: WorkerNeeds):
        self._actor, self.patience, self._needs = actor, patience, needs
        self._pid: int | None = None

    @property
    def pid(self) -> int:
        return self._find_place()

    def _find_place(self) -> int:
        """Its process, once Ray has found a place for it.

        Raises:
            UserError: it has found none in time.
        """
        if self._pid is None:
            from ray.exceptions import GetTimeoutError

            try:
                self._pid = self._call(self._actor.pid, self.patience)
            except GetTimeoutError:
                self.kill()
                problem = f"no node of the Ray cluster had room for a worker of {self._needs} in {self.patience:g} s"
                raise UserError(
                    f"placement: {problem}: `ray status` says what is free; ask for fewer workers"
                ) from None
        return self._pid

    def exchange(self, message: bytes) -> bytes:
        from ray.exceptions import GetTimeoutError

        self._find_place()
        try:
            return self._call(self._actor.exchange, self.patience + MARGIN, message)
        except GetTimeoutError:
            self.kill()
            raise LostWorkerError(f"no answer in {self.patience + MARGIN:g} s") from None

    def cpu_s(self) -> float:
        from ray.exceptions import GetTimeoutError

        try:
            return self._call(self._actor.cpu_s, MARGIN)
        except (LostWorkerError, GetTimeoutError):
            return 0.0

    def kill(self) -> None:
        import ray

        with contextlib.suppress(Exception):  # whatever Ray says of an actor that is gone, or when it is shut down
            ray.kill(self._actor)

    def end(self) -> None:
        from ray.exceptions import GetTimeoutError

        with contextlib.suppress(LostWorkerError, GetTimeoutError):
            self._call(self._actor.end, MARGIN)
        self.kill()

    def _call(self, method: Any, seconds: float, *arguments: Any) -> Any:
        """What the actor gives; ray's GetTimeoutError, LostWorkerError where it, its node or the way to it is gone."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        try:
            return ray.get(method.remote(*arguments), timeout=seconds)
        except GetTimeoutError:
            raise
        except RayError as error:
            raise LostWorkerError(f"the worker is gone from Ray: {first_line(error)}") from None


class RayPlacement(Placement):
    """Actors of a Ray cluster, one a worker, spread over its nodes. Needs `pip install 'vlrl[ray]'`.

    Code, data and what simulators need must be on every node: the same image, or a shared file system.

    Args:
        address: of the cluster: `auto` for the one of this machine, `HOST:PORT`, `ray://HOST:PORT`. None: the one that
            the variable RAY_ADDRESS names, as in a Ray job; without it one is started here, and ends with the run.
        workers: what each kind needs, `simulator`, `browser`, `judge`, `reward` or `engine`; default: a core.

    Raises:
        UserError: Ray is not installed; there is no cluster at the address.
    """

    def __init__(self, *, address: str | None = None, workers: Mapping[Kind, WorkerNeeds] | None = None):
        try:
            import ray
        except ImportError as error:
            raise UserError("placement: ray is not installed: pip install 'vlrl[ray]'") from error
        self._needs = dict(workers or {})
        if address is None and "RAY_ADDRESS" not in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            remedy = "`ray start --head`, and address: auto"
            raise UserError(f"placement.address: each process would start a cluster of its own: {remedy}")
        self._address, self._host = address, ray.remote(WorkerHost)
        _connect(address)

    def start(self, service: str, kind: Kind, patience: float) -> Worker:
        _connect(self._address)
        needs = self._needs.get(kind, WorkerNeeds())
        options: dict[str, Any] = {
            "num_cpus": needs.cpus, "num_gpus": needs.gpus, "memory": int(needs.memory_gb * 1e9) or None,
            "resources": needs.resources or None, "scheduling_strategy": "SPREAD",
            "max_concurrency": 2,  # how much it has used is asked while it works
        }  # fmt: skip
        actor = self._host.options(**options).remote(service, patience, sys.path, os.getcwd())
        return RayWorker(actor, patience, needs)


def _connect(address: str | None) -> None:
    """Once a process.

    Raises:
        UserError: there is no cluster at the address.
    """
    import ray

    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # what Ray itself has to say stays in its log folder; what happens to a worker is in its error
    options: dict[str, Any] = {"logging_level": "warning", "log_to_driver": False, "namespace": "vlrl"}
    if address is None and "RAY_ADDRESS" not in os.environ:
        options["include_dashboard"] = False
    try:
        ray.init(address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        place = address or os.environ.get("RAY_ADDRESS", "this machine")
        raise UserError(f"placement.address: no Ray cluster at {place}: {first_line(error)}") from None
