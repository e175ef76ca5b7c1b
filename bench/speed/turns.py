"""A GRPO step on conversations with an image in every reply, beside TRL's environment loop: CPU seconds and memory.

All arms train the same randomly initialised Qwen2.5-VL on the same images: a group's episodes begin with one image and
a question, and each completion is answered with another image of the episode's own, `T` turns long. No completion
stops early, so all arms write and score the same number of tokens, which is checked. As in `bench/speed.py vs_trl`: no
reference, one update per rollout, AdamW, float32, one thread, nothing recomputed, no gradient clipping.

    vlrl     tokens are appended, decoding continues from kept keys, one tree a group
    history  ours, with each turn's whole history prefilled and trained as a sequence of its own
    trl      TRL 1.16's GRPOTrainer with `environment_factory` and a tool that answers with an image; every completion
             counts as a call of it, as a random model writes none

Each arm is a process; they take turns step by step. CPU seconds are the process' own, medians of `--steps` after
`--warm-up`; memory is the peak above the size before the first step.

    python bench/speed.py turns --json FILE
    python bench/speed.py turns --rows tiny/256/8/16/10     # model/visual tokens a turn/group/completion tokens/turns
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # the first is read when torch is imported

ROWS = ("tiny/256/8/16/2", "tiny/256/8/16/5", "tiny/256/8/16/10")
ARMS = ("vlrl", "history", "trl")


def measure(name: str, options: argparse.Namespace) -> dict:
    """CPU seconds and memory of each arm."""
    steps = in_turns(name, options.warm_up + options.steps, options.arms)
    # what was written and is read again may fall into a few other tokens, as each turn of `history` does
    tokens = {arm: {each["tokens"] for each in rows} for arm, rows in steps.items()}
    if len(set.union(*(each for arm, each in tokens.items() if arm != "history"))) > 1:
        raise SystemExit(f"the arms did not do the same work, in tokens a step: {tokens}")
    return {
        arm: {
            "cpu": statistics.median(each["cpu"] for each in rows[options.warm_up :]),
            "all": [each["cpu"] for each in rows], "mib": rows[-1]["mib"], "tokens": rows[-1]["tokens"],
        }
        for arm, rows in steps.items()
    }  # fmt: skip


def in_turns(name: str, steps: int, names: Sequence[str]) -> dict[str, list[dict]]:
    """What each arm reports of its steps."""
    from step import PATCH, TEXT, model_of
    from transformers.utils.logging import disable_progress_bar
    from vs_trl_arms import FAMILY, Arm, trl_python

    size, *numbers = name.split("/")
    work = dict(zip(("visual", "group", "tokens", "turns"), map(int, numbers), strict=True))
    work |= {"text": TEXT, "steps": steps, "side": round(work["visual"] ** 0.5) * 2 * PATCH[FAMILY]}
    found: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        model, processor = model_of(FAMILY, size)
        calls = "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}<|im_end|>"  # TRL asks for it
        processor.chat_template = processor.chat_template.replace("<|im_end|>", calls)
        disable_progress_bar()
        model.save_pretrained(Path(folder) / "model")
        processor.save_pretrained(Path(folder) / "model")
        arms = {}
        for arm in names:
            (Path(folder) / arm).mkdir()
            (Path(folder) / arm / "work.json").write_text(json.dumps(work | {"arm": arm, "model": f"{folder}/model"}))
            python, script = (trl_python(), "turns_trl.py") if arm == "trl" else (sys.executable, "turns.py")
            arms[arm] = stack.enter_context(contextlib.closing(Arm(python, script, Path(folder) / arm)))
        for number in range(steps):
            for arm in sorted(arms, reverse=bool(number % 2)):
                found.setdefault(arm, []).append(arms[arm].turn("step"))
    return found


def worker(folder: Path) -> None:
    """Our side: the policy's rollout and update, as the trainer runs them."""
    from vs_trl_meter import Meter

    from vlrl.config import PolicySection
    from vlrl.policies.loading import load
    from vlrl.update import optimizers_build

    work = json.loads((folder / "work.json").read_text())
    meter = Meter()
    section = PolicySection(model=work["model"], max_tokens=work["tokens"], dtype="float32")
    policy = load(section, device="cpu")
    codec = policy.codec
    # no completion ends early, and none writes what ends a turn
    codec.banned_ids, codec.stop_ids = (*codec.banned_ids, *codec.stop_ids), (-1,)
    policy.scorer = policy._scorer = policy._make_scorer()
    if work["arm"] == "history":
        codec.appends = "to be measured"
    optimizer = optimizers_build(policy.model, "adamw", lr=1e-6)
    meter.ready()
    for number in range(work["steps"]):
        meter.done(step(policy, optimizer, work, number))


