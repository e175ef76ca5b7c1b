"""The JSON of OpenAI's replies, with token ids and the weights' version."""

from __future__ import annotations

import secrets
import time
from typing import Any

from vlrl.engines.base import Completion
from vlrl.engines.hosting.batching import Answer
from vlrl.engines.hosting.requests import Wish


def reply(name: str, codec: Any, wish: Wish, answer: Answer, chat: bool) -> dict[str, Any]:
    """The JSON of OpenAI's reply, with token ids and the weights' version."""
    prompt, completions, version = answer
    written = sum(len(each.tokens) for each in completions)
    made = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(8)}",
        "object": "chat.completion" if chat else "text_completion", "created": int(time.time()), "model": name,
        "choices": [_choice(codec, wish, i, each, chat) for i, each in enumerate(completions)],
        "usage": {"prompt_tokens": len(prompt.ids), "completion_tokens": written,
                  "total_tokens": len(prompt.ids) + written},
        "weights_version": version,
    }  # fmt: skip
    return made | ({"prompt_token_ids": prompt.ids.tolist()} if wish.ids else {})


def _choice(codec: Any, wish: Wish, index: int, made: Completion, chat: bool) -> dict[str, Any]:
    text, words = codec.decode(made.tokens), [codec.tokenizer.decode([token]) for token in made.tokens]
    choice: dict[str, Any] = {"index": index, "finish_reason": "length" if made.cut else "stop"}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    if wish.ids:
        choice["token_ids"] = list(made.tokens)
    if wish.logprobs and chat:
        each = zip(words, made.logprobs, strict=True)
        choice["logprobs"] = {"content": [{"token": w, "logprob": p, "top_logprobs": []} for w, p in each]}
    elif wish.logprobs:
        choice["logprobs"] = {"tokens": words, "token_logprobs": list(made.logprobs)}
    return choice
