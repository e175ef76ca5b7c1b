"""Policies: models that act and can say how likely their actions were."""

# A checkpoint's `model_type` -> what `vlrl list` says of it, without torch. vlrl/policies/codecs.py has those of VLMs.
FAMILIES = {
    "qwen2_5_vl": "Qwen2.5-VL: writes coordinates in pixels of the image as shown to it",
    "qwen3_vl": "Qwen3-VL: writes coordinates in thousandths of the image's sides",
    "vlrl_control": "a small network from a robot's state and pictures to chunks of controls (`vlrl clone` makes one)",
}
