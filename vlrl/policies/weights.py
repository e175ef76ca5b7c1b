"""Weights of a policy: what is learned, shards, low-rank spectra."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed import barrier, get_rank
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from vlrl.policies.generation import bare, has_adapter
from vlrl.policies.prefix_sharing import Packed, Passes, PassKind
from vlrl.policies.processor import CODECS
from vlrl.types import UserError

# The weights of a model that train: to remember them, and to put others in their place for a while.


def find_moments(weights: Iterable[Tensor]) -> Tensor:
    """The sum and the sum of squares of N tensors, float64 [N, 2], on the CPU: a digest of all would have to leave the
    device, and those of parts add up."""
    sums = [torch.stack([each.sum(dtype=torch.float64), each.double().square().sum()]) for each in weights]
    return torch.stack(sums).cpu()


def name_moments(sums: Tensor) -> str:
    """A name for weights, by what `find_moments` says of them."""
    return hashlib.sha256(sums.numpy().tobytes()).hexdigest()[:12]


def learned(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the parameters that train, by name, where they lie."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def put(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Writes values into the parameters of their names."""
    named = dict(model.named_parameters())
    for name, value in weights.items():
        named[name].copy_(value)


@contextmanager
def swapped(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """The model with other values in the parameters that train, while inside."""
    own = learned(model)
    put(model, weights)
    try:
        yield
    finally:
        put(model, own)


def acts(adapted: nn.Module) -> bool:
    """Whether any low-rank adapter of a model changes what it computes: a new one's factor B is 0."""
    return any(bool(p.any()) for name, p in adapted.named_parameters() if "lora_B" in name)


# A vision-language model's language weights in parts over processes: torch's FSDP2, as the trainer uses it.
#
# The tower stays whole: only prompts with pictures go through it, and a pass that some processes make and others do not
# would never end. It has 0.7 of 3 to 72 billion parameters, and mostly it is frozen.


def split(policy: Any, processes: int) -> Sequence[FSDPModule]:
    """Leaves this process a part of the weights; the modules that can gather and part with the rest, inner ones first.

    Layers are gathered one at a time, the embeddings and the head for a whole pass. Passes are made in `policy.dtype`,
    gradients summed in float32, by torch, while the backward pass goes on.

    Raises:
        UserError: the model is of a family whose layers are not known here.
    """
    parts = split_scorer(policy.scorer, policy.autocast, policy.device.type, processes)
    policy.one_pass = True
    with torch.no_grad():
        nothing(policy, policy.scorer)  # the first pass decides which module is the outermost
    return parts


def layers_of(scorer: Any) -> Sequence[Any]:
    """The modules of a scorer that gather their weights where it is split, inner ones first."""
    base: Any = bare(scorer.model)
    return *base.model.language_model.layers, scorer


def split_scorer(
    scorer: Any, products: torch.dtype | None, device: str, processes: int
) -> Sequence[FSDPModule]:  # fmt: skip
    """As `split`, of one `TokenScorer`. products: the type in which passes are made; None: the weights' own."""
    base: Any = bare(scorer.model)
    if base.config.model_type not in CODECS:
        raise UserError(
            f"accelerate launch: FSDP parts models of {' and '.join(CODECS)}, not {base.config.model_type}: use "
            "--multi_gpu, with policy.lora where memory is short"
        )
    mesh = init_device_mesh(device, (processes,))
    kinds = MixedPrecisionPolicy(products, torch.float32, cast_forward_inputs=False)
    tower, parts = set(base.model.visual.parameters()), layers_of(scorer)
    for module in parts:
        fully_shard(module, mesh=mesh, mp_policy=kinds, ignored_params=tower)
    for module in parts:  # weights of all processes' units sum to 1: gradients are added, not averaged
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo knows no other sum
    # By itself FSDP2 gathers ahead what a forward pass came through before, of rollouts too, which are not alike here.
    for before, layer in zip((parts[0], *parts), parts[:-1], strict=False):
        layer.set_modules_to_backward_prefetch([before])
    return parts


def nothing(policy: Any, scorer: Any) -> torch.Tensor:
    """A pass through all of the language model, of one token; its gradient is 0."""
    empty = torch.zeros(1, 1, dtype=torch.int64)
    place, target = torch.tensor([0]), torch.tensor([policy.codec.stop_ids[0]])
    packed = Packed(empty, empty.int(), empty.repeat(3, 1, 1), None, None, None, place, target)
    with policy.precision():
        logprobs, _ = scorer(packed.to(policy.device))
    return 0 * logprobs.sum()


class JointPasses(Passes):
    """Passes through weights in parts: all processes make each of them, those that have nothing to pass an empty one.

    Before each pass every process says of which weights it is to be, by one sum of a few numbers; who has ended its own
    keeps the others company in `join`. So processes may have unequal episodes, turns and lengths.

    Args:
        total: the sum of a tensor over all processes, in place.
        build: a split scorer as the policy's, without values (`vlrl.policies.loading`).
        device: where the weights are to lie.
    """

    in_parts = True
    kinds: tuple[PassKind, ...] = ("policy", "reference")

    def __init__(
        self, policy: Any, total: Callable[[Tensor], Tensor], build: Callable[[], Any], device: str
    ):  # fmt: skip
        self._policy, self._total, self._build, self._device = policy, total, build, device
        self._reference: Any = None

    def fill(self, folder: Path) -> None:
        """Gives the policy, split and without values, its memory and weights. UserError as `read_parts`."""
        policy = self._policy
        allocate(policy.scorer, self._device)
        policy.scorer.banned.copy_(torch.tensor(policy.codec.banned_ids))
        policy.work.device = str(policy.device)
        read_parts(bare(policy.model), folder)
        self.settle()

    def run[T](self, kind: PassKind, forward: Callable[[], T]) -> T:
        due = self._find_due(kind)
        for before in due[: due.index(kind)]:
            self._accompany(before)
        result = self.make(forward, lambda: self._make_empty(kind))
        for behind in due[due.index(kind) + 1 :]:
            self._accompany(behind)
        return result

    @torch.no_grad()
    def join(self) -> None:
        while due := self._find_due(None):
            for kind in due:
                self._accompany(kind)

    def check_whole(self, what: str) -> None:
        raise UserError(
            f"{what} reads whole weights, which no process has with FSDP2 and an engine elsewhere: leave it out, or "
            "use policy.engine: local"
        )

    def freeze(self, scorer: Any) -> nn.Module:
        """A second model in parts; every process copies its own."""
        self._reference = self._build()
        self._reference.hidden = lambda *rows: scorer.hidden(*rows)  # in slices, once it is
        allocate(self._reference, self._device)
        self._reference.banned.copy_(scorer.banned)
        for module in layers_of(scorer):
            module.reshard()  # what a pass has gathered
        put(self._reference.model, {name: value.detach() for name, value in scorer.model.named_parameters()})
        self._reference.set_reshard_after_forward(True)  # no backward pass comes
        return self._reference.requires_grad_(False).eval()

    @torch.no_grad()
    def settle(self) -> None:
        """After a change of the weights: gives them a name that all processes know, and the engine takes them."""
        policy = self._policy
        weights = [p.detach() for p in policy.model.parameters() if p.requires_grad]
        rows, sums = torch.tensor([isinstance(p, DTensor) for p in weights]), find_moments(map(local, weights))
        sums[rows] = self._total(sums[rows])
        policy.version = name_moments(sums)
        if policy.engine is not None:
            policy.engine.publish()

    def _find_due(self, own: PassKind | None) -> list[PassKind]:
        """The kinds of pass that any process is to make next, in an order that is the same in all."""
        counts = self._total(torch.tensor([float(kind == own) for kind in self.kinds]))
        return [kind for kind, count in zip(self.kinds, counts.tolist(), strict=True) if count]

    def _accompany(self, kind: PassKind) -> None:
        self.make(lambda: self._make_empty(kind), lambda: self._make_empty(kind))

    def _make_empty(self, kind: PassKind) -> None:
        nothing(self._policy, self._policy.scorer if kind == "policy" else self._reference)


# Files of weights in parts: each process reads and writes its own, and none ever holds a whole model.


def allocate(scorer: Any, device: str) -> None:
    """Gives a split scorer without values memory for its part."""
    scorer._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t.to(device))
    base: Any = bare(scorer.model)
    base.tie_weights()


