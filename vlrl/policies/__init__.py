"""Policies: models that act and can say how likely their actions were."""

# A checkpoint's `model_type` (lerobot's have none) -> what `vlrl list` says of it, without torch.
# Those of VLMs are in vlrl/policies/codecs.py, lerobot's kinds in vlrl/policies/lerobot_files.py.
FAMILIES = {
    "qwen2_5_vl": "Qwen2.5-VL: writes coordinates in pixels of the image as shown to it",
    "qwen3_vl": "Qwen3-VL: writes coordinates in thousandths of the image's sides",
    "lerobot": "what lerobot-train saves (ACT, diffusion, SmolVLA, pi0, pi0.5): acts and is evaluated, not trained",
    "vlrl_control": "a small network from a robot's state and pictures to chunks of controls (`vlrl clone` makes one)",
}
