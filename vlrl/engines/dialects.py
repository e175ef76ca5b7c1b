"""How servers are asked and how their answers are read: vlrl's own, vLLM's and SGLang's.

Each dialect is a class with `ask(asked, options)` -> (path, body), `read(answer, asked)` -> `Written`, and
`publish(caller, weights, seconds)`.

Sources, read in October 2026: vLLM's `ChatCompletionRequest` (`return_token_ids`, since 0.10.2), its developer routes
`/collective_rpc` and `/reset_encoder_cache` and `reload_weights(weights_path=)`; SGLang's `/generate` and
`/update_weights_from_disk` ("SGLang for RL systems").
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlrl.engines.base import Asked, Completion, Options
from vlrl.engines.reading import OTHER_PROMPT, completion, content, data_url, numbers, same_prompt
from vlrl.engines.wire import Caller
from vlrl.types import UserError, Video

if TYPE_CHECKING:
    from vlrl.engines.published import Published


@dataclass(frozen=True)
class Written:
    """An answer: completions, and the version of the weights that wrote them, where the server says it."""

    completions: list[Completion]
    version: str | None


class Dialect:
    """What the dialects share. codec: the policy's; model: its name on the server."""

    whole = True  # weights are published as a whole checkpoint, in a folder that the server reads

    def __init__(self, codec: Any, model: str):
        self.codec, self.model = codec, model

    def version(self, caller: Caller, seconds: float) -> str | None:
        """Which weights a server has; None where it does not say."""
        return None

    def pictures(self, asked: Asked) -> list[str]:
        """The prompt's images as the model is shown them, as data URLs.

        Raises:
            UserError: it shows a video.
        """
        if any(isinstance(part, Video) for part in asked.shown.content):
            raise UserError("policy.engine: engines take images, no videos: use engine: local")
        return [data_url(self.codec.see(image)) for image in asked.shown.images]


class Vlrl(Dialect):
    """`vlrl serve-model`: the prompt's own tokens with its images, so that nothing is read anew."""

    whole = False

    def version(self, caller: Caller, seconds: float) -> str | None:
        return str(caller.get("/health", seconds)["weights_version"])

    def ask(self, asked: Asked, options: Options) -> tuple[str, dict[str, Any]]:
        body = {
            "model": self.model, "prompt": [*asked.prompt.ids.tolist(), *asked.begun], "images": self.pictures(asked),
            "n": asked.count, "seed": asked.seed, "max_tokens": options.max_tokens, "stop": list(options.stop),
            "temperature": options.temperature, "top_p": 1.0, "logprobs": 0, "return_token_ids": True,
        }  # fmt: skip
        if asked.drawn is not None:  # so that a server writes what the policy itself would write
            body["uniform"] = base64.b64encode(asked.drawn.astype("<f4").tobytes()).decode()
        return "/v1/completions", body

    def read(self, answer: dict[str, Any], asked: Asked) -> Written:
        choices = [(c, c["logprobs"]["token_logprobs"]) for c in answer["choices"]]
        return Written([completion(*each) for each in choices], str(answer["weights_version"]))

    def publish(self, caller: Caller, weights: Published, seconds: float) -> None:
        if weights.shared:
            caller.post("/v1/weights", {"path": weights.path.name, "version": weights.version}, seconds)
        else:
            caller.send("/v1/weights", weights.path, {"X-Weights-Version": weights.version}, seconds)


class Vllm(Dialect):
    """vLLM from 0.10.2 on, and what speaks as it does. Its answers name no version of the weights."""

    def ask(self, asked: Asked, options: Options) -> tuple[str, dict[str, Any]]:
        if asked.begun:
            raise UserError("policy.engine: vLLM begins no completions with given tokens beside images: use api: vlrl")
        self.codec.check_sendable(asked.shown)
        body = {
            "model": self.model, "messages": [{"role": "user", "content": content(asked, self.pictures(asked))}],
            "n": asked.count, "seed": asked.seed, "max_tokens": options.max_tokens, "stop": list(options.stop),
            "temperature": options.temperature, "top_p": 1.0, "logprobs": True, "top_logprobs": 0,
            "return_token_ids": True, "logit_bias": {str(i): -100.0 for i in self.codec.banned_ids},
            "stop_token_ids": list(self.codec.stop_ids),
        }  # fmt: skip
        return "/v1/chat/completions", body

    def read(self, answer: dict[str, Any], asked: Asked) -> Written:
        same_prompt(answer["prompt_token_ids"], asked, self.codec.image_id)
        choices = [(c, [token["logprob"] for token in c["logprobs"]["content"]]) for c in answer["choices"]]
        version = answer.get("weights_version")
        return Written([completion(*each) for each in choices], None if version is None else str(version))

    def publish(self, caller: Caller, weights: Published, seconds: float) -> None:
        kwargs = {"weights_path": str(weights.path)}
        caller.post("/collective_rpc", {"method": "reload_weights", "kwargs": kwargs}, seconds)
        for cache in ("prefix", "encoder"):  # what was made by the old weights, of text and of images
            caller.post(f"/reset_{cache}_cache", {}, seconds)


class Sglang(Dialect):
    """SGLang's own route, whose answers hold token ids, log-probabilities and the weights' version."""

    def version(self, caller: Caller, seconds: float) -> str | None:
        return str(caller.get("/get_model_info", seconds).get("weight_version"))

    def ask(self, asked: Asked, options: Options) -> tuple[str, dict[str, Any]]:
        if asked.begun:
            raise UserError("policy.engine: SGLang begins no completions with given tokens beside images: "
                            "use api: vlrl")  # fmt: skip
        self.codec.check_sendable(asked.shown)
        sampling = {
            "n": asked.count, "max_new_tokens": options.max_tokens, "temperature": options.temperature, "top_p": 1.0,
            "stop": list(options.stop), "stop_token_ids": list(self.codec.stop_ids), "sampling_seed": asked.seed,
            "no_stop_trim": True, "logit_bias": {str(i): -100.0 for i in self.codec.banned_ids},
        }  # fmt: skip
        pictures = self.pictures(asked)
        shown = {"image_data": pictures} if pictures else {}
        text = self.codec.text(asked.shown)
        return "/generate", {"text": text, **shown, "sampling_params": sampling, "return_logprob": True}

    def read(self, answer: Any, asked: Asked) -> Written:
        rows = answer if isinstance(answer, list) else [answer]
        told = [row["meta_info"] for row in rows]
        if any(each["prompt_tokens"] != len(asked.prompt.ids) for each in told):
            raise UserError(OTHER_PROMPT.format(told[0]["prompt_tokens"], len(asked.prompt.ids)))
        made = [
            Completion(
                tuple(int(token) for _, token, *_ in each["output_token_logprobs"]),
                numbers([logprob for logprob, *_ in each["output_token_logprobs"]]),
                each["finish_reason"]["type"] == "length",
            )
            for each in told
        ]
        return Written(made, str(told[0].get("weight_version")))

    def publish(self, caller: Caller, weights: Published, seconds: float) -> None:
        body = {"model_path": str(weights.path), "weight_version": weights.version, "flush_cache": True}
        caller.post("/update_weights_from_disk", body, seconds)


DIALECTS: dict[str, type[Dialect]] = {"vlrl": Vlrl, "vllm": Vllm, "sglang": Sglang}
