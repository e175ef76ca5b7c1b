"""vLLM: how its servers take weights from the trainer, and vLLM in the trainer's own process.

Written to vLLM 0.26: its routes of weight transfer, `vllm.distributed.weight_transfer`; `LLM(..., enable_sleep_mode=,
logprobs_mode=, weight_transfer_config=)`, `LLM.generate`, `LLM.start_weight_update`, `LLM.update_weights`,
`LLM.finish_weight_update`, `LLM.sleep` and `LLM.wake_up`. What needs a GPU was not exercised: NCCL, and all of
`policy.engine: {name: vllm}`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import Field

from vlrl.config import Count
from vlrl.engines.client import EngineStats, Store, version_of, whole_weights
from vlrl.engines.protocols import Caller, FailedError, Published, RefusedError, collapse_placeholders, same_prompt
from vlrl.policies.engine import Completion, Engine, GenerationRequest, Options
from vlrl.types import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

# Weights from the trainer's memory to that of a server's workers: the trainer is rank 0 of a group with all of them.

INIT = "/init_weight_transfer_engine"
ROUTES = {INIT, "/start_weight_update", "/update_weights", "/finish_weight_update", "/get_world_size"}


class Group(Protocol):
    """A group of the trainer and a server's workers; to make one returns when all have joined."""

    def __init__(self, address: str, port: int, world: int): ...

    def broadcast(self, tensor: Tensor) -> None:
        """From the trainer to all."""


class Nccl:
    """vLLM's own communicator over NCCL, on the trainer's current GPU."""

    def __init__(self, address: str, port: int, world: int):
        import torch
        from vllm.distributed.weight_transfer.nccl_common import stateless_init_process_group

        self._group = stateless_init_process_group(address, port, 0, world, torch.cuda.current_device())

    def broadcast(self, tensor: Tensor) -> None:
        import torch

        self._group.broadcast(tensor, src=0, stream=torch.cuda.current_stream())
        torch.cuda.current_stream().synchronize()


GROUPS: dict[str, type[Group]] = {"NCCLWeightTransferEngine": Nccl}  # by the class in its workers


def find_group(
    caller: Caller, routes: frozenset[str], model: nn.Module, seconds: float
) -> tuple[type[Group] | None, str]:
    """What joins the trainer and a server, None where it reads files; and in words, with the reason.

    Raises:
        FailedError: no answer.
    """
    version = caller.get("/version", seconds).get("version") if "/version" in routes else None
    words = _refuse_init(caller, seconds) if routes >= ROUTES else ""
    name = found[1] if (found := re.search(r"init_info for (\w+)", words)) else "of another kind"
    reason = None
    if not routes >= ROUTES:
        reason = "it has no routes for weight transfer"
    elif "not configured" in words:
        reason = "it was started without --weight-transfer-config"
    elif name not in GROUPS:
        reason = f"its transfer is {name}, which is not carried here"
    elif GROUPS[name] is Nccl and next(model.parameters()).device.type != "cuda":
        reason = "the trainer is not on a GPU"
    elif GROUPS[name] is Nccl and importlib.util.find_spec("vllm") is None:
        reason = "vllm is not installed beside the trainer"
    kind = f"vLLM {version}" if version else "its version is not known"
    if reason is not None:
        return None, f"file (reload_weights; {kind}): {reason}"
    return GROUPS[name], f"weight transfer ({name}; {kind})"


def _refuse_init(caller: Caller, seconds: float) -> str:
    """How the server declines to join nobody, which names what it would join by; FailedError: no answer."""
    try:
        caller.post(INIT, {"init_info": {}}, seconds)
    except (FailedError, RefusedError) as error:
        if "HTTP" not in str(error):
            raise
        return str(error)
    return ""