@torch.no_grad()
def read_parts(base: Any, folder: Path) -> None:
    """Reads a model's weights, of each tensor the rows alone that lie in this process.

    Raises:
        UserError: the folder's safetensors files are not this model's.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    named = dict(base.named_parameters(remove_duplicate=False))
    transforms = get_model_conversion_mapping(base)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    complete: set[Tensor] = set()
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as values:
            for key in values.keys():  # noqa: SIM118, it is no dict
                name = rename_source_key(key, renamings, [], base.base_model_prefix, named)[0]
                value = values.get_slice(key)
                if name not in named or list(named[name].shape) != value.get_shape():
                    raise UserError(f"the weights in {folder} do not fit their configuration: {key}")
                _copy_rows(named[name], value)
                complete.add(named[name])
    missing = [name for name, value in named.items() if value not in complete]
    if missing:
        raise UserError(f"the weights in {folder} do not fit their configuration: {missing[0]} is missing")


def _copy_rows(parameter: Tensor, value: Any) -> None:
    """A slice of a file into a parameter: its own rows, where it lies in parts."""
    if not isinstance(parameter, DTensor):
        parameter.copy_(value[:])
        return
    local = parameter.to_local()
    if len(local):
        _, (first, *_) = compute_local_shape_and_global_offset(
            parameter.shape, parameter.device_mesh, parameter.placements
        )
        local.copy_(value[first : first + len(local)])


PUT_TOGETHER = "model-00001-of-00001.safetensors"  # as torch names the joined file


def write_parts(values: Mapping[str, Tensor], file: Path) -> None:
    """One safetensors file of tensors, called by all processes: each writes its part, then the first joins the files.

    By torch.distributed.checkpoint. Tensors that are whole everywhere are the first process's.

    Raises:
        OSError: in every process, where one could not write.
    """
    import torch.distributed.checkpoint as dcp  # takes seconds

    own = {name: value for name, value in values.items() if isinstance(value, DTensor) or get_rank() == 0}
    work = file.with_name(f".{file.name}.parts")
    writer = dcp.HuggingFaceStorageWriter(str(work), save_distributed=True, enable_consolidation=True)
    try:
        dcp.save(own, storage_writer=writer)
    except dcp.CheckpointException as error:
        raise OSError("; ".join(f"process {rank}: {cause}" for rank, (cause, _) in error.failures.items())) from None
    if get_rank() == 0:
        (work / PUT_TOGETHER).replace(file)
        shutil.rmtree(work)
    barrier()


def save_parts(model: Any, folder: Path) -> None:
    """As `save_pretrained`, of weights in parts; called by all processes. Of an adapter, which is small, at once."""
    from transformers.core_model_loading import revert_weight_conversion

    first = get_rank() == 0
    if has_adapter(model):
        parts = {name: value for name, value in model.state_dict(keep_vars=True).items() if "lora_" in name}
        whole = {name: gather(value.detach()) for name, value in parts.items()}
        if first:
            model.save_pretrained(folder, safe_serialization=True, state_dict=whole)
        return barrier()
    if first:
        model.save_pretrained(folder, safe_serialization=True, state_dict={})  # all but the weights
    write_parts(revert_weight_conversion(model, dict(model.named_parameters())), folder / "model.safetensors")


def local(value: Tensor) -> Tensor:
    """This process's part."""
    return value.to_local() if isinstance(value, DTensor) else value


