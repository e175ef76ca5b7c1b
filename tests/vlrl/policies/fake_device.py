"""A fake accelerator: a torch device whose tensors live on the CPU, and which notes what a real one would refuse.

Every operation on its tensors is looked at before it runs on the CPU: one that takes a tensor of the host beside one of
the device (`mismatches`: an error on a GPU), and one whose result the host waits for (`synchronisations`). It knows
nothing of kernels, streams or precision.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections import Counter
from typing import Any, ClassVar

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map

NAME = "fake"
aten = torch.ops.aten
# operations that may mix devices: copies between them, indices and scalars of the host
MIXING = {
    aten._to_copy.default, aten.copy_.default, aten.index.Tensor, aten.index_put.default, aten.index_put_.default,
    aten._index_put_impl_.default, aten.set_.source_Tensor,
}  # fmt: skip
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
# operations whose result, or its shape, the host must know
WAITING = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten._unique2.default,
    aten.equal.default, aten.repeat_interleave.Tensor,
}  # fmt: skip


class _Module(backend_registration._DummyBackendModule):
    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class DeviceTensor(torch.Tensor):
    """A tensor of the device; `host` holds its numbers."""

    host: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> DeviceTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls, host.shape, strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
            device=torch.device(NAME, 0),
        )  # fmt: skip
        made.host = host
        return made

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: DeviceTensor) -> None:  # as a frozen weight is narrowed
        torch.Tensor.data.__set__(self, value)
        self.host = value.host

    def __format__(self, spec: str) -> str:
        FakeDevice.note("synchronisations", "format")
        return format(self.host, spec)

    def __repr__(self, **options: Any) -> str:
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"

    def tolist(self) -> Any:
        FakeDevice.note("synchronisations", "tolist")
        return self.host.tolist()

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return _run(func, args, kwargs or {})


class FakeDevice(TorchDispatchMode):
    """While inside, the device is there, and what happens on it is counted by operation and line."""

    mismatches: ClassVar[Counter[str]] = Counter()
    synchronisations: ClassVar[Counter[str]] = Counter()
    operations = 0

    @staticmethod
    def reset() -> None:
        FakeDevice.mismatches, FakeDevice.synchronisations, FakeDevice.operations = Counter(), Counter(), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return _run(func, args, kwargs or {})

    @staticmethod
    def note(kind: str, what: str) -> None:
        getattr(FakeDevice, kind)[f"{what} at {_line()}"] += 1


def _line() -> str:
    """The innermost line of the product, else of transformers."""
    frames = traceback.extract_stack()
    for package in ("/vlrl/", "/transformers/", "/torch/"):
        for frame in reversed(frames):
            if package in frame.filename and "fake_device" not in frame.filename and "/tests/" not in frame.filename:
                return f"{frame.filename.rpartition(package)[2]}:{frame.lineno}"
    return "?"


def _run(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    tensors = [x for x in tree_iter((args, kwargs)) if isinstance(x, torch.Tensor)]
    own = [x for x in tensors if isinstance(x, DeviceTensor)]
    foreign = [x for x in tensors if not isinstance(x, DeviceTensor) and x.ndim > 0]
    target = kwargs.get("device")
    target = None if target is None else torch.device(target).type
    if own:
        _inspect(func, own, foreign, target, args)
    if own or target == NAME:
        FakeDevice.operations += 1
    host_args, host_kwargs = tree_map(_to_host, (args, kwargs))
    if host_kwargs.get("pin_memory"):
        host_kwargs["pin_memory"] = False
    with _disable_current_modes():
        result = func(*host_args, **host_kwargs)
    if func._schema.is_mutable:  # in place, or into `out`
        changed = args[0] if args and isinstance(args[0], torch.Tensor) else kwargs.get("out")
        return changed if not isinstance(result, tuple | list) else _wrap(result)
    on_device = target == NAME or (bool(own) and target is None)
    return _wrap(result) if on_device else result


def _inspect(func: Any, own: list, foreign: list, target: str | None, args: tuple) -> None:
    if foreign and func not in MIXING:
        FakeDevice.note("mismatches", f"{func} with the host's {tuple(foreign[0].shape)}")
    to_host = func is aten._to_copy.default and target == "cpu"
    to_host |= func is aten.copy_.default and not isinstance(args[0], DeviceTensor)
    masks = func in INDEXING and any(isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in args[1])
    if func in WAITING or to_host or masks or (func in INDEXING and foreign):
        FakeDevice.note("synchronisations", str(func))


def _to_host(x: Any) -> Any:
    if isinstance(x, DeviceTensor):
        return x.host
    return torch.device("cpu") if isinstance(x, torch.device) else x


def _wrap(x: Any) -> Any:
    return tree_map(lambda v: DeviceTensor(v) if type(v) is torch.Tensor else v, x)


def _autocast() -> list[torch.library.Library]:
    """Products in the narrow type and sums in the wide one, as CUDA's autocast has them."""
    own, rest = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    key = "AutocastPrivateUse1"
    off = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def cast(name: str, kind: torch.dtype) -> None:
        op = getattr(getattr(aten, name.split(".")[0]), name.split(".")[1])
        floats = (torch.float32, torch.bfloat16)

        def narrowed(x: Any) -> Any:
            return x.to(kind) if isinstance(x, torch.Tensor) and x.dtype in floats and x.dtype != kind else x

        def call(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(off):
                return op(*tree_map(narrowed, args), **tree_map(narrowed, kwargs))

        own.impl(name.removesuffix(".default"), call, key)

    for name in ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention", "einsum"):
        cast(f"{name}.default", torch.bfloat16)
    for name in ("rsqrt.default", "exp.default", "pow.Tensor_Scalar", "cumsum.default", "log.default"):
        cast(name, torch.float32)
    rest.fallback(torch.library.fallthrough_kernel, key)
    return [own, rest]


def register() -> list[torch.library.Library]:
    """Makes the device known to this process, for good; what is returned must be kept."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, _Module())
    torch._C._set_only_lift_cpu_tensors(True)
    return _autocast()


def make_samples(content: str) -> list[Any]:
    """Two samples that show an image, a video, or a conversation's beginning."""
    import numpy as np
    from PIL import Image

    from vlrl.types import Message, Observation, Sample, Video

    rng, samples = np.random.default_rng(0), []
    for i in range(2):
        frames = rng.integers(0, 256, (4, 32, 32 + 32 * i, 3), np.uint8)
        medium = Video(frames, (0.0, 0.5, 1.0, 1.5), 2.0, 2.0) if content == "video" else Image.fromarray(frames[0])
        shown = Observation((medium, "Go"))
        samples.append(
            Sample(
                f"s/{i}", shown if content != "talk" else Observation.from_messages([Message("user", shown.content)])
            )
        )
    return samples


def play(policy: Any, samples: list[Any], size: int, content: str) -> list[Any]:
    """The decisions of a rollout: one turn, or of a conversation two."""
    from vlrl.types import Episode, Step, Turn

    episodes = [Episode(sample, i, stream=(i, j)) for i, sample in enumerate(samples) for j in range(size)]
    decisions = []
    for _ in range(2 if content == "talk" else 1):
        observations = [episode.sample.prompt for episode in episodes]  # of a conversation the image comes again
        made = policy.act(episodes, observations, keep=policy.shared_prefix)
        for episode, observation, decision in zip(episodes, observations, made, strict=True):
            episode.turns.append(Turn(observation, decision, Step(observation)))
        decisions += made
    return decisions


def main(folder: str, shared: str, lora: str, group_size: str, content: str) -> None:
    """A GRPO step's device work of the model in a folder: rollout, update, optimizer. Prints what was noted."""
    kept = register()
    from vlrl.config import PolicySection
    from vlrl.policies.loading import load

    torch.inference_mode = torch.no_grad  # tensors made in that mode skip the dispatch that is watched
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    adapters = {"rank": 4} if lora == "lora" else None
    section = PolicySection(model=folder, max_tokens=TOKENS, dtype="bfloat16", lora=adapters)
    with FakeDevice() as watch:
        policy: Any = load(section, shared_prefix=shared == "auto", device=NAME)
        samples = make_samples(content)
        optimizer = torch.optim.SGD([p for p in policy.model.parameters() if p.requires_grad], 1e-3)
        for _ in range(2):  # the first verifies its own paths
            watch.reset()
            decisions = play(policy, samples, int(group_size), content)
            policy.prepare(samples, range(len(samples)))
            now = policy.evaluate(decisions)
            now.logprobs.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        counts = {"mismatches": dict(watch.mismatches), "synchronisations": dict(watch.synchronisations),
                  "operations": watch.operations, "device": str(now.logprobs.device), "shared": policy.shared_prefix,
                  "tokens": max(len(d.inputs.tokens) for d in decisions)}  # fmt: skip
    print(json.dumps(counts))
    del kept


TOKENS = 16

if __name__ == "__main__":
    main(*sys.argv[1:])
