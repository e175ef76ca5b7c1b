"""A recorder of steps on a CPU with the rules of CUDA graphs: `bench/speed.py gpu --device cpu` and tests use it.

It keeps every operation with the tensors that it was given, as they lie in memory, and runs these again. As on a GPU,
numbers of the host are those of the recording, what asks for a tensor's values is refused, and what a step leaves in
memory of its own is nobody's: it is overwritten with nonsense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vlrl.policies import decode_step

ASKS = ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal", "unique", "isin")
Step = Callable[[], None]


class Tape(TorchDispatchMode):
    """Every operation inside, with its tensors; it runs while it is recorded, which CUDA's does not."""

    def __init__(self):
        super().__init__()
        self.taken: list[tuple[Callable, tuple, dict, list[Tensor], list[bool]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        places = args[1] if name in ("index", "index_put", "index_put_", "_index_put_impl_") else ()
        if name.startswith(ASKS) or any(part is not None and part.dtype == torch.bool for part in places):
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        made = func(*args, **kwargs)
        before = {part.untyped_storage().data_ptr() for part in given}
        found = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        fresh = [part.untyped_storage().data_ptr() not in before for part in found]
        self.taken.append((func, args, kwargs, found, fresh))
        return made

    def replay(self) -> None:
        for func, args, kwargs, found, fresh in self.taken:
            made = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)]
            for old, new, own in zip(found, made, fresh, strict=True):
                if own:
                    old.copy_(new)
        for part in self.own():
            part.fill_(float("nan") if part.is_floating_point() else 1)

    def own(self) -> Iterator[Tensor]:
        """What lies in memory of the record."""
        for *_, found, fresh in self.taken:
            yield from (part for part, own in zip(found, fresh, strict=True) if own)


class Taped:
    """`vlrl.policies.decode_step.GraphRecorder` on a CPU."""

    def __init__(self, device: torch.device):
        self.device = device

    def warm(self, step: Step) -> None:
        step()

    def record(self, step: Step) -> Step:
        with Tape() as tape:
            step()
        return tape.replay


def use() -> None:
    """Records on CPUs from here on."""
    decode_step.RECORDERS["cpu"] = Taped
