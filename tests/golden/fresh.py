"""Fresh pairs: recorded inputs, mutated, with what the plain formula in `references` pays for them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from references import REFERENCES

HERE = Path(__file__).resolve().parent
TEXTS = ("completion", "prediction", "predicted")  # the model's answer among the inputs
SPACES = (" ", "\n", "\t", "\r\n", "\u00a0", "\u2003")
DIGITS = str.maketrans("0123456789", "\u0660\u0661\u0662\u0663\u0664\u0665\u0666\u0667\u0668\u0669")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def mutate(text: str, rng: random.Random) -> str:
    """One small change of the kind that a policy tries."""
    kind = rng.randrange(12)
    numbers = list(re.finditer(r"\d+(?:\.\d+)?", text))
    if kind <= 4 and numbers:
        found = rng.choice(numbers)
        written = found[0]
        new = (
            f"{written}{rng.choice(('s', ' s', ' seconds', 'px', '%'))}", f"{rng.choice('+-')}{written}",
            written.translate(DIGITS), rng.choice(("'{}'", '"{}"')).format(written),
            str(max(float(written) + rng.choice((-1, 1, 0.5)), 0)).removesuffix(".0"),
        )[kind]  # fmt: skip
        return text[: found.start()] + new + text[found.end() :]
    if kind <= 6:
        tag = rng.choice(TAGS)
        space = rng.choice(SPACES)
        return text.replace(tag, rng.choice((space + tag, tag + space)), 1)
    space = rng.choice(SPACES)
    return (
        space + text, text + space, text.translate(str.maketrans("[]", "()")),
        text.replace("<answer>", "<answer>```json\n", 1).replace("</answer>", "\n```</answer>", 1),
        re.sub(r"(\d) (to|and|-) (\d)", lambda found: f"{found[1]}s {found[2]} {found[3]}", text),
    )[kind - 7]  # fmt: skip


def _shifted(value: Any, rng: random.Random) -> Any:
    """Points: off by a pixel, or as text."""
    moved = [side + rng.choice((-1, 0, 1)) for side in value] if isinstance(value, list) else value
    return str(moved) if rng.random() < 0.3 else moved


def _varied(inputs: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    varied = dict(inputs)
    for name in TEXTS:
        for _ in range(rng.randint(1, 3) if isinstance(varied.get(name), str) else 0):
            varied[name] = mutate(varied[name], rng)
    return varied | ({"pred": _shifted(varied["pred"], rng)} if "pred" in varied and "sam2_bbox" in varied else {})


def pairs(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """`count` pairs for each function that has a plain formula, from inputs recorded in this folder."""
    rng = random.Random(seed)
    recorded: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name in ("gui.json", "detection.json", "video.json"):
        for pair in json.loads((HERE / name).read_text(encoding="utf-8")):
            recorded.setdefault((pair["source"].partition("@")[0], pair["function"]), []).append(pair["inputs"])
    for key, formula in REFERENCES.items():
        for _ in range(count):
            inputs = _varied(rng.choice(recorded[key]), rng)
            yield {"source": key[0], "function": key[1], "inputs": inputs, "output": formula(inputs)}