def step(policy, optimizer, work: dict, number: int) -> int:
    """One step; how many tokens follow the first prompts, of all episodes."""
    import torch
    from turns_trl import image_of

    from vlrl.types import Episode, Message, Observation, Sample, Step, Turn

    def observe(episode: int, turn: int) -> Observation:
        image = image_of(work, number, episode, turn)
        return Observation.from_messages(
            [Message("tool", (image,)) if turn else Message("user", (image, work["text"]))]
        )

    first = observe(0, 0)
    episodes = [Episode(Sample(str(number), first), 0) for _ in range(work["group"])]
    for turn in range(work["turns"]):
        observations = [observe(i, turn) if turn else first for i in range(len(episodes))]
        decisions = policy.act(episodes, observations, keep=work["arm"] != "history")  # as the trainer does: on-policy
        for episode, observation, decision in zip(episodes, observations, decisions, strict=True):
            episode.turns.append(Turn(observation, decision, Step(observation, terminated=turn + 1 == work["turns"])))
    decisions = [[episode.turns[turn].decision for episode in episodes] for turn in range(work["turns"])]
    whole = work["arm"] != "history"  # else a turn at a time: all histories at once fit few memories
    for part in [[each for turn in decisions for each in turn]] if whole else decisions:
        now = policy.evaluate(part)
        advantage = torch.linspace(-1, 1, len(episodes)).repeat(len(part) // len(episodes))[:, None]
        ratio = (now.logprobs - now.logprobs.detach()).exp()
        (-(advantage * ratio)[now.mask].sum() / (len(episodes) * work["turns"] * work["tokens"])).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    # TRL counts a reply's end, which nobody wrote here, as written
    head, ends = len(episodes[0].turns[0].decision.inputs.prompt.ids), work["turns"] - 1
    last = [episode.turns[-1].decision.inputs for episode in episodes]
    return sum(len(reply.prompt.ids) + len(reply.tokens) - head - ends for reply in last)


def table(rows: dict[str, dict]) -> str:
    """Rows of `measure` as Markdown."""
    lines = [
        "| model | visual tokens a turn | G | C | turns | TRL, CPU-s | history, CPU-s | vlrl, CPU-s "
        "| TRL over vlrl | history over vlrl | memory above the start, MiB |", "|" + "---|" * 11,
    ]  # fmt: skip
    for name, found in rows.items():
        cpu = [found[arm]["cpu"] for arm in ("trl", "history", "vlrl")]
        held = " / ".join(f"{found[arm]['mib']:.0f}" for arm in ("trl", "history", "vlrl"))
        lines.append(
            f"| {' | '.join(name.split('/'))} | {cpu[0]:.2f} | {cpu[1]:.2f} | {cpu[2]:.2f} "
            f"| **{cpu[0] / cpu[2]:.1f}x** | **{cpu[1] / cpu[2]:.1f}x** | {held} |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    from speed_rows import machine, measured

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", metavar="ROW", default=ROWS)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--steps", type=int, default=3, help="that count")
    parser.add_argument("--warm-up", type=int, default=1, help="steps before them")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--resume", action="store_true", help="keep the rows that FILE holds")
    options = parser.parse_args(argv)
    about = machine() | {"steps": options.steps, "warm_up": options.warm_up, "arms": list(options.arms)}
    rows = measured(options.rows, lambda name: measure(name, options), options.json, options.resume, about)
    print(", ".join(f"{key} {value}" for key, value in about.items()), end="\n\n")
    print(table(rows) if set(options.arms) == set(ARMS) else json.dumps(rows, indent=1))


if __name__ == "__main__":
    if len(sys.argv) == 2 and Path(sys.argv[1], "work.json").exists():
        worker(Path(sys.argv[1]))
    else:
        main()
