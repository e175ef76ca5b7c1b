"""What a step costs of a model whose sizes nobody has written down: the policy's own passes on tensors without numbers.

Floating-point tensors have a shape and a type and no memory (torch's fake tensors); integers, which say how long rows
are and where images stand, are computed. So any architecture that transformers or the user's code builds can be
planned from its configuration, in seconds, whatever its size.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from vlrl.performance.memory import FOUR_BIT, StepCost, count_launches
from vlrl.policies.cache_forking import fork_cache, parameters
from vlrl.policies.generation import bare, has_adapter
from vlrl.policies.lerobot import VLM_FOLDER, adapt_lerobot
from vlrl.policies.lerobot_flow import LerobotFlowPolicy, write_vlm
from vlrl.policies.loading import EMBEDDED, FROZEN, load_sizes
from vlrl.policies.plain import Text, stack_rows
from vlrl.policies.processor import Prompt, first_line
from vlrl.types import UserError

if TYPE_CHECKING:
    from vlrl.config import PolicySection

aten: Any = torch.ops.aten
# attention of a CPU, which torch's registry lacks: where its queries stand, and products of scores' size
ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: (0, 2),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (1, 5),
}
INDEXED = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)


class LiveTensors(TorchDispatchMode):
    """Bytes of all tensors that are alive, and the most that there have been since `restart`."""

    def __init__(self, tensors: Iterable[Tensor] = ()):
        super().__init__()
        self.now = self.most = 0
        self._known = WeakIdKeyDictionary()
        for tensor in tensors:
            self.count(tensor)

    def count(self, tensor: Tensor) -> None:
        """Counts a tensor's memory, once for all views of it, until it is freed."""
        storage = tensor.untyped_storage()
        if storage not in self._known:
            self._known[storage] = size = storage.nbytes()
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.now -= size

    def restart(self) -> None:
        self.most = self.now

    def compute(self, function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return function(*arguments, **options)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = self.compute(func, args, kwargs or {})
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.count(leaf)
        return out


class DryRun(LiveTensors):
    """Inside, floating-point tensors have no numbers. `flops`: of matrices and attention, as they would be computed.

    What integers follow from numbers that are not there (an expert that a router chooses, a token) are zeros.
    """

    def __init__(self):
        super().__init__()
        self.flops = 0.0
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    def compute(self, function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        tensors = [leaf for leaf in tree_leaves((arguments, options)) if isinstance(leaf, Tensor)]
        if tensors and not any(map(_has_no_numbers, tensors)):
            out = function(*arguments, **options)
            return tree_map(self._without_numbers, out)
        if function is aten._local_scalar_dense.default:
            return 0.0
        if function in INDEXED:
            arguments = (arguments[0], _indices(arguments[1]), *arguments[2:])
        if function is aten._grouped_mm.default:
            out = self._grouped_product(arguments[0], arguments[1], *arguments[2:3])
        else:
            with self._fake:
                out = function(*arguments, **options)
        self._fake.fake_tensor_converter.meta_converter.tensor_memo.clear()  # weak references, with which none moves
        self._count_flops(function, arguments, options, out)
        if any(leaf is each for leaf in tree_leaves(out) for each in tensors):  # written to in place
            return out
        return tree_map(_computed, out)

    def _without_numbers(self, value: Any) -> Any:
        return self._fake.from_tensor(value) if isinstance(value, Tensor) and value.is_floating_point() else value

    def _grouped_product(self, one: Any, other: Any, offsets: Any = None) -> Tensor:
        """Products of experts, which torch sizes in bfloat16 only."""
        groups = () if one.ndim != other.ndim and 2 in (one.ndim, other.ndim) else (
            (len(offsets),) if one.ndim == 2 and offsets is not None else (one.shape[0],)
        )  # fmt: skip
        rows = one.shape[-2] if one.ndim == 2 or other.ndim == 3 else one.shape[1]
        self.flops += 2.0 * one.shape[-2] * one.shape[-1] * other.shape[-1] * (one.shape[0] if one.ndim == 3 else 1)
        with self._fake:
            return one.new_empty((*groups, rows, other.shape[-1]))

    def _count_flops(self, function: Any, arguments: Sequence[Any], options: dict[str, Any], out: Any) -> None:
        packet = function.overloadpacket
        if packet in flop_registry:
            self.flops += flop_registry[packet](*arguments, **options, out_val=out)
        elif packet in ATTENTION:
            first, products = ATTENTION[packet]
            query, key = arguments[first : first + 2]
            self.flops += 2.0 * products * query.numel() * key.shape[-2]


def _has_no_numbers(tensor: Tensor) -> bool:
    return isinstance(tensor, FakeTensor) or tensor.is_floating_point() or tensor.is_complex()


def _indices(given: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Masks as the indices that they stand for: their number is known, as integers are computed."""
    return [
        each
        for index in given
        for each in (index.nonzero().unbind(1) if index is not None and index.dtype == torch.bool else (index,))
    ]


def _computed(value: Any) -> Any:
    """Zeros for integers that would follow from numbers that are not there."""
    if not isinstance(value, FakeTensor) or value.is_floating_point() or value.is_complex():
        return value
    return torch.zeros(tuple(value.shape), dtype=value.dtype)


# A step of a policy of any model, as `vlrl.policies.plain` makes it.


@dataclass(frozen=True)
class StepSizes:
    """prompts: of a rollout; micro: of one forward pass with gradient; copies: completions of each prompt."""

    prompts: int
    micro: int
    copies: int
    tokens: int  # of a completion
    epochs: int = 1
    reference: bool = False  # whether its log-probabilities are computed
    states: float = 2.0  # numbers of the optimizer for a parameter, master weights included
    embedded_states: float = 2.0  # likewise of the embeddings
    held_out: int = 0  # prompts of an evaluation that are answered at once


class DryPolicy:
    """A policy whose weights have no numbers."""

    def __init__(self, section: PolicySection, shared_prefix: bool, mixed: bool):
        """mixed: whether products are made in bfloat16.

        Raises:
            UserError: as `vlrl.policies.loading.load`, of what a configuration shows.
        """
        self.live, self.quantised, self.width = DryRun(), 0, 2 if mixed else 4
        four_bit = section.load_in_4bit
        section = section.model_copy(update={"load_in_4bit": False})  # bitsandbytes has no layers without numbers
        self.policy = load_sizes(section, lambda: self.live, shared_prefix=shared_prefix, mixed=mixed)
        self.policy._verified |= {"prompt", "sampling"}  # there is nothing to compare
        self.model: Any = bare(self.policy.model)
        if four_bit:
            head = self.model.get_output_embeddings()
            linear = (m for m in self.model.modules() if isinstance(m, nn.Linear) and m is not head)
            self.quantised = sum(m.weight.numel() for m in linear if not m.weight.requires_grad)
        self._only_last = {"logits_to_keep": 1} if "logits_to_keep" in parameters(self.model) else {}

    def measure(self, prompts: Sequence[Prompt], sizes: StepSizes) -> StepCost:
        """A step on prompts like these.

        Raises:
            UserError: the model's forward pass follows numbers that are not there.
        """
        held = self.live.now
        self._flops = dict.fromkeys(("prefill", "decode", "forward", "backward"), 0.0)
        many = list(islice(cycle(prompts), sizes.prompts))
        try:
            evaluation = self._evaluate(prompts, sizes, held)
            rollout = self._roll_out([replace(prompt) for prompt in many], sizes, held)
            update = self._update([replace(prompt) for prompt in many[: sizes.micro]], sizes, held)
        except Exception as error:  # a model may do anything with its numbers
            if self.policy.shared_prefix:  # as where the policy itself finds no cache to be forked
                self.policy.shared_prefix = self.policy.use_cache = False
                return self.measure(prompts, sizes)
            raise UserError(
                f"policy.model: the forward pass of {type(self.model).__name__} cannot be planned, as it follows its "
                f"numbers: {first_line(error)}"
            ) from error
        always = self._find_held(held, sizes)
        phases = {"rollout": rollout, "update": update, "evaluation": evaluation}
        phase, parts = max(phases.items(), key=lambda each: sum(each[1].values()))
        self.policy.model.zero_grad(set_to_none=True)
        rounds = -(-sizes.prompts // sizes.micro) * sizes.epochs
        flops = self._flops | {"reference": self._flops["forward"] * sizes.reference}
        flops |= {name: flops[name] * rounds for name in ("forward", "backward")}
        flops["reference"] *= rounds / sizes.epochs
        weights = list(self.policy.model.parameters())
        total, trained = sum(p.numel() for p in weights), sum(p.numel() for p in weights if p.requires_grad)
        mode = "shared" if self.policy.shared_prefix else "naive"
        layers = self.model.config.get_text_config().num_hidden_layers
        launches = count_launches(layers, sizes.prompts * sizes.copies, sizes.tokens, self.policy.slots)
        memory = always | parts
        return StepCost(total, trained, self.width, mode, phase, memory, flops, self._decode_bytes, launches)

    def _find_held(self, weights: float, sizes: StepSizes) -> dict[str, float]:
        """What is there all the time, once parameters have their gradients."""
        learning = [p for p in self.policy.model.parameters() if p.grad is not None]
        words = self.model.get_input_embeddings().weight
        embedded = words.numel() if words.grad is not None else 0
        count = sum(p.numel() for p in learning)
        return {
            "weights": weights - self.quantised * (self.width - FOUR_BIT),
            "gradients": 0.0,
            "optimizer": 4 * (sizes.states * (count - embedded) + sizes.embedded_states * embedded),
            "reference": weights if sizes.reference and not has_adapter(self.policy.model) else 0.0,
        }

    def _evaluate(self, prompts: Sequence[Prompt], sizes: StepSizes, held: int) -> dict[str, float]:
        """Held-out prompts answered once each; its FLOPs are no part of a step."""
        if not sizes.held_out:
            return {}
        count = min(sizes.held_out, self.policy.slots or sizes.held_out)
        parts = self._roll_out([replace(p) for p in islice(cycle(prompts), count)], replace(sizes, copies=1), held)
        self._flops = dict.fromkeys(self._flops, 0.0)
        return parts

    def _roll_out(self, prompts: Sequence[Prompt], sizes: StepSizes, held: int) -> dict[str, float]:
        policy, live, copies = self.policy, self.live, sizes.copies
        if not policy.shared_prefix:  # each completion has a prompt of its own
            prompts, copies = [replace(prompt) for prompt in prompts for _ in range(copies)], 1
        texts: list[Text] = [(prompt, ()) for prompt in prompts for _ in range(copies)]
        language = [p for name, p in self.model.named_parameters() if not re.fullmatch(FROZEN["vision"], name)]
        self._decode_bytes = sizes.tokens * sum(p.numel() for p in language) * self.width
        peak = cached = 0
        with torch.no_grad(), policy.precision():
            for numbers in policy._together(texts):
                for who in policy._split(numbers, texts, policy.slots):
                    live.restart()
                    cache = self._write([texts[i] for i in who.tolist()], sizes.tokens)
                    self._decode_bytes += sizes.tokens * cache
                    if live.most > peak:
                        peak, cached = live.most, cache
        return {"cache": cached, "activations": peak - held - cached}

    def _write(self, texts: Sequence[Text], tokens: int) -> int:
        """Completions of prompts of one length; bytes of the cache at their end, when it is longest."""
        policy, live, model = self.policy, self.live, self.model
        if not policy.use_cache:
            with self._counting("decode", times=tokens):
                whole = stack_rows([(prompt, (0,) * tokens) for prompt, _ in texts], policy.codec.pad_id, policy.device)
                model(**whole.inputs, **self._only_last)
            return 0
        with self._counting("prefill"):
            rows = policy._forked([(prompt, (0,)) for prompt, _ in texts])
            cache = fork_cache(model, rows.prompts, rows.copies)
        peak, options = live.most, {"past_key_values": cache, "use_cache": True, **self._only_last}
        if tokens > 2:
            with live:  # as long as it gets; what lies between is not looked at
                model(input_ids=rows.ids.expand(-1, tokens - 2), **options)
        size = sum(v.nbytes for layer in cache.layers for v in tree_leaves(vars(layer)) if isinstance(v, Tensor))
        live.restart()
        with self._counting("decode", times=tokens):
            model(input_ids=rows.ids, **options)
        live.most = max(peak, live.most)
        return size

    def _update(self, prompts: Sequence[Prompt], sizes: StepSizes, held: int) -> dict[str, float]:
        policy, live = self.policy, self.live
        tokens = [policy.codec.pad_id] * sizes.tokens
        decisions = [policy.decision(prompt, tokens) for prompt in prompts for _ in range(sizes.copies)]
        for _ in range(2 if sizes.micro < sizes.prompts else 1):  # the second finds the gradients of the first
            self._flops |= {"forward": 0.0, "backward": 0.0}
            live.restart()
            with self._counting("forward"):
                now = policy.evaluate(decisions)
            with self._counting("backward"):
                now.logprobs.sum().backward()
        gradients = sum(p.grad.nbytes for p in policy.model.parameters() if p.grad is not None)
        return {"gradients": gradients, "activations": live.most - held - gradients}

    @contextmanager
    def _counting(self, part: str, times: int = 1) -> Iterator[None]:
        """Passes are made without numbers inside; their FLOPs count as the part's, so many times."""
        before = self.live.flops
        with self.live:
            yield
        self._flops[part] += (self.live.flops - before) * times


# A step of lerobot's flows (SmolVLA, pi0, pi0.5): lerobot's own class on torch's meta device. Nothing is downloaded.

VLM = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"  # that SmolVLA's default configuration names
VLM_TEXT = {"model_type": "llama", "vocab_size": 49280, "hidden_size": 960, "intermediate_size": 2560,
            "num_hidden_layers": 32, "num_attention_heads": 15, "num_key_value_heads": 5, "head_dim": 64}  # fmt: skip
VLM_VISION = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
              "image_size": 512, "patch_size": 16}  # fmt: skip


class MetaTensors(LiveTensors):
    """The same of tensors on torch's meta device, which have no numbers; a mask that is asked about hides nothing."""

    def compute(self, function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if function is aten._local_scalar_dense.default and arguments[0].is_meta:
            return True
        return super().compute(function, arguments, options)


def build_robot(kind: str, folder: str | None, cameras: int) -> LerobotFlowPolicy:
    """lerobot's policy of a folder's configuration, its weights without numbers; without a folder its kind's default.

    Args:
        cameras: of the default.

    Raises:
        UserError: lerobot is missing, or cannot build it.
    """
    try:
        from lerobot.configs.policies import PreTrainedConfig
        from lerobot.configs.types import FeatureType, PolicyFeature
        from lerobot.policies.factory import get_policy_class, make_policy_config
    except ImportError as error:
        raise UserError(f"policy.model: needs lerobot: pip install 'vlrl[robot]' ({first_line(error)})") from None
    adapt_lerobot()
    read: Any = PreTrainedConfig.from_pretrained
    make: Any = make_policy_config
    with tempfile.TemporaryDirectory() as words, contextlib.redirect_stdout(io.StringIO()):
        try:
            if folder:
                config = read(folder, cli_overrides=["--device=cpu"])
            else:
                pictures = {f"observation.images.camera{i + 1}": PolicyFeature(FeatureType.VISUAL, (3, 256, 256))
                            for i in range(cameras)}  # fmt: skip
                config = make(kind, input_features=pictures, device="cpu", push_to_hub=False)
                config.input_features["observation.state"] = PolicyFeature(FeatureType.STATE, (config.max_state_dim,))
                config.output_features = {"action": PolicyFeature(FeatureType.ACTION, (config.max_action_dim,))}
            config.device = "meta"
            if kind == "smolvla":
                config.load_vlm_weights, own = False, Path(folder or words) / VLM_FOLDER
                if not own.is_dir() and config.vlm_model_name == VLM:
                    write_vlm(own := Path(words), EMBEDDED, VLM_TEXT, VLM_VISION, scale=4)
                config.vlm_model_name = str(own) if own.is_dir() else config.vlm_model_name
            with torch.device("meta"):
                return LerobotFlowPolicy(get_policy_class(kind)(config), None, None)
        except Exception as error:  # lerobot and what it calls raise what they like
            raise UserError(f"policy.model: lerobot cannot build {folder or kind}: {first_line(error)}") from None


def robot_step(policy: LerobotFlowPolicy, sizes: StepSizes, accumulates: bool) -> StepCost:
    """A step whose sizes are chunks: `prompts * copies` asked for at once, `micro` in one forward pass with gradient.

    Args:
        accumulates: whether the passes of an update add to each other's gradients.
    """
    weights = list(policy.model.parameters())
    live = MetaTensors([*weights, *policy.model.buffers()])
    held, phases = live.now, {}
    with live, torch.device("meta"):
        with torch.no_grad():
            live.restart()
            _robot_pass(policy, sizes.prompts * sizes.copies)
            phases["rollout"] = {"gradients": 0, "activations": live.most - held}
        for _ in range(1 + accumulates):  # the second pass finds the gradients of the first
            live.restart()
            _robot_pass(policy, sizes.micro).sum().backward()
    learned = [p for p in weights if p.grad is not None]
    gradients, count = sum(p.grad.nbytes for p in learned if p.grad is not None), sum(p.numel() for p in learned)
    phases["update"] = {"gradients": gradients, "activations": live.most - held - gradients}
    always = {"weights": held, "optimizer": 4 * sizes.states * count, "reference": held if sizes.reference else 0.0}
    phase, parts = max(phases.items(), key=lambda each: sum(each[1].values()))
    return StepCost(sum(p.numel() for p in weights), count, 4, "naive", phase, always | parts, {}, 0.0, 0.0)


def _robot_pass(policy: LerobotFlowPolicy, count: int) -> Tensor:
    """Log-densities of `count` chunks, instructions as long as may be."""
    config = policy.model.config
    batch = {key: torch.zeros(count, *feature.shape) for key, feature in config.input_features.items()}
    tokens = torch.zeros(count, config.tokenizer_max_length, dtype=torch.long)
    batch |= {"observation.language.tokens": tokens, "observation.language.attention_mask": tokens == 0}
    noise = torch.zeros(count, *policy._chunk)
    return policy.scorer(batch, noise, torch.zeros(count, policy.steps, *policy.scorer.size))[0]
