"""A sentence encoder of Hugging Face's, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vlrl.encoders.texts import MOST
from vlrl.strict import Count
from vlrl.types import UserError

if TYPE_CHECKING:
    import numpy as np


class Sentences:
    """The mean of a text encoder's last states over a text's tokens, of length 1, as sentence-transformers has it.

    Args:
        model: a folder, or a name on the hub: abhinand/MedEmbed-large-v0.1 (MediX-R1's), sentence-transformers/...
        batch: texts at a time.
        max_tokens: of a text that are read.

    Raises:
        UserError: there is no such model, or some of its weights are missing.
    """

    def __init__(self, *, model: str, batch: Count = 64, max_tokens: Count = 256):
        import torch

        self.batch, self.max_tokens = batch, max_tokens
        self._tokenizer, loaded = _pretrained(model)
        if self._tokenizer.pad_token is None:
            raise UserError(f"embedder.model: {model!r} has no token to fill texts up with: it is no sentence encoder")
        self._model = loaded.eval().requires_grad_(False).to("cuda" if torch.cuda.is_available() else "cpu")

    def embed(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        import torch

        made: list[np.ndarray | None] = []
        for start in range(0, len(texts), self.batch):
            chosen = [text[:MOST].encode("utf-8", "replace").decode() for text in texts[start : start + self.batch]]
            given = self._tokenizer(
                chosen,
                padding=True,
                truncation=True,
                max_length=self.max_tokens,
                return_tensors="pt",
                split_special_tokens=True,
            ).to(self._model.device)
            with torch.no_grad():
                states = self._model(**given).last_hidden_state.float()
            mask = given["attention_mask"][..., None].float()
            mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
            unit = torch.nn.functional.normalize(mean, dim=1).cpu()
            made += [row.numpy() if bool(row.isfinite().all()) else None for row in unit]
        return made


def _pretrained(source: str) -> tuple[Any, Any]:
    """Tokenizer and model in float32; UserError where they cannot be loaded, or would be random in part."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    try:
        model, info = AutoModel.from_pretrained(
            source, dtype=torch.float32, output_loading_info=True, use_safetensors=True
        )
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"embedder.model: cannot load {source!r}: {reason}") from None
    missing = [key for key in info["missing_keys"] if "pooler" not in key]  # unused: the mean is taken
    if odd := [*missing, *info["mismatched_keys"]]:
        raise UserError(f"embedder.model: the weights of {source!r} do not fit: {len(odd)} keys, first {odd[0]}")
    return tokenizer, model
