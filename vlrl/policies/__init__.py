"""Policies: models that act and can say how likely their actions were."""

LEROBOT_FLOWS = ("smolvla", "pi0", "pi05")  # lerobot's flows (vlrl/policies/lerobot_flow.py)
# A checkpoint's `model_type` (lerobot's have none) -> what `vlrl list` says of it, without torch.
# Those of VLMs are in vlrl/policies/processor.py, lerobot's kinds in vlrl/policies/lerobot.py.
FAMILIES = {
    "qwen2_5_vl": "Qwen2.5-VL: writes coordinates in pixels of the image as shown to it",
    "qwen3_vl": "Qwen3-VL: writes coordinates in thousandths of the image's sides",
    "any other": "what AutoModelForImageTextToText loads, with a processor and a chat template (docs/models.md)",
    "lerobot": "what lerobot-train saves: SmolVLA, pi0, pi0.5, ACT, and diffusion (trained where it sees no past)",
    "vlrl_control": "a small network from a robot's state and pictures to chunks of controls (`vlrl clone` makes one)",
    "vlrl_actor": "a small network from a robot's state, and images where it has eyes, to chunks of controls "
    "(`vlrl offpolicy` makes one): acts only",
    "vlrl_encoded": "a frozen vision model, and a small policy that reads its numbers (`vlrl offpolicy`): acts only",
    "vlrl_flow": "a small flow from a robot's state and noise to chunks of controls (`vlrl clone` makes it)",
    "vlrl_steered": "a frozen vlrl_flow whose noise a network chooses (`vlrl offpolicy`, agents dsrl_*): acts only",
    "vlrl_guided": "a vlrl_flow that is told how good its chunk is to be (`vlrl offpolicy`, agent recap): acts only",
    "vlrl_arsq": "a small distribution over chunks, number after number (`vlrl offpolicy`, agent arsq): acts only",
    "vlrl_corrected": "a frozen policy whose chunks a network corrects (`vlrl offpolicy`, agent residual): acts only",
    "vlrl_residual": "a small correction of a frozen vlrl_control at every tick (`vlrl residual` makes one)",
}
