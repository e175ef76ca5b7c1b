"""Tokens a CPU second that our rollout writes, beside Hugging Face's `generate` with the same model and prompts.

Both preprocess each image once, prefill and sample from the full distribution at temperature 1, `G` completions of each
of `--prompts` prompts; ours also keeps log-probabilities and entropies, as training needs them. `generate` is called as
its users call it, with `num_return_sequences`. The model is random and without stop token; in the rows with a share of
completions that stop early, as many ordinary tokens stop one as make that share likely. Tokens that count are those up
to the stop token. Medians of `--repeats` calls on one thread, arms alternating in one process, new images in each call.

    python bench/speed.py decode --json FILE                   # all rows
    python bench/speed.py decode --rows tiny/64/8/512/0.5 # others: model/visual tokens/G/most tokens/share that stops
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # the first is read when torch is imported

import torch
from speed_rows import machine, measured
from step import episodes_of, model_of
from transformers import GenerationConfig

from vlrl.policies.vlm import VLM
from vlrl.types import Episode

FAMILY = "qwen2_5_vl"
ROWS = (
    "tiny/64/8/32/0", "tiny/64/8/128/0", "tiny/64/8/128/0.5", "tiny/64/16/128/0.9", "tiny/256/8/32/0",
    "tiny/256/8/128/0.5", "tiny/1024/8/32/0", "mid/256/8/64/0", "mid/256/8/64/0.5",
)  # fmt: skip
Rollout = Callable[[list[Episode]], int]  # -> tokens up to the stop tokens


def stops_of(processor, tokens: int, share: float) -> tuple[int, ...]:
    """So many ordinary tokens that about `share` of the completions of a random model meet one before the end."""
    special = set(processor.tokenizer.all_special_ids)
    ordinary = [i for i in range(len(processor.tokenizer)) if i not in special]
    count = round(len(ordinary) * (1 - (1 - share) ** (1 / tokens)))
    return tuple(random.Random(0).sample(ordinary, max(count, share > 0)))


def ours(size: str, group: int, tokens: int, share: float) -> Rollout:
    """Our rollout, as evaluation and off-policy training call it."""
    model, processor = model_of(FAMILY, size)
    policy = VLM(model, processor, max_tokens=tokens)
    policy.codec.stop_ids = stops_of(processor, tokens, share)

    def rollout(episodes: list[Episode]) -> int:
        decisions = policy.act(episodes, [episode.sample.prompt for episode in episodes])
        return sum(len(decision.logprobs) for decision in decisions)

    return rollout


def theirs(size: str, group: int, tokens: int, share: float) -> Rollout:
    """`generate` with the same weights."""
    model, processor = model_of(FAMILY, size)
    model.eval()
    stops, special = stops_of(processor, tokens, share), sorted(processor.tokenizer.all_special_ids)
    processor.tokenizer.padding_side = "left"
    config = GenerationConfig(
        max_new_tokens=tokens, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=group,
        eos_token_id=list(stops) or None, pad_token_id=processor.tokenizer.pad_token_id, suppress_tokens=special,
    )  # fmt: skip

    @torch.no_grad()
    def rollout(episodes: list[Episode]) -> int:
        shown = [episode.sample.prompt.content for episode in episodes[::group]]
        made = processor(
            text=[asked(processor, text) for _, text in shown], images=[image for image, _ in shown], padding=True,
            return_tensors="pt",
        )  # fmt: skip
        written = model.generate(**made, generation_config=config)[:, made["input_ids"].shape[1] :]
        stopped = torch.isin(written, torch.tensor(stops, dtype=torch.int64)).int()
        return int((stopped.cumsum(1) - stopped == 0).sum())

    return rollout


def asked(processor, text: str) -> str:
    """A prompt of one image and a text in the chat format."""
    turn = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}
    return processor.apply_chat_template([turn], add_generation_prompt=True, tokenize=False)


def measure(name: str, options: argparse.Namespace) -> dict:
    """Arm -> tokens a second and tokens a completion. The first call of each arm is not counted."""
    size, *numbers, share = name.split("/")
    visual, group, tokens = map(int, numbers)
    made = {arm: build(size, group, tokens, float(share)) for arm, build in (("vlrl", ours), ("generate", theirs))}
    told: dict[str, list[tuple[int, float]]] = {arm: [] for arm in made}
    for key in range(options.repeats + 1):
        for arm in sorted(made, reverse=bool(key % 2)):
            episodes = episodes_of(visual, FAMILY, options.prompts, group, key)
            start = time.process_time()
            count = made[arm](episodes)
            told[arm].append((count, time.process_time() - start))
    return {
        arm: {
            "rate": statistics.median(count / cpu for count, cpu in calls[1:]),
            "length": statistics.mean(count for count, _ in calls[1:]) / (options.prompts * group),
            "all": calls,
        }
        for arm, calls in told.items()
    }


def table(rows: dict[str, dict]) -> str:
    """Rows of `measure` as Markdown."""
    lines = [
        "| model | visual | G | most tokens | stop early | mean tokens, generate / vlrl | generate, tokens/CPU s "
        "| vlrl, tokens/CPU s | ratio |",
        "|" + "---|" * 9,
    ]
    for name, found in rows.items():
        model, visual, group, tokens, share = name.split("/")
        own, other = found["vlrl"], found["generate"]
        lines.append(
            f"| {model} | {visual} | {group} | {tokens} | {float(share):.0%} | {other['length']:.0f} / "
            f"{own['length']:.0f} | {other['rate']:.0f} | {own['rate']:.0f} | **{own['rate'] / other['rate']:.1f}x** |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="BEGINNING", default="", help="rows whose name begins so")
    parser.add_argument("--rows", nargs="+", metavar="ROW", default=ROWS, help="instead of the usual ones")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5, help="calls per arm that count")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--resume", action="store_true", help="keep the rows that FILE holds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    about = machine() | {"prompts": options.prompts, "repeats": options.repeats}
    names = [name for name in options.rows if name.startswith(options.only)]
    rows = measured(names, lambda name: measure(name, options), options.json, options.resume, about)
    print(", ".join(f"{key} {value}" for key, value in about.items()), end="\n\n")
    print(table(rows))


if __name__ == "__main__":
    main()
