"""Our side of `bench/speed.py vs_trl`: the policy's rollout and update, as the trainer runs them on-policy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from PIL import Image
from step import step
from vs_trl_meter import Meter

from vlrl.config import PolicySection
from vlrl.policies.loading import load
from vlrl.types import Episode, Observation, Sample
from vlrl.update import optimizers_build


def episodes_of(names: list[str], folder: Path, work: dict) -> list[Episode]:
    """One step's episodes, their images read from the files."""
    episodes = []
    for p, name in enumerate(names):
        with Image.open(folder / name) as image:
            sample = Sample(name, Observation((image.convert("RGB"), work["text"])))
        episodes += [Episode(sample, p) for _ in range(work["group"])]
    return episodes


def main() -> None:
    folder = Path(sys.argv[1])
    work = json.loads((folder / "work.json").read_text())
    meter = Meter()
    section = PolicySection(model=str(folder / "model"), max_tokens=work["tokens"], dtype="float32")
    policy = load(section, device="cpu")
    policy.codec.stop_ids = ()
    optimizer = optimizers_build(policy.model, "adamw", lr=1e-6)
    meter.ready()
    for k in range(work["steps"]):
        names = work["images"][k * work["prompts"] : (k + 1) * work["prompts"]]
        episodes = episodes_of(names, folder, work)
        step(policy, optimizer, episodes)
        written = [episode.turns[0].decision.inputs for episode in episodes]
        meter.done(sum(len(reply.prompt.ids) + len(reply.tokens) for reply in written))


if __name__ == "__main__":
    main()
