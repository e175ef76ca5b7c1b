"""TRL's side of `bench/speed.py gpu`: its GRPOTrainer, as it is, on the same random model."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from trl import GRPOConfig, GRPOTrainer  # isort: skip  # first: what it lacks is told within a second

import torch
import vs_trl_theirs
from datasets import Dataset, Image
from gpu_arms import forget_peak, peak, settle
from gpu_model import GEOMETRIES, Row, episodes_of, model_of, processor_of


class Meter:
    """As that of `vs_trl_meter.py`, in seconds and the device's memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # all else that is printed

    def ready(self) -> None:
        self._begin()

    def done(self, tokens: int) -> None:
        """After a step in which `tokens` tokens of prompts and completions took part."""
        settle(self.device)
        told = {"step": time.perf_counter() - self.start, "peak_gb": peak(self.device), "tokens": tokens}
        print(json.dumps(told), file=self.out)
        self._begin()

    def _begin(self) -> None:
        settle(self.device)
        forget_peak(self.device)
        self.start = time.perf_counter()


def config(work: dict, tokenizer, folder: Path) -> GRPOConfig:
    """That of `vs_trl_theirs.py`, on this device in bfloat16, one group forward and back at a time."""
    changed = {
        "use_cpu": work["device"] == "cpu", "bf16": True, "per_device_train_batch_size": work["group"],
        "gradient_accumulation_steps": work["prompts"], "steps_per_generation": work["prompts"],
        "max_steps": work["warm_up"] + work["steps"],
    }  # fmt: skip
    vs_trl_theirs.GRPOConfig = lambda **given: GRPOConfig(**(given | changed))
    return vs_trl_theirs.config(work, tokenizer, folder)


def data_of(work: dict, processor, folder: Path) -> Dataset:
    """All steps' prompts, in order; their images as files, uncompressed."""
    row, images, asked = Row(*(work[name] for name in ("visual", "text", "group", "tokens", "prompts"))), [], []
    for key in range(work["warm_up"] + work["steps"]):
        for episode in episodes_of(row, processor, key)[:: row.group]:
            image, text = episode.sample.prompt.content
            images.append(str(folder / f"{len(images)}.bmp"))
            image.save(images[-1])
            asked.append([{"role": "user", "content": text}])
    return Dataset.from_dict({"prompt": asked, "image": images}).cast_column("image", Image())


def main() -> None:
    folder = Path(sys.argv[1])
    work = json.loads((folder / "work.json").read_text())
    device = torch.device(work["device"])
    meter, processor = Meter(device), processor_of()
    model = model_of(GEOMETRIES[work["model"]], work["kind"], processor, device)
    GRPOTrainer(
        model=model, processing_class=processor, reward_funcs=vs_trl_theirs.reward,
        args=config(work, processor.tokenizer, folder), train_dataset=data_of(work, processor, folder),
        callbacks=[vs_trl_theirs.Turns(meter)],
    ).train()  # fmt: skip


if __name__ == "__main__":
    main()
