"""One decoded token: CUDA graphs, sampling."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from vlrl.policies import fused_modules
from vlrl.policies.fused_modules import head_norms, one_token, product_type, rotated, signed
from vlrl.policies.prefix_sharing import through

# A step's operations recorded once and replayed: as CUDA graphs, whose tokens cost the host one call each.
#
# Not yet exercised on a GPU: written against torch's documented interface, and tested on a CPU with a recorder that
# keeps the same rules (bench/speed/gpu_recorder.py). So the first record of a policy is compared with the step itself,
# and whatever fails, the caller goes on with that, from the state before.

TOLERANCE = 0.01  # nats: the same kernels give the same values
TWICE = range(2)  # a number of the host that was recorded is wrong from the second step on
Step = Callable[[], None]


class GraphRecorder(Protocol):
    """Records for one rollout: `Cuda`, or what stands for it."""

    def warm(self, step: Step) -> None:
        """Runs the step where it is to be recorded: a first run allocates and chooses what later ones use."""

    def record(self, step: Step) -> Step:
        """The same operations on the same tensors, to be run any number of times; they need not run now."""


class Cuda:
    """CUDA graphs, one after the other, in the same memory."""

    def __init__(self, device: torch.device):
        self.device, self.stream, self.pool = device, _stream(device), torch.cuda.graph_pool_handle()
        self._last: torch.cuda.CUDAGraph | None = None  # a pool can be shared for as long as one of its graphs lives

    def warm(self, step: Step) -> None:
        now = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(now)
        try:
            with torch.cuda.stream(self.stream):
                step()
        finally:
            now.wait_stream(self.stream)

    def record(self, step: Step) -> Step:
        graph, now = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        # `torch.cuda.graph` leaves its stream the current one where it fails: hence the stream around it.
        # Other threads may do as they like meanwhile: NCCL's watches, a loader copies.
        with (
            torch.cuda.stream(now),
            torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"),
        ):
            step()
        self._last = graph
        return graph.replay


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all records: every stream that multiplies gets a workspace of its own, for good."""
    return torch.cuda.Stream(device)


RECORDERS: dict[str, Callable[[torch.device], GraphRecorder]] = {"cuda": Cuda}  # by type of device


class Graphs:
    """Records a policy's steps; says so in one line and records no more where that fails. `off`: why."""

    def __init__(self, device: torch.device):
        self.device, self.off, self.recorded = device, None, 0
        self._recorder: GraphRecorder | None = None

    @contextlib.contextmanager
    def rollout(self) -> Iterator[None]:
        """Memory of records is held while inside: between rollouts training has it, and weights may move."""
        try:
            yield
        finally:
            self._recorder = None

    def record(self, step: Step, state: Sequence[Tensor], obstacle: str | None = None) -> Step | None:
        """A step to be replayed, or None: it cannot be recorded.

        Args:
            state: what the step changes and reads again, which is left as it is.
            obstacle: why this step is not to be recorded.
        """
        if self.device.type not in RECORDERS:
            obstacle = f"there are none on the device {self.device.type}"
        if self.off is None and obstacle:
            self._end(obstacle)
        if self.off is not None:
            return None
        before = [part.clone() for part in state]
        try:
            return self._record(step, state, before)
        except Exception as error:  # whatever it is, there is another way to write tokens
            while error.__context__:  # the first failure; those that follow only say that recording was interrupted
                error = error.__context__
            self._end(f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}")
            return None
        finally:
            _put(state, before)

    def _record(self, step: Step, state: Sequence[Tensor], before: Sequence[Tensor]) -> Step | None:
        self._recorder = self._recorder or RECORDERS[self.device.type](self.device)
        self._recorder.warm(step)
        replay = self._recorder.record(step)
        if not self.recorded and not _agree(replay, step, state, before):
            self._end("a replayed step did not write what the step itself writes")
            return None
        self.recorded += 1
        return replay

    def _end(self, reason: str) -> None:
        self.off = reason
        print(f"\nvlrl: policy.cuda_graphs: {reason}; tokens are written without from here on", file=sys.stderr)


