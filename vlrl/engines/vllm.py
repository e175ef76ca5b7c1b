"""vLLM in the trainer's own process: `policy.engine: {name: vllm}`. Not exercised: no GPU with vLLM was at hand.

Written to vLLM 0.26: `LLM(..., enable_sleep_mode=, logprobs_mode=, weight_transfer_config=)`, `LLM.generate`,
`LLM.collective_rpc("reload_weights", kwargs={"weights_path": ...})`, `LLM.start_weight_update`, `LLM.update_weights`,
`LLM.finish_weight_update`, `LLM.sleep` and `LLM.wake_up`.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from vlrl.config import Count
from vlrl.engines.client import EngineStats, Store
from vlrl.engines.protocols import collapse_placeholders, same_prompt
from vlrl.policies.engine import Completion, Engine, GenerationRequest, Options
from vlrl.types import UserError

if TYPE_CHECKING:
    from torch import Tensor

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
                iter(weights.pairs()), {"send_mode": self._send_handles, "packed": True}
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
