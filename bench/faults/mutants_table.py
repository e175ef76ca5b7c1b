"""The lines that `bench/faults.py mutants` breaks, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A line that occurs once in a file, what it becomes, and the tests that must fail then.

    known: why a survivor is accepted, '' if it is not.
    """

    group: str
    file: str
    line: str
    becomes: str
    tests: tuple[str, ...]
    known: str = ""


LOSSES = ("tests/vlrl/test_losses.py", "tests/vlrl/test_group_losses.py", "tests/vlrl/test_laws.py")
ADVANTAGES = ("tests/vlrl/test_advantages.py", "tests/vlrl/test_group_advantages.py", "tests/vlrl/test_mssr.py")
UPDATE = ("tests/vlrl/test_update.py", "tests/vlrl/test_weighing.py", "tests/vlrl/test_rollout.py")
PARSE = ("tests/rewards/test_parse.py", "tests/rewards/test_hacks.py")
BOXES = ("tests/rewards/test_boxes.py", "tests/rewards/test_intervals.py", "tests/rewards/test_properties.py")
GOVERNOR = (
    "tests/robot/control/test_governor.py",
    "tests/robot/control/test_governor_streams.py",
    "tests/robot/control/test_governor_stages.py",
)
SYNCED = ("tests/vlrl/faults/test_synced.py",)
DECODING = ("tests/vlrl/policies/test_decoding.py", "tests/vlrl/policies/test_begun.py")