def _agree(one: Step, other: Step, state: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    """Whether two ways to step come to the same state."""
    results = []
    for step in (one, other):
        _put(state, before)
        for _ in TWICE:
            step()
        results.append([part.clone() for part in state])
    return all(_same(*pair) for pair in zip(*results, strict=True))


def _same(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=0, atol=TOLERANCE)  # NaN is like nothing


def _put(state: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for part, value in zip(state, values, strict=True):
        part.copy_(value)


# One more token through the language model's layers, called part by part.
#
# A token of a small model, or of a large one on a fast GPU, costs what its operations cost to start: here are the
# fewest.
# On a CPU the matrices are copied for a rollout, those that read the same beside each other, as products of a few rows
# read them fastest: half the time.


@dataclass(frozen=True, eq=False)
class RotaryAngles:
    """Rotary angles of text, sines with their sign (`kernels.signed`): [positions, heads and key heads, D].

    Those of queries are scaled as scores are to be.
    """

    cos: Tensor
    sin: Tensor

    def at(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Of positions [R]: [R, 1, heads and key heads, D] each."""
        return self.cos[position][:, None], self.sin[position][:, None]


class Layers:
    """The language model's layers for one token after another, as their weights are now.

    Args:
        positions: at which tokens may stand.
        like: a tensor of the type and device that hidden states have.
    """

    def __init__(self, base: nn.Module, positions: int, like: Tensor):
        self.base, layers = base, base.model.language_model.layers
        self.open = all(map(_open, layers))
        if not self.open:
            return
        self.turn = _turn(base, positions, like)
        alone = like.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        linear = all(type(part) is nn.Linear and not _has_hooks(part) for layer in layers for part in _matrices(layer))
        self.layers = [(Copied if alone and linear else Called)(layer) for layer in layers]

    @property
    def obstacle(self) -> str | None:
        """Why a record of the operations would not do what calling the layers does; None: it would."""
        if not self.open:
            return "the model's layers are not of the known form"
        parts = (*self.base.model.language_model.layers, self.base.model.language_model.norm, self.base.lm_head)
        hooked = any(map(_has_hooks, (module for part in parts for module in part.modules())))
        return "hooks hang on the model's layers" if hooked else None

    def forward(self, token: Tensor, position: Tensor, cache: Any) -> Tensor:
        """Hidden states [R, w, H] of tokens [R, w] at positions [R]. cache: `generation.CompletionRows`."""
        hidden = self.base.get_input_embeddings()(token).detach()  # peft makes it require a gradient
        if not self.open:
            return through(self.base, hidden, position[:, None].expand(3, *token.shape), None, cache)
        turn = self.turn.at(position)
        for number, layer in enumerate(self.layers):
            hidden = layer.attend(hidden, turn, cache, number).add_(hidden)
            hidden = layer.think(hidden).add_(hidden)
        return self.base.model.language_model.norm(hidden)


def _open(layer: nn.Module) -> bool:
    """Whether a layer is of the known form, and nothing hangs on its being called."""
    return fused_modules.known(layer) and not any(map(_has_hooks, (layer, layer.self_attn, layer.mlp)))


def _has_hooks(module: nn.Module) -> bool:
    """Whether hooks hear of the module's being called."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _matrices(layer: nn.Module) -> list[nn.Module]:
    attn, mlp = layer.self_attn, layer.mlp
    return [attn.q_proj, attn.k_proj, attn.v_proj, attn.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj]


def _turn(base: nn.Module, positions: int, like: Tensor) -> RotaryAngles:
    language = base.model.language_model
    every = torch.arange(positions, device=like.device).expand(3, 1, -1)
    cos, sin = (each[0] for each in language.rotary_emb(like.float(), every))
    attn, config = language.layers[0].self_attn, language.config
    scale = cos.new_ones(config.num_attention_heads + config.num_key_value_heads, 1)
    scale[: config.num_attention_heads] = attn.scaling
    return RotaryAngles(cos[:, None] * scale, signed(sin)[:, None] * scale)


class Called:
    """A layer whose modules are called: adapters, types and hooks of theirs are their own affair."""

    def __init__(self, layer: nn.Module):
        self.layer, self.attn, self.mlp = layer, layer.self_attn, layer.mlp

    def attend(self, hidden: Tensor, turn: tuple[Tensor, Tensor], cache: Any, number: int) -> Tensor:
        attn, x = self.attn, self.layer.input_layernorm(hidden).to(product_type(hidden))
        heads = (*x.shape[:2], -1, attn.head_dim)
        query, key, value = (part(x).view(heads) for part in (attn.q_proj, attn.k_proj, attn.v_proj))
        if norms := head_norms(attn):
            query, key = norms[0](query), norms[1](key)
        return attn.o_proj(_attended(torch.cat([query, key], 2), value, turn, cache, number))

    def think(self, hidden: Tensor) -> Tensor:
        x, mlp = self.layer.post_attention_layernorm(hidden).to(product_type(hidden)), self.mlp
        return mlp.down_proj(silu(mlp.gate_proj(x)).mul_(mlp.up_proj(x)))


class Copied:
    """A layer whose matrices have been copied, transposed."""

    def __init__(self, layer: nn.Module):
        attn, mlp = layer.self_attn, layer.mlp
        self.first, self.second = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self.qkv, self.bias = _fuse_linears(attn.q_proj, attn.k_proj, attn.v_proj)
        self.gates, self.gates_bias = _fuse_linears(mlp.gate_proj, mlp.up_proj)
        (self.out, self.out_bias), (self.down, self.down_bias) = (
            _fuse_linears(attn.o_proj),
            _fuse_linears(mlp.down_proj),
        )
        self.size, self.values = attn.head_dim, attn.v_proj.out_features // attn.head_dim
        self.norms = head_norms(attn)

    def attend(self, hidden: Tensor, turn: tuple[Tensor, Tensor], cache: Any, number: int) -> Tensor:
        projected = _product(self.first(hidden), self.qkv, self.bias)
        projected = projected.view(*hidden.shape[:2], -1, self.size)
        both, value = projected[:, :, : -self.values], projected[:, :, -self.values :]
        if self.norms:
            query, key = both.split([both.shape[2] - self.values, self.values], 2)
            both = torch.cat([self.norms[0](query), self.norms[1](key)], 2)
        return _product(_attended(both, value, turn, cache, number), self.out, self.out_bias)

    def think(self, hidden: Tensor) -> Tensor:
        gate, up = _product(self.second(hidden), self.gates, self.gates_bias).chunk(2, -1)
        return _product(silu(gate).mul_(up), self.down, self.down_bias)


class _Norm:
    """An RMS norm of few rows, in fewer operations than torch's own."""

    def __init__(self, norm: nn.Module):
        size = len(norm.weight)
        self.weight, self.least = norm.weight * size**0.5, norm.variance_epsilon * size

    def __call__(self, x: Tensor) -> Tensor:
        scale = (x * x).sum(-1, True).add_(self.least).rsqrt_()
        return (x * scale).mul_(self.weight)


def _fuse_linears(*parts: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """The parts as one matrix [in, out of them all], and their biases."""
    bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
    return torch.cat([part.weight for part in parts]).t().contiguous(), bias


def _product(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    rows = x.flatten(0, 1)
    result = rows @ matrix if bias is None else torch.addmm(bias, rows, matrix)
    return result.view(*x.shape[:2], -1)


def _attended(both: Tensor, value: Tensor, turn: tuple[Tensor, Tensor], cache: Any, number: int) -> Tensor:
    """What w new tokens of R prompts see, [R, w, heads * D].

    Args:
        both: queries and keys [R, w, heads and key heads, D], which are turned in place.
        value: [R, w, key heads, D]
    """
    kv = value.shape[2]
    query, key = rotated(both, *turn).split([both.shape[2] - kv, kv], 2)
    keys, values = cache.update(key.transpose(1, 2), value.transpose(1, 2), number)
    return one_token(query.transpose(1, 2), keys, values, None).flatten(2)
