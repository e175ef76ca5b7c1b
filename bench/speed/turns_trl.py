"""TRL's side of `bench/speed.py turns`: its GRPOTrainer and an environment that answers with images. Needs no vlrl."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image


def image_of(work: dict, step: int, episode: int, turn: int) -> Image.Image:
    """What an episode is shown in a turn: noise that takes so many visual tokens."""
    rng = np.random.default_rng((step, episode, turn))
    return Image.fromarray(rng.integers(0, 256, (work["side"], work["side"], 3), dtype=np.uint8))


def settings(work: dict, folder: Path, banned: list[int]) -> dict:
    """Of `GRPOConfig`. banned: tokens that no completion has."""
    return dict(
        output_dir=str(folder / "out"), use_cpu=True, bf16=False, fp16=False, seed=0, max_steps=work["steps"],
        per_device_train_batch_size=work["group"], gradient_accumulation_steps=1, num_generations=work["group"],
        num_iterations=1, steps_per_generation=1, beta=0.0, temperature=1.0, top_p=1.0, top_k=0, shuffle_dataset=False,
        max_completion_length=work["turns"] * (work["visual"] + work["tokens"] + 64),
        max_tool_calling_iterations=work["turns"] - 1,
        generation_kwargs={"suppress_tokens": banned, "max_new_tokens": work["tokens"]},
        gradient_checkpointing=False, learning_rate=1e-6, lr_scheduler_type="constant", optim="adamw_torch_fused",
        max_grad_norm=0.0, report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True,
        dataloader_pin_memory=False,
    )  # fmt: skip


def main() -> None:
    import torch
    import trl.trainer.grpo_trainer as grpo
    from datasets import Dataset
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration, TrainerCallback
    from vs_trl_meter import Meter

    folder = Path(sys.argv[1])
    work = json.loads((folder / "work.json").read_text())
    meter, counted = Meter(), []

    class Turns(TrainerCallback):
        def on_train_begin(self, args, state, control, **options) -> None:
            meter.ready()

        def on_step_end(self, args, state, control, **options) -> None:
            meter.done(counted.pop())

    class Gallery:
        """Answers each look with the episode's next image; the episodes of a group begin with the same one."""

        made = 0

        def __init__(self):
            self._episode, Gallery.made = Gallery.made, Gallery.made + 1

        def reset(self, number: int, **row) -> list:
            self._number, self._turn = number, 0
            return [{"type": "image", "image": image_of(work, number, 0, 0)}, {"type": "text", "text": work["text"]}]

        def look(self) -> list:
            """Looks again.

            Returns:
                The next image.
            """
            self._turn += 1
            return [{"type": "image", "image": image_of(work, self._number, self._episode, self._turn)}]

    def parse(tokenizer, ids, prefix=None, tools=None) -> dict:
        """Every completion as a call: the model is random and writes none."""
        call = {"type": "function", "function": {"name": "look", "arguments": {}}}
        return {"role": "assistant", "content": tokenizer.decode(ids), "tool_calls": [call]}

    def reward(completions: list, completion_ids: list, **columns) -> list[float]:
        """Costs nothing, and differs within the group."""
        counted.append(sum(map(len, completion_ids)))
        return [float(i) for i in range(len(completions))]

    grpo.parse_response = parse
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(work["model"], dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(work["model"])
    processor.tokenizer.response_schema = {}  # how to find calls, which `parse` does not ask
    banned = sorted(set(processor.tokenizer.all_special_ids))
    config = grpo.GRPOConfig(**settings(work, folder, banned))
    rows = {"prompt": [[{"role": "user", "content": []}]] * work["steps"], "number": list(range(work["steps"]))}
    grpo.GRPOTrainer(
        model=model, reward_funcs=reward, args=config, train_dataset=Dataset.from_dict(rows),
        processing_class=processor, environment_factory=Gallery, callbacks=[Turns()],
    ).train()  # fmt: skip


if __name__ == "__main__":
    main()
