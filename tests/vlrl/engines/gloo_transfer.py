"""Weight transfer over gloo, for CPUs: NCCL's, in both processes, but for the library that carries the bytes.

vLLM's workers import this as `--worker-extension-cls gloo_transfer.Extension`; the trainer's half is `Gloo`.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta

import torch
from torch import distributed

WAIT = timedelta(seconds=120)


class Gloo:
    """A group of the trainer, rank 0, and a server's workers."""

    def __init__(self, address: str, port: int, world: int, rank: int = 0):
        store = distributed.TCPStore(address, port, world, is_master=rank == 0, timeout=WAIT, wait_for_workers=False)
        self.group = distributed.ProcessGroupGloo(store, rank, world, WAIT)

    def broadcast(self, tensor: torch.Tensor) -> None:
        options = distributed.BroadcastOptions()
        options.rootRank = 0
        self.group.broadcast([tensor], options).wait()


class Extension:
    """Of a worker: nothing. Its import makes the backend known."""


def register() -> None:
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine, NCCLWeightTransferUpdateInfo

    class GlooWeightTransferEngine(NCCLWeightTransferEngine):
        """Init and update say what NCCL's say."""

        def init_transfer_engine(self, init_info: NCCLWeightTransferInitInfo) -> None:
            rank = init_info.rank_offset + self.parallel_config.rank
            self.group = Gloo(init_info.master_address, init_info.master_port, init_info.world_size, rank)

        def update_weights(self, update_info: dict) -> None:
            self.receive_weights(self.parse_update_info(update_info))  # NCCL's waits for an accelerator

        def receive_weights(self, update_info: NCCLWeightTransferUpdateInfo) -> None:
            for name, kind, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True):
                weight = torch.empty(shape, dtype=getattr(torch, kind))
                self.group.broadcast(weight)
                self.model.load_weights([(name, weight)])

    WeightTransferEngineFactory.register_engine("gloo", GlooWeightTransferEngine)


with contextlib.suppress(ImportError):  # the trainer's process has no vLLM
    register()
