"""A device that computes on the CPU and counts what would go wrong, or wait, on a GPU. Run as a program: JSON counts.

Tensors on it hold another tensor, on which every operation is carried out. `mismatches`: operations that mix it with
tensors of the CPU, which a GPU refuses; `syncs`: operations whose result the CPU waits for.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
MISMATCHES: Counter[str] = Counter()
SYNCS: Counter[str] = Counter()
WAITS = (aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten._unique2.default,
         aten.equal.default, aten.repeat_interleave.Tensor)  # fmt: skip
COPIES = (aten.copy_.default, aten._to_copy.default)
INDEXED = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)


class Guard(torch._C._acc.DeviceGuard):
    def type_(self):
        return torch._C._autograd.DeviceType.PrivateUse1


class Backend(backend_registration._DummyBackendModule):
    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1


class Held(torch.Tensor):
    """A tensor of the pretended device; `elem` is on the CPU."""

    elem: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, elem: torch.Tensor) -> Held:
        made = torch.Tensor._make_wrapper_subclass(
            cls, elem.shape, strides=elem.stride(), storage_offset=elem.storage_offset(), dtype=elem.dtype,
            device=torch.device("gpu", 0),
        )  # fmt: skip
        made.elem = elem
        return made

    def tolist(self) -> Any:
        SYNCS["tolist"] += 1
        return self.elem.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return carry_out(func, args, kwargs or {})


class Pretend(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return carry_out(func, args, kwargs or {})


def carry_out(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    ours = [leaf for leaf in given if isinstance(leaf, Held)]
    theirs = [leaf for leaf in given if not isinstance(leaf, Held)]
    device = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
    to_cpu = device is not None and device.type == "cpu"
    if ours and func not in (*COPIES, *INDEXED) and any(leaf.dim() for leaf in theirs):
        MISMATCHES[str(func)] += 1
    waits = func in WAITS or (func is aten._to_copy.default and to_cpu)
    waits |= func is aten.copy_.default and not isinstance(args[0], Held)
    waits |= func in INDEXED and any(
        i is not None and (i.dtype == torch.bool or not isinstance(i, Held)) for i in args[1]
    )
    if ours and waits:
        SYNCS[str(func)] += 1
    plain, options = tree_map(lambda x: x.elem if isinstance(x, Held) else x, (args, kwargs))
    plain = tuple(torch.device("cpu") if isinstance(x, torch.device) else x for x in plain)
    options |= {"device": torch.device("cpu")} if device is not None else {}
    options.pop("pin_memory", None)
    with _disable_current_modes():
        out = func(*plain, **options)
    if func is aten._local_scalar_dense.default:
        return out
    if func._schema.is_mutable and args and isinstance(args[0], torch.Tensor):
        return args[0]
    here = (device is not None and device.type == "gpu") or (ours and not to_cpu)
    return tree_map(lambda x: Held(x) if here and isinstance(x, torch.Tensor) else x, out)


def move(module: torch.nn.Module) -> None:
    """The module's parameters and buffers onto the device; what is shared stays shared."""
    made: dict[int, torch.nn.Parameter] = {}
    for part in module.modules():
        for name, value in list(part._parameters.items()):
            if value is not None:
                made.setdefault(id(value), torch.nn.Parameter(Held(value.data), value.requires_grad))
                part._parameters[name] = made[id(value)]
        for name, value in list(part._buffers.items()):
            part._buffers[name] = value if value is None else Held(value)


def main(kind: str) -> dict[str, Any]:
    """A rollout of 20 tokens, its update and its gradient."""
    backend_registration._setup_privateuseone_for_python_backend("gpu", Backend(), None, None)
    torch._C._set_only_lift_cpu_tensors(True)
    torch.inference_mode = torch.no_grad  # a wrapper has no version counter there
    from vlrl.config import PolicySection
    from vlrl.policies import loading, tiny
    from vlrl.policies.vlm import VLM
    from vlrl.types import Episode, Observation, Sample

    text = "Click the red square. What is at [1, 2]?"
    model, processor = tiny.build(tiny.tokenizer_from([text]), family="qwen2_5_vl", patch=14)
    section = PolicySection(lora={"rank": 4} if kind == "lora" else None, freeze=["vision"] if kind == "lora" else [])
    model = loading._trainable(model, section)
    noise, episodes = np.random.default_rng(0), []
    for i in range(2):
        image = Image.fromarray(noise.integers(0, 256, (56 + 28 * i, 84, 3), dtype=np.uint8))
        episodes += [Episode(Sample(f"s{i}", Observation((image, text))), i) for _ in range(int(sys.argv[2]))]
    with Pretend():
        move(model)
        policy = VLM(model, processor, max_tokens=20)
        policy.codec.stop_ids = ()
        policy._verified |= {"sampling", "scoring"}
        seen = {}
        decisions = policy.act(episodes, [episode.sample.prompt for episode in episodes])
        seen["rollout"] = sum(SYNCS.values())
        now = policy.evaluate(decisions)
        (now.logprobs * now.mask).sum().backward()
    return {"mismatches": dict(MISMATCHES), "syncs": seen | {"all": dict(SYNCS)}, "tokens": 20}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
