"""A folder of lerobot's, scored by lerobot's own `lerobot-eval` and by `vlrl simulate`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from vlrl.cli import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("lerobot", "gym_pusht"))), reason="lerobot or gym-pusht is not installed"
    ),
]
EPISODES, TICKS, SEED = 4, 60, 20_000  # the first held-out scene
ROBOT = {"name": "gym", "id": "gym_pusht:gym_pusht/PushT-v0", "options": {"obs_type": "pixels_agent_pos"},
         "state": ["agent_pos"], "images": ["pixels"]}  # fmt: skip


def save_act(folder: Path) -> None:
    """A small ACT with weights by chance that moves about the middle of PushT's table."""
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors

    torch.manual_seed(0)
    config = make_policy_config(
        "act", device="cpu", push_to_hub=False, pretrained_backbone_weights=None, dim_model=32, n_heads=2,
        dim_feedforward=32, n_encoder_layers=1, n_vae_encoder_layers=1, latent_dim=4, chunk_size=8, n_action_steps=8,
        input_features={"observation.state": PolicyFeature(FeatureType.STATE, (2,)),
                        "observation.image": PolicyFeature(FeatureType.VISUAL, (3, 96, 96))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (2,))},
    )  # fmt: skip
    model = get_policy_class("act")(config)
    with torch.no_grad():
        model.model.action_head.weight.mul_(2)
    spread = lambda mean, std, shape: {"mean": torch.full(shape, mean), "std": torch.full(shape, std)}  # noqa: E731
    stats = {"observation.state": spread(256.0, 100.0, (2,)), "action": spread(256.0, 60.0, (2,)),
             "observation.image": spread(0.5, 0.3, (3, 1, 1))}  # fmt: skip
    for part in (model, *make_pre_post_processors(config, dataset_stats=stats)):
        part.save_pretrained(folder)


def test_both_give_every_episode_the_same_reward_and_success(tmp_path):
    """A number of ours could not stand beside one that others measured."""
    save_act(tmp_path / "act")
    done = subprocess.run(
        [Path(sys.executable).with_name("lerobot-eval"), f"--policy.path={tmp_path / 'act'}", "--env.type=pusht",
         f"--env.episode_length={TICKS}", f"--eval.n_episodes={EPISODES}", "--eval.batch_size=1",
         "--eval.use_async_envs=false", f"--seed={SEED}", "--policy.device=cpu", f"--output_dir={tmp_path / 'theirs'}"],
        capture_output=True, text=True, check=False, env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads((tmp_path / "theirs" / "eval_info.json").read_text())["per_task"][0]["metrics"]
    task = {"name": "manipulation", "robot": ROBOT, "horizon": TICKS, "chunk": 8, "workers": 1}
    (tmp_path / "pusht.yaml").write_text(yaml.safe_dump({"task": task, "out": str(tmp_path / "run")}))
    arguments = [str(tmp_path / "pusht.yaml"), "--policy", str(tmp_path / "act"), "--episodes", str(EPISODES)]
    assert main(["simulate", *arguments, "--out", str(tmp_path / "ours")]) == 0
    ours = json.loads((tmp_path / "ours" / "result.json").read_text())["episodes"]
    assert [row["seed"] for row in ours] == list(range(SEED, SEED + EPISODES))
    assert [row["success"] for row in ours] == theirs["successes"]
    assert max(theirs["sum_rewards"]) > 1
    assert [row["paid"] for row in ours] == pytest.approx(theirs["sum_rewards"], rel=1e-5)