def gather(value: Tensor) -> Tensor:
    """A tensor whole, on the CPU. Called by all processes."""
    return (value.full_tensor() if isinstance(value, DTensor) else value).cpu()


# Low-rank adapters by their singular values alone: what gradient-free training changes.


class Spectrum:
    """The singular values of every factor A and B of a model's adapters, which may be set; directions stay.

    `B = U_B S_B V_B^T`, `A = U_A S_A V_A^T`, each by itself (ESSA, arXiv 2507.04453). A factor of zeros, as B is in an
    adapter that has not been trained, gets directions at random: U_B has orthonormal columns, V_B is the identity.
    """

    def __init__(self, model: nn.Module, seed: int):
        self.factors = {n: p for n, p in model.named_parameters() if "lora_A." in n or "lora_B." in n}
        generator = torch.Generator().manual_seed(seed)
        decompositions = [decomposed(factor, generator) for factor in self.factors.values()]
        self.sides = {n: (u, v) for n, (u, _, v) in zip(self.factors, decompositions, strict=True)}
        self.start = (
            torch.cat([values for _, values, _ in decompositions]).double().numpy() if decompositions else np.zeros(0)
        )

    @torch.no_grad()
    def become(self, values: np.ndarray) -> None:
        """Sets all singular values, float64 [n], in the order of `start`; they may be negative."""
        sizes = [len(v) for _, v in self.sides.values()]
        parts = torch.from_numpy(values).float().split(sizes)
        for (name, (u, v)), part in zip(self.sides.items(), parts, strict=True):
            self.factors[name].copy_((u * part) @ v)

    def state_dict(self) -> dict[str, Any]:
        return {name: {"u": u, "v": v} for name, (u, v) in self.sides.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sides = {name: (part["u"], part["v"]) for name, part in state.items()}


def decomposed(factor: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """U [m, r], singular values [r] and V^T [r, n] of a factor [m, n], float32 on the CPU; r is the smaller side."""
    matrix = factor.detach().float().cpu()
    if matrix.any():
        return torch.linalg.svd(matrix, full_matrices=False)
    m, n = matrix.shape
    directions = torch.linalg.qr(torch.randn(max(m, n), min(m, n), generator=generator))[0]
    identity = torch.eye(min(m, n))
    return (directions, torch.zeros(n), identity) if m >= n else (identity, torch.zeros(m), directions.T)
