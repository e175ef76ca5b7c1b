"""Sizes of the published models, for plans without their files.

Read from copies of their config.json: Qwen2.5-VL-7B, Qwen3-VL-4B. The others were not read; their parameter counts
come out at those that the models are known by (tests/vlrl/test_cost.py). A local folder's
config.json always takes precedence.
"""

from __future__ import annotations

from vlrl.plan.geometry import Geometry, Language, Tower


def _qwen2_5(layers, hidden, intermediate, heads, kv, vocabulary, tied, vision) -> Geometry:
    tower = Tower(depth=32, hidden=1280, intermediate=vision, out=hidden, full=4)
    return Geometry("qwen2_5_vl", tower, Language(layers, hidden, intermediate, heads, kv, 128, vocabulary, tied))


def _qwen3(layers, hidden, intermediate, heads, tied, depth, width, vision) -> Geometry:
    tower = Tower(depth, width, vision, out=hidden, patch=16, window=0, gated=False, deepstack=3, table=2304)
    return Geometry("qwen3_vl", tower, Language(layers, hidden, intermediate, heads, 8, 128, 151936, tied))


MODELS = {
    "Qwen2.5-VL-3B": _qwen2_5(36, 2048, 11008, 16, 2, 151936, True, 3420),
    "Qwen2.5-VL-7B": _qwen2_5(28, 3584, 18944, 28, 4, 152064, False, 3420),
    "Qwen2.5-VL-32B": _qwen2_5(64, 5120, 27648, 40, 8, 152064, False, 3456),
    "Qwen2.5-VL-72B": _qwen2_5(80, 8192, 29568, 64, 8, 152064, False, 3456),
    "Qwen3-VL-2B": _qwen3(28, 2048, 6144, 16, True, 24, 1024, 4096),
    "Qwen3-VL-4B": _qwen3(36, 2560, 9728, 32, True, 24, 1024, 4096),
    "Qwen3-VL-8B": _qwen3(36, 4096, 12288, 32, False, 27, 1152, 4304),
    "Qwen3-VL-32B": _qwen3(64, 5120, 25600, 64, False, 27, 1152, 4304),
}
