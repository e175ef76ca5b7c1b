"""Upload of a model to the Hugging Face hub. Nothing is sent unless `push` is called, and only what `export` writes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from vlrl.interop import card, provenance
from vlrl.interop.export import Source, Width, export, read
from vlrl.types import UserError


def push(
    source: Source, to: str, *,
    private: bool = False, merged: bool = False, dtype: Width | None = None, licence: str | None = None,
) -> str:  # fmt: skip
    """Uploads the model with its card; returns its address.

    The token is what `hf auth login` keeps, or HF_TOKEN. It is passed to `huggingface_hub` alone and never printed.

    Raises:
        UserError: `to` is no name of the hub; no token; an adapter whose base nobody else has; `private`, but the
            repository is public; the hub refuses, or cannot be reached.
    """
    from huggingface_hub import HfApi, get_token

    if not provenance.HUB_NAME.fullmatch(to):
        raise UserError(f"--to {to!r}: must be owner/name")
    base = str(read(source.folder / "adapter_config.json").get("base_model_name_or_path") or "")
    if source.adapter and not merged and (Path(base).exists() or not provenance.HUB_NAME.fullmatch(base)):
        raise UserError(f"{source.folder}: an adapter of {Path(base).name!r}, which nobody else has: use --merged")
    token = get_token()
    if not token:
        raise UserError("no token of the hub, so nothing was sent: run `hf auth login`, or set HF_TOKEN")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        export(source, folder, merged=merged, dtype=dtype)
        card.write(source, folder, name=to, licence=licence)
        return _send(HfApi(token=token), folder, to, private)


def _send(api, folder: Path, to: str, private: bool) -> str:
    try:
        api.create_repo(to, private=private, exist_ok=True)
        if private and not api.model_info(to).private:  # one that was there before stays as it is
            raise UserError(
                f"--private: {to} is there and is public; nothing was sent: make it private, or name another"
            )
        api.upload_folder(repo_id=to, folder_path=folder, commit_message="Model and card, by vlrl push")
    except UserError:
        raise
    except Exception as error:  # of huggingface_hub and of what it calls; their texts hold no token
        told = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"{to}: the hub did not take it ({told}); see `hf auth whoami` and whether you may write there"
                        ) from None  # fmt: skip
    return f"{api.endpoint}/{to}"
