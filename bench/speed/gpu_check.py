"""That the fast paths compute on a device what the plain ones do: `gpu` runs these first, on small models."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from gpu_draws import draws_of_nothing
from gpu_graphs import graphs_against_loop, in_few_slots, recorded
from gpu_model import TINY, checkpointed, model_of, processor_of
from gpu_small import Small, episodes_of, evaluated, gap, prepared, rollout, sampled
from torch import Tensor

from vlrl.policies.generation import RECORDED_BLOCK
from vlrl.policies.vlm import VLM
from vlrl.types import Decision

EXACT, ROUNDED = 1e-4, 0.02  # nats a token, or of a gradient's norm: float32, bfloat16


def against_plain(family: str, tokens: int, device: torch.device) -> float:
    """Log-probabilities of the shared pass beside the model's own."""
    small = Small(family, device)
    shared, plain = small.policy(tokens=tokens), small.policy(False, tokens)
    decisions = rollout(shared, small.episodes())
    return gap(evaluated(shared, decisions), evaluated(plain, decisions))


def sampled_against_evaluated(device: torch.device) -> float:
    """Log-probabilities out of the decode loop beside those of the update."""
    small = Small("qwen2_5_vl", device)
    policy = small.policy(tokens=70, stop=True, temperature=0.7)  # buffers double twice
    decisions = rollout(policy, small.episodes())
    return gap(sampled(decisions), evaluated(policy, decisions))


def rows_that_come_and_go(device: torch.device) -> float:
    """Completions in few slots, of which some end early, beside those of the plain run: how many differ."""
    small = Small("qwen2_5_vl", device)
    ways = ({"slots": 4}, {}, {"shared": False})
    told = [rollout(small.policy(tokens=40, stop=True, **way), small.episodes()) for way in ways]
    tokens = [[small.policy().ids(decision) for decision in decisions] for decisions in told]
    lengths = {len(row) for row in tokens[0]}
    assert len(lengths) > 1 and min(lengths) < 40, "none ended early"
    return float(sum(any(a != b for b in others) for a, *others in zip(*tokens, strict=True)))


def drawn_again(device: torch.device) -> float:
    """Completions after the generator was put back, beside those before: how many differ."""
    small = Small("qwen2_5_vl", device)
    policy = small.policy()
    state = {"generator": policy.state_dict()["generator"].clone()}
    first = rollout(policy, small.episodes())
    policy.load_state_dict(state)
    again = rollout(policy, small.episodes())
    return float(sum(policy.ids(a) != policy.ids(b) for a, b in zip(first, again, strict=True)))


def gradient(policy: VLM, decisions: Sequence[Decision]) -> Tensor:
    """Of a loss that weighs every token differently."""
    policy.model.zero_grad(set_to_none=True)
    now = policy.evaluate(decisions)
    values = now.logprobs[now.mask] + 0.1 * now.entropy[now.mask]
    (values * torch.linspace(-1, 1, len(values), device=values.device)).sum().backward()
    return torch.cat([p.grad.float().flatten() for p in policy.model.parameters() if p.grad is not None])


def kept_prefill(redone: bool, device: torch.device) -> float:
    """The update's gradient with the rollout's prefill, and with one of its own, beside the plain one's."""
    small = Small("qwen2_5_vl", device)
    kept, plain = small.policy(), small.policy(False)
    decisions = rollout(kept, small.episodes())
    true = gradient(plain, decisions)
    if redone:
        checkpointed(small.model)
    anew = gradient(kept, decisions)
    kept.generator.manual_seed(0)  # so that the same is written again
    again = rollout(kept, small.episodes(), keep=True)
    assert [kept.ids(d) for d in again] == [kept.ids(d) for d in decisions], "the same seed wrote other tokens"
    return max(float((one - true).norm() / true.norm()) for one in (anew, gradient(kept, again)))


def in_bfloat16(kind: str, device: torch.device, graphs: bool = False) -> float:
    """As the rows run: autocast, LoRA over a frozen tower or all trained; slots, kept prefill, a step of AdamW."""
    processor = processor_of()
    model = model_of(TINY, kind, processor, device)
    policy = VLM(model, processor, max_tokens=40, slots=4, autocast=torch.bfloat16, cuda_graphs=graphs)
    decisions = rollout(prepared(policy, tuple(range(100, 140))), episodes_of(28, 3), keep=True)
    now = policy.evaluate(decisions)
    now.logprobs.sum().backward()
    torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4).step()
    assert all(bool(p.isfinite().all()) for p in model.parameters()), "weights are not finite"
    assert policy.shared_prefix, "the shared pass was switched off"
    assert not graphs or recorded(policy)
    return gap(sampled(decisions), now.logprobs[now.mask].detach().cpu())


CHECKS: dict[str, tuple[float, Callable[[torch.device], float]]] = {  # name -> largest gap allowed, check
    "shared = plain log-probabilities, Qwen2.5-VL": (EXACT, lambda d: against_plain("qwen2_5_vl", 12, d)),
    "shared = plain log-probabilities, Qwen3-VL": (EXACT, lambda d: against_plain("qwen3_vl", 12, d)),
    "the same, long completions": (EXACT, lambda d: against_plain("qwen2_5_vl", 48, d)),
    "sampled = evaluated log-probabilities": (EXACT, sampled_against_evaluated),
    "slots and early leaving write what the plain run writes": (0, rows_that_come_and_go),
    "the generator's state brings the draws back": (0, drawn_again),
    "kept and new prefill = plain gradient": (EXACT, lambda d: kept_prefill(False, d)),
    "the same, layers checkpointed": (EXACT, lambda d: kept_prefill(True, d)),
    "no draw of a token without probability": (0, draws_of_nothing),
    "bfloat16, LoRA: sampled = evaluated": (ROUNDED, lambda d: in_bfloat16("lora", d)),
    "bfloat16, full: sampled = evaluated": (ROUNDED, lambda d: in_bfloat16("full", d)),
    "graphs write what the loop writes": (EXACT, lambda d: graphs_against_loop(d, tokens=60, stop=True)),
    "the same, in few slots, likely tokens alone": (EXACT, in_few_slots),
    "the same, buffers that double": (EXACT, lambda d: graphs_against_loop(d, group=1, tokens=RECORDED_BLOCK + 24)),
    "graphs, bfloat16, LoRA: sampled = evaluated": (ROUNDED, lambda d: in_bfloat16("lora", d, True)),
    "graphs, bfloat16, full: sampled = evaluated": (ROUNDED, lambda d: in_bfloat16("full", d, True)),
}


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """Float32 that is float32: convolutions on a GPU round it to TF32 by default."""
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def run(device: torch.device) -> dict[str, dict]:
    """Name -> whether it passed, its gap, the largest allowed; said line by line."""
    told = {}
    for name, (most, check) in CHECKS.items():
        found, passed = None, False
        try:
            with exact():
                found = check(device)
            passed, shown = found <= most, f"{found:.2g} (at most {most:g})"  # NaN fails
        except ImportError as missing:  # of a package that rows may do without
            passed, shown = True, f"skipped: {missing}"
        except Exception as error:  # one check that dies hides no other
            shown = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        told[name] = {"passed": passed, "gap": found, "most": most, "said": shown}
        print(f"{'PASS' if passed else 'FAIL'}  {name}: {shown}", flush=True)
    return told