MUTANTS = (
    # the policy gradient
    Mutant(
        "losses",
        "vlrl/algorithms/policy_losses.py",
        ".maximum(-batch.advantage * ratio.clamp(1 - low, 1 + high))\n    if dual",
        ".minimum(-batch.advantage * ratio.clamp(1 - low, 1 + high))\n    if dual",
        LOSSES,
    ),
    Mutant(
        "losses",
        "vlrl/algorithms/policy_losses.py",
        "ratio.clamp(1 - low, 1 + high))\n    if dual",
        "ratio.clamp(1 - low, 1 + low))\n    if dual",
        LOSSES,
    ),
    Mutant(
        "losses",
        "vlrl/algorithms/policy_losses.py",
        ".where(batch.advantage < 0, loss)",
        ".where(batch.advantage > 0, loss)",
        LOSSES,
    ),
    Mutant(
        "losses",
        "vlrl/methods.py",
        ".masked_fill(~batch.mask, 0.0).clamp(-20.0, 20.0)",
        ".masked_fill(~batch.mask, 0.0)",
        LOSSES,
    ),
    Mutant(
        "losses",
        "vlrl/algorithms/policy_losses.py",
        "/ mask.sum(1).clamp(min=1)\n\n\ndef same_group",
        "/ mask.shape[1]\n\n\ndef same_group",
        LOSSES,
    ),
    Mutant(
        "losses",
        "vlrl/algorithms/policy_losses.py",
        "return mask / mask.sum()\n",
        "return mask / mask.numel()\n",
        UPDATE,
    ),
    Mutant("losses", "vlrl/algorithms/policy_losses.py", "/ (mask.sum(1) > 0).sum()", "/ len(mask)", UPDATE),
    # advantages
    Mutant(
        "advantages",
        "vlrl/algorithms/advantages.py",
        "variance.clamp(min=var_floor).rsqrt()",
        "variance.rsqrt()",
        ADVANTAGES,
    ),
    Mutant(
        "advantages", "vlrl/algorithms/advantages.py", "max(len(advantage) - ddof, 1)", "len(advantage)", ADVANTAGES
    ),
    Mutant(
        "advantages",
        "vlrl/algorithms/advantages.py",
        ".masked_fill(deviation == 0, 0.0)\n    return (centred",
        "\n    return (centred",
        ADVANTAGES,
    ),
    Mutant("advantages", "vlrl/algorithms/advantages.py", "(sizes - 1).clamp(min=1)", "sizes", ADVANTAGES),
    Mutant("advantages", "vlrl/algorithms/advantages.py", "* size / (size - 1).clamp(min=1)", "", ADVANTAGES),
    Mutant(
        "advantages",
        "vlrl/algorithms/single_rollout.py",
        "(eta * a + outcome, eta * b + 1 - outcome)",
        "(eta * a + outcome, eta * b + outcome)",
        ADVANTAGES,
    ),
    Mutant(
        "advantages",
        "vlrl/algorithms/single_rollout.py",
        "return low if kl > target else low + kl / target * (high - low)",
        "return low + kl / target * (high - low)",
        ADVANTAGES,
    ),
    # what carries credit
    Mutant(
        "credit",
        "vlrl/batch.py",
        "row[: len(turn.decision.forced_mask)] &= ~turn.decision.forced_mask",
        "row[: len(turn.decision.forced_mask)] &= turn.decision.forced_mask",
        UPDATE + DECODING,
    ),
    Mutant(
        "credit",
        "vlrl/batch.py",
        "math.ceil(turn.step.executed * len(turn.decision.logprobs) - 1e-6)",
        "len(turn.decision.logprobs)",
        UPDATE,
    ),
    Mutant(
        "credit",
        "vlrl/batch.py",
        "advantage[:, None] * rollouts.mask if advantage.ndim == 1 else advantage * rollouts.mask",
        "advantage[:, None] * rollouts.mask if advantage.ndim == 1 else advantage",
        UPDATE + ADVANTAGES,
    ),
    Mutant(
        "credit",
        "vlrl/update.py",
        "now.mask & rollouts.mask[rows, :length].to(device), reference",
        "now.mask, reference",
        UPDATE + DECODING,
    ),
    Mutant("credit", "vlrl/update.py", "if not torch.isfinite(norm):", "if False:", UPDATE),
    Mutant(
        "credit",
        "vlrl/update.py",
        "weight = dict(zip(rows, self.weigh(rollouts.mask[rows]), strict=True))",
        "weight = dict(zip(rows, self.weigh(rollouts.mask)[rows], strict=True))",
        UPDATE,
    ),
    # sampling
    Mutant(
        "sampling",
        "vlrl/policies/generation.py",
        "before = ranked.cumsum(-1) - ranked",
        "before = ranked.cumsum(-1)",
        DECODING,
    ),
    Mutant(
        "sampling",
        "vlrl/policies/generation.py",
        'logits.float().index_fill(-1, banned, float("-inf"))',
        "logits.float()",
        DECODING,
    ),
    # parsers
    Mutant("parsers", "rewards/parse.py", "if max(answers) > 1:", "if max(answers) > 2:", PARSE),
    Mutant(
        "parsers",
        "rewards/parse.py",
        'if not (text.startswith("<answer>") and text.endswith("</answer>")):',
        'if not text.startswith("<answer>"):',
        PARSE,
    ),
    Mutant("parsers", "rewards/parse.py", 'return "many_thinks" if max(thinks) > 1 else None', "return None", PARSE),
    Mutant(
        "parsers",
        "rewards/parse.py",
        "isinstance(number, int | float) and not isinstance(number, bool)",
        "isinstance(number, int | float)",
        PARSE,
    ),
    Mutant(
        "parsers", "rewards/parse.py", 'return "too_deep" if _depth(text) > MAX_DEPTH else None', "return None", PARSE
    ),
    Mutant("parsers", "rewards/parse.py", "if x1 < x2 and y1 < y2 else", "if x1 <= x2 and y1 <= y2 else", PARSE),
    Mutant(
        "parsers",
        "rewards/boxes.py",
        "if min(areas) <= 0 or min(width, height) <= least:",
        "if min(areas) <= 0:",
        BOXES,
    ),
    # nothing is lost
    Mutant("disk", "vlrl/checkpoint.py", "                os.fsync(handle.fileno())", "                pass", SYNCED),
    Mutant("disk", "vlrl/checkpoint.py", "        os.fsync(handle)", "        pass", SYNCED),
    Mutant(
        "disk",
        "robot/trial/plan.py",
        "os.fsync(file.fileno())\n\n\ndef read_lines",
        "pass\n\n\ndef read_lines",
        SYNCED,
    ),
    Mutant("disk", "vlrl/metrics.py", "                os.fsync(file.fileno())\n", "                pass\n", SYNCED),
    Mutant("disk", "vlrl/io.py", "        os.fsync(file.fileno())\n    os.replace", "    os.replace", SYNCED),
    # the safety governor
    Mutant(
        "safety",
        "robot/safety/checks.py",
        "within = between(tick.low, target, tick.high)",
        "within = target",
        GOVERNOR,
    ),
    Mutant(
        "safety",
        "robot/safety/checks.py",
        "within = tick.at + between(-limit, change, limit)",
        "within = target",
        GOVERNOR,
    ),
    Mutant(
        "safety",
        "robot/safety/checks.py",
        "within = tick.target(between(-limit, rate, limit))",
        "within = target",
        GOVERNOR,
    ),
    Mutant(
        "safety",
        "robot/safety/checks.py",
        "np.where(near, tick.allowed(slowed), rate)",
        "np.where(near, slowed, rate)",
        GOVERNOR,
    ),
    Mutant(
        "safety",
        "robot/safety/checks.py",
        "rate = between(self.rate - bounds.gain, rate, self.rate + bounds.gain)\n",
        "",
        GOVERNOR,
    ),
    Mutant("safety", "robot/safety/checks.py", "if not tick.age <= hold_s:", "if tick.age > hold_s:", GOVERNOR),
    Mutant(
        "safety",
        "robot/safety/checks.py",
        "max(depth(tick.target(rate)), depth(",
        "max(depth(tick.at), depth(",
        (*GOVERNOR, "tests/robot/control/test_kinematics.py"),
    ),
    Mutant(
        "safety", "robot/safety/governor.py", "if holds and now - self._held >= self._stop_s:", "if False:", GOVERNOR
    ),
    Mutant(
        "safety",
        "robot/safety/governor.py",
        "events, target = ([], None) if self.stopped else self._look(tick)",
        "events, target = self._look(tick)",
        GOVERNOR,
        known="a stop has two guards: the reaction alone already makes the target rest",
    ),
    Mutant(
        "safety",
        "robot/safety/checks.py",
        "self._verdict = target.astype(np.float32).clip(low, high)",
        "self._verdict = target.astype(np.float32)",
        GOVERNOR,
    ),
)
