"""Which optional part of vlrl brings a module that is not installed."""

from __future__ import annotations

EXTRAS = {
    "accelerate": "train", "cv2": "train", "peft": "train", "qwen_vl_utils": "train", "safetensors": "train",
    "tensorboard": "train", "tokenizers": "train", "torch": "train", "torchvision": "train", "transformers": "train",
    "msgspec": "serve", "prometheus_client": "serve", "websockets": "serve", "lerobot": "robot", "mujoco": "sim",
    "huggingface_hub": "train", "selenium": "gui", "wandb": "wandb", "trackio": "trackio",
}  # fmt: skip


def lacking(error: ModuleNotFoundError) -> str | None:
    """What to install where an optional part is not there, as one line; None where the module is none of them."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    return f"{module} is not installed, which this command needs: pip install 'vlrl[{extra}]'" if extra else None