class WeightTransfer:
    """A server's workers, joined to this trainer.

    Raises:
        FailedError, RefusedError: as `Caller.post`; they did not join in time.
    """

    def __init__(self, caller: Caller, group: type[Group], seconds: float):
        world, address = 1 + int(caller.get("/get_world_size", seconds)["world_size"]), caller.address()
        with socket.create_server(("", 0)) as free:
            port = free.getsockname()[1]
        info = {"master_address": address, "master_port": port, "rank_offset": 1, "world_size": world}
        self._caller = caller
        self._group: Group = _together(
            seconds, lambda: group(address, port, world), lambda: caller.post(INIT, {"init_info": info}, seconds)
        )

    def send(self, weights: Published, seconds: float) -> None:
        """Errors as `WeightTransfer`; the weights were changed while they were sent."""
        named = list(whole_weights(weights.model))
        info = {
            "names": [name for name, _ in named], "shapes": [list(tensor.shape) for _, tensor in named],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in named], "packed": False,
        }  # fmt: skip
        post = self._caller.post
        post("/start_weight_update", {}, seconds)
        try:
            _together(
                seconds, lambda: self._broadcast(tensor for _, tensor in named),
                lambda: post("/update_weights", {"update_info": info}, seconds),
            )  # fmt: skip
        except FailedError:
            with contextlib.suppress(FailedError, RefusedError):
                post("/finish_weight_update", {}, seconds)  # another update could not begin
            raise
        post("/finish_weight_update", {}, seconds)
        if version_of(weights.model) != weights.version:
            raise FailedError("the weights changed while they were sent")

    def _broadcast(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._group.broadcast(tensor.contiguous())


def _together(seconds: float, *acts: Callable[[], Any]) -> Any:
    """What the first of several acts makes that wait for each other; a dead peer holds none longer than its time."""
    futures = [Future() for _ in acts]

    def run(act: Callable[[], Any], future: Future) -> None:
        try:
            future.set_result(act())
        except Exception as error:
            future.set_exception(error)

    for act, future in zip(acts, futures, strict=True):
        threading.Thread(target=run, args=(act, future), daemon=True).start()
    wait(futures, seconds, "FIRST_EXCEPTION")
    for future in futures:
        if future.done() and isinstance(error := future.exception(), RuntimeError | OSError):
            raise FailedError(f"the transfer of weights failed ({type(error).__name__})") from error
        if future.done():
            future.result()
    if not all(future.done() for future in futures):
        raise FailedError(f"no weights taken in {seconds:g} s")
    return futures[0].result()


# vLLM beside the trainer, on the same GPU.

PICKLES = "VLLM_ALLOW_INSECURE_SERIALIZATION"  # "1": vLLM lets handles of GPU memory go to its process, pickled


class InProcess(Engine):
    """vLLM beside the model that trains, on the same GPUs. While the trainer works, it sleeps and its memory is free.

    With VLLM_ALLOW_INSECURE_SERIALIZATION=1 it copies weights from the trainer's GPU memory (CUDA IPC), else by file.

    Args:
        memory: the share of a GPU's memory that vLLM may use while it writes.
        tensor_parallel: GPUs that one copy of the model is spread over.
        sleep: give the memory back after each batch.
        folder: for weights on their way, which are written to disk and read again; null: a temporary one.
        rescore: as of `server`.

    Raises:
        UserError: vLLM is not installed, or does not start.
    """

    def __init__(
        self, policy: Any, source: str, *,
        memory: Annotated[float, Field(gt=0, lt=1)] = 0.4, tensor_parallel: Count = 1, sleep: bool = True,
        folder: str | None = None, rescore: bool = True,
    ):  # fmt: skip
        try:
            from vllm import LLM
        except ImportError as error:
            raise UserError(
                f"policy.engine: vllm is not installed ({error}): pip install it, or name a server"
            ) from None
        self._codec, self.rescore, self._sleep, self._tally = policy.codec, rescore, sleep, EngineStats()
        self._store, self._version = Store(policy, folder, whole=True), ""
        self._ipc = os.environ.get(PICKLES) == "1" and policy.device.type == "cuda"
        transfer = {"weight_transfer_config": {"backend": "ipc"}} if self._ipc else {}
        try:
            self._llm = LLM(
                model=source, tensor_parallel_size=tensor_parallel, gpu_memory_utilization=memory,
                enable_sleep_mode=sleep, logprobs_mode="processed_logprobs", max_model_len=policy.codec.max_prompt,
                **transfer,
            )  # fmt: skip
        except (RuntimeError, ValueError) as error:
            raise UserError(f"policy.engine: vllm does not start: {str(error).splitlines()[0]}") from None

    @property
    def metrics(self) -> Mapping[str, float]:
        return self._tally.row()

    def check(self, asked: GenerationRequest, options: Options) -> list[Completion]:
        self.publish()
        return self.generate([asked], options)[0]

    def publish(self) -> None:
        before = self._store.newest
        if self._store.take(write=not self._ipc) is not before:
            self._tally.begin()

    def generate(self, asked: Sequence[GenerationRequest], options: Options) -> list[list[Completion]]:
        if any(each.begun for each in asked):
            raise UserError("policy.engine: vllm begins no completions with given tokens: use engine: local")
        start = time.monotonic()
        if self._sleep:
            self._llm.wake_up()
        self._update()
        try:
            outputs = self._llm.generate([self._prompt(each) for each in asked], [self._law(e, options) for e in asked],
                                      use_tqdm=False)  # fmt: skip
        finally:
            if self._sleep:
                self._llm.sleep(level=1)
        self._tally.add(seconds=time.monotonic() - start)
        for each, request_output in zip(asked, outputs, strict=True):
            same_prompt(request_output.prompt_token_ids, each, self._codec.image_id)
        return [[_completion(output) for output in request_output.outputs] for request_output in outputs]

    def record_gaps(self, gaps: Sequence[Tensor]) -> None:
        self._tally.gaps(gaps)

    def close(self) -> None:
        self._store.close()

    def _update(self) -> None:
        weights = self._store.newest
        if self._version == weights.version:
            return
        if self._ipc:
            from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine

            self._llm.start_weight_update()
            IPCWeightTransferEngine.trainer_send_weights(
                whole_weights(weights.model), {"send_mode": self._send_handles, "packed": True}
            )
            self._llm.finish_weight_update()
        else:
            weights.write()
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(weights.path)})
        self._llm.reset_prefix_cache()  # what the old weights made, of text
        self._llm.llm_engine.reset_encoder_cache()  # and of images
        self._version = weights.version
        self._tally.add(published=1)

    def _send_handles(self, info: Any) -> None:
        """Where weights lie on the GPU, to vLLM's process."""
        self._llm.update_weights({"update_info": dataclasses.asdict(info)})

    def _prompt(self, asked: GenerationRequest) -> dict[str, Any]:
        """Token ids with one placeholder an image, which vLLM's processor makes as many as it needs."""
        images = [self._codec.see(image) for image in asked.shown.images]
        if asked.shown.videos:
            raise UserError("policy.engine: engines take images, no videos: use engine: local")
        media = {"multi_modal_data": {"image": images}} if images else {}
        ids = collapse_placeholders(asked.prompt.ids.tolist(), self._codec.image_id)
        return {"prompt_token_ids": ids, **media}

    def _law(self, asked: GenerationRequest, options: Options) -> Any:
        from vllm import SamplingParams

        return SamplingParams(
            n=asked.count, seed=asked.seed, temperature=options.temperature, top_p=1.0, max_tokens=options.max_tokens,
            logprobs=0, stop=list(options.stop) or None, include_stop_str_in_output=True,
            stop_token_ids=list(self._codec.stop_ids), logit_bias=dict.fromkeys(self._codec.banned_ids, -100.0),
        )  # fmt: skip


def _completion(output: Any) -> Completion:
    logprobs = tuple(of[token].logprob for token, of in zip(output.token_ids, output.logprobs, strict=True))
    if not all(map(math.isfinite, logprobs)):
        raise UserError("policy.engine: vllm gives log-probabilities that are no finite numbers")
    return Completion(tuple(output.token_ids), logprobs, output.finish_reason == "length")
