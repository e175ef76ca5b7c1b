"""TRL's side of `bench/speed.py vs_trl`: its GRPOTrainer, as it is, in its own environment. Knows nothing of vlrl."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset, Image
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from vs_trl_meter import Meter


class Turns(TrainerCallback):
    """A step lasts from the end of the one before it: fetching its images belongs to it."""

    def __init__(self, meter: Meter):
        self.meter, self.seen = meter, 0

    def on_train_begin(self, args, state, control, **given) -> None:
        self.meter.ready()

    def on_step_end(self, args, state, control, **given) -> None:
        tokens, self.seen = state.num_input_tokens_seen - self.seen, state.num_input_tokens_seen
        self.meter.done(int(tokens))


def reward(completions: list, **columns) -> list[float]:
    """Costs nothing, and differs within every group, so that no group is skipped."""
    return [float(i % 7) for i in range(len(completions))]


def config(work: dict, tokenizer, folder: Path) -> GRPOConfig:
    """On-policy GRPO without a reference: one update of all completions per rollout, float32, nothing recomputed.

    No token may end a completion or claim to be an image. Clipping of gradients is off, as in our arm.
    """
    return GRPOConfig(
        output_dir=str(folder / "out"), use_cpu=True, bf16=False, fp16=False, seed=0, max_steps=work["steps"],
        per_device_train_batch_size=work["prompts"] * work["group"], gradient_accumulation_steps=1,
        num_generations=work["group"], num_iterations=1, steps_per_generation=1, beta=0.0,
        max_completion_length=work["tokens"], temperature=1.0, top_p=1.0, top_k=0, shuffle_dataset=False,
        generation_kwargs={"suppress_tokens": sorted(set(tokenizer.all_special_ids))},
        gradient_checkpointing=False, learning_rate=1e-6, lr_scheduler_type="constant", optim="adamw_torch_fused",
        max_grad_norm=0.0, report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True,
        dataloader_pin_memory=False,
    )  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    work = json.loads((folder / "work.json").read_text())
    meter = Meter()
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder / "model", dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(folder / "model")
    images = [str(folder / name) for name in work["images"]]
    asked = [[{"role": "user", "content": work["text"]}] for _ in images]
    data = Dataset.from_dict({"prompt": asked, "image": images}).cast_column("image", Image())
    GRPOTrainer(
        model=model, reward_funcs=reward, args=config(work, processor.tokenizer, folder), train_dataset=data,
        processing_class=processor, callbacks=[Turns(meter)],
    ).train()  # fmt: skip


if __name__ == "__main__":
    main()
