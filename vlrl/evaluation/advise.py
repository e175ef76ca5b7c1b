"""What a run's metrics show, and what helped against it here (`vlrl advise`): symptom, advice, evidence, page.

A symptom is read from the last steps and evaluations, by the thresholds of `vlrl.logging` and docs/guides/curves.md.
Evidence is only what the page says that was measured: tests/vlrl/evaluation/test_advise.py looks its numbers up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any

from vlrl.config import Config, is_training_config, load_as
from vlrl.logging import HOPELESS, MOST, STEPS, UNREAD
from vlrl.report.run_reader import read_lines
from vlrl.types import Estimate, UserError

CUT, CLIPPED = 0.05, 0.3  # shares of completions that end at the limit, of units outside the clip range
GAP, OLD = 0.1, 4  # nats between the log-probabilities of sampling and of scoring; steps
LONGER, DRIFT, EXPLODED, COLLAPSED = 1.5, 2.0, 2.0, 0.1  # times the first steps' tokens, KL, entropy, entropy
SIGMAS = 3.0  # of the noise between steps, for a mean to have risen
FEW, SOLVED = 256, 0.9  # held-out samples; success of a robot
NONE = "No remedy was measured here."
Find = Callable[["RunCurves"], str]  # what a run shows of a symptom, in a sentence; '' where it does not


@dataclass(frozen=True)
class RunCurves:
    """A run's rows: one for each training step, one for each evaluation."""

    config: Config
    steps: Sequence[Mapping[str, Any]]
    evals: Sequence[Mapping[str, Any]]

    def first(self, name: str) -> list[float]:
        """A metric in the first STEPS steps; [] where the run has fewer than twice as many."""
        return self.values(name, self.steps[:STEPS]) if len(self.steps) >= 2 * STEPS else []

    def mean(self, name: str) -> float:
        """Over the last STEPS steps; nan where there are fewer, so that no comparison with it holds."""
        return _mean(self.values(name, self.steps[-STEPS:])) if len(self.steps) >= STEPS else math.nan

    def ratio(self, name: str) -> float:
        """The last steps' mean over the first ones'; nan where that is not above 0."""
        first = _mean(self.first(name))
        return self.mean(name) / first if first > 0 else math.nan

    def rises(self, name: str) -> bool:
        """Whether the last steps' mean lies above the first ones' by more than steps differ among themselves."""
        windows = self.first(name), self.values(name, self.steps[-STEPS:])
        noise = math.sqrt(sum(pvariance(window) for window in windows) / STEPS) if all(windows) else math.nan
        return _mean(windows[1]) - _mean(windows[0]) > SIGMAS * noise

    @staticmethod
    def values(name: str, rows: Sequence[Mapping[str, Any]]) -> list[float]:
        """A metric in some rows; [] where one of them lacks it."""
        numbers = [float(v) for row in rows if isinstance(v := row.get(name), int | float) and math.isfinite(v)]
        return numbers if len(numbers) == len(rows) else []

    def accuracies(self) -> list[Estimate]:
        """Held-out, by evaluation."""
        names = ("eval/accuracy", "eval/low", "eval/high", "eval/n")
        return [Estimate(*(row[name] for name in names)) for row in self.evals if all(name in row for name in names)]

    def gains(self) -> bool:
        """Whether the last held-out accuracy lies above the first one's interval."""
        measured = self.accuracies()
        return len(measured) > 1 and measured[-1].value > measured[0].high

    def names(self, kind: str) -> set[str]:
        """What the configuration names under a kind of methods."""
        return {component.name for component in self.config.components(kind)}

    def is_current(self) -> bool:
        """Whether the last step was evaluated."""
        return len(self.evals) > 1 and bool(self.steps) and self.evals[-1]["step"] >= self.steps[-1]["step"]


@dataclass(frozen=True)
class Rule:
    """One symptom.

    Args:
        name: short.
        find: what of it a run shows.
        advice: what to turn.
        evidence: what was measured on this project's models, as the page says.
        page: of the documentation.
    """

    name: str
    find: Find
    advice: str
    evidence: str
    page: str


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


def find_above(name: str, limit: float, text: str) -> Find:
    """The last steps' mean of a metric, in a text, where it is above a limit."""
    return lambda curves: text.format(mean) if (mean := curves.mean(name)) > limit else ""


def find_growth(name: str, limit: float, text: str) -> Find:
    """How many times the first steps' mean the last steps' is, in a text, above a limit and without a gain."""
    return lambda curves: text.format(ratio) if (ratio := curves.ratio(name)) > limit and not curves.gains() else ""


def find_agreement(low: float, high: float) -> Find:
    """That most rollouts have no advantage, while the accuracy is above `low` and at most `high`."""

    def find(curves: RunCurves) -> str:
        share, right = curves.mean("zero_advantage"), curves.mean("accuracy")
        is_group = curves.config.train.group_size > 1 and "silent" not in curves.names("advantages")
        if not (is_group and share > MOST and low < right <= high):
            return ""
        return f"{share:.0%} of the rollouts teach nothing, and {right:.0%} are right"

    return find


def find_unread(curves: RunCurves) -> str:
    rows = curves.steps[-STEPS:]
    shares = [sum(share for name, share in row.items() if name.startswith(UNREAD)) for row in rows]
    return f"{fmean(shares):.0%} of the answers are not read" if len(rows) == STEPS and fmean(shares) > MOST else ""


def find_collapse(curves: RunCurves) -> str:
    ratio = curves.ratio("entropy")
    return f"entropy fell to {curves.mean('entropy'):.2g}, {ratio:.0%} of its start" if ratio < COLLAPSED else ""


def find_constant_parts(curves: RunCurves) -> str:
    names = sorted(name for name in (curves.steps or [{}])[-1] if name.startswith("reward/"))
    values = {name: set(curves.values(name, curves.steps)) for name in names}
    same = [f"{name} {value:g}" for name in names if len(values[name]) == 1 for value in values[name]]
    return f"never changed: {', '.join(same)}" if same and len(curves.steps) >= 2 * STEPS else ""


def find_hacking(curves: RunCurves) -> str:
    if not curves.is_current() or curves.gains() or not curves.rises("reward"):
        return ""
    before, after, measured = fmean(curves.first("reward")), curves.mean("reward"), curves.accuracies()
    return f"reward {before:.2f} -> {after:.2f}, held-out accuracy {measured[0].value:.3f} -> {measured[-1].value:.3f}"


def find_held_out_gap(curves: RunCurves) -> str:
    measured = curves.accuracies()
    if not curves.is_current() or not curves.mean("accuracy") > measured[-1].high:
        return ""
    return f"{curves.mean('accuracy'):.3f} of the training answers are right, {measured[-1].value:.3f} of the held-out"


def find_constant_answer(curves: RunCurves) -> str:
    constant = curves.evals[-1].get("eval/best_constant") if (measured := curves.accuracies()) else None
    if constant is None or measured[-1].low > constant:
        return ""
    return f"held-out accuracy {measured[-1].value:.3f}, and the best constant answer's is {constant:.3f}"


def find_decline(curves: RunCurves) -> str:
    best = max(measured := curves.accuracies(), key=lambda each: each.value, default=None)
    if best is None or measured[-1].value >= best.low:
        return ""
    return f"held-out accuracy was {best.value:.3f} and is {measured[-1].value:.3f}"


def find_decoupled(curves: RunCurves) -> str:
    train = curves.config.train
    is_once = train.num_minibatches * train.update_epochs == 1
    is_idle = curves.mean("staleness") > 0 and is_once and "decoupled" in curves.names("advantages")
    return "one update a step, in which the clip of `decoupled` never acts" if is_idle else ""


def find_robot(curves: RunCurves) -> str:
    measured = curves.accuracies()
    if curves.config.task.name != "manipulation" or not measured or measured[-1].value >= SOLVED:
        return ""
    return f"it succeeds in {measured[-1].value:.2f} of the held-out scenes"


def find_noise(curves: RunCurves) -> str:
    if len(measured := curves.accuracies()) < 2 or (last := measured[-1]).n >= FEW or curves.gains():
        return ""
    return f"{last.n} held-out samples, so that {last.value:.3f} may be {last.low:.3f} to {last.high:.3f}"


JUDGED = "docs/judged.md"
RESULTS, CURVES, ASYNCHRONOUS = "docs/results.md", "docs/guides/curves.md", "docs/asynchronous.md#measured"
SINGLE = f"{RESULTS}#single-rollout-against-groups"
EMBEDDED, RL_DID = (f"docs/evidence/embedded.md#{name}" for name in ("visual-search", "what-rl-did-and-did-not-do"))

RULES = (
    Rule("answers are not read", find_unread,
         "read rollouts in report.html, and what the prompt asks for (task.template, task.thinking); raise "
         "policy.max_tokens; a lower train.lr; or imitate some answers first (`vlrl warmstart`)",
         "At 5e-4 a start that called a tool in 0.78 wrote malformed calls only by step 15; at 1e-4 it rose from "
         "0.457 to 0.496 (one seed each).", EMBEDDED),
    Rule("no group succeeds", find_agreement(-1.0, 1 - HOPELESS),
         "easier samples; imitate some answers first (`vlrl warmstart`); with gold answers the recipe relift",
         "From 0.096, ReLIFT with gold answers ended at 0.254 and GRPO at 0.167 (p 0.006); hints were no better: GHPO "
         "0.149, SEELE 0.127.", f"{JUDGED}#rare"),
    Rule("every group succeeds", find_agreement(HOPELESS, 1.0),
         "it is done, or its samples are too easy: `vlrl select` finds those that the model is unsure of",
         NONE, f"{CURVES}#shapes"),
    Rule("groups agree", find_agreement(1 - HOPELESS, HOPELESS),
         "where prompts abound, one rollout of each: the recipes reinforce_pp and mssr",
         "At equal rollouts MSSR ended at 0.742 (p 0.0002), REINFORCE++ at 0.730 (p 0.007) and GRPO at 0.631. In CPU "
         "seconds groups lead at first.", SINGLE),
    Rule("entropy collapsed", find_collapse, "a lower train.lr, or an entropy term in the losses, far below 0.3",
         "Single runs of jigsaw 3x1: entropy gone after 50 steps, 0.43 to 0.49; with a bonus of 0.05 to 0.44, of 0.1 "
         "(and Muon) to 0.56; of 0.3 from 0.34 to 0.00.", RL_DID),
    Rule("entropy grows", find_growth("entropy", EXPLODED, "to {:.1f} times its start, and no gain is shown"),
         "a smaller entropy term in the losses, or none; a lower train.lr",
         "In a single run an entropy bonus of 0.3 won over the reward: 0.34 to 0.00.", RL_DID),
    Rule("completions are cut", find_above("cut", CUT, "{:.0%} of them end at policy.max_tokens"),
         "raise policy.max_tokens, or pay for brevity: the recipe overlong", NONE, f"{CURVES}#the-others"),
    Rule("answers grow", find_growth("length", LONGER, "to {:.1f} times the first ones, and no gain is shown"),
         "weigh tokens alike: loss_aggregation token_mean, the recipe dr_grpo; or pay for brevity: overlong",
         "Brief was no worse: with 8.1 and 8.0 tokens kimi_length and overlong ended at 0.250 and 0.246, GRPO with "
         "13.1 at 0.239.", f"{JUDGED}#length"),
    Rule("a reward part is constant", find_constant_parts,
         "where it is 0: read rollouts whether it can be earned; else it teaches nothing, leave it out (task.weights)",
         NONE, "docs/rewards.md#why-is-my-reward-zero"),
    Rule("the reward rises alone", find_hacking,
         "read ten of the best-paid rollouts; give a judge's part less weight than a rule's",
         "A judge that could be hacked took accuracy from 0.75 to 0.18 on its own; beside facts it ended at 0.80.",
         "docs/judges.md#a-judge-with-a-weakness"),
    Rule("held-out answers are worse", find_held_out_gap, "more prompts, and fewer passes over them",
         "At equal rollouts GRPO ended at 0.631 after 8 passes over 240 prompts, and at 0.575 after 16 over 120.",
         SINGLE),
    Rule("no better than a constant answer", find_constant_answer,
         "show the model what it needs (policy.max_pixels, a tool, all pictures), or imitate some answers first",
         "Visual search, constant 0.277: without the tool 0.242, 0.270, 0.258; with it 0.504, 0.441, 0.496.",
         f"{RESULTS}#by-task"),
    Rule("accuracy fell again", find_decline, "a lower train.lr; summary.json names the best checkpoint",
         "GUI grounding, AdamW: at 3e-4 from 0.43 to 0.82, at 1e-3 from 0.46 to 0.15 (single runs).", RL_DID),
    Rule("ratios are clipped", find_above("clip_fraction", CLIPPED, "{:.0%} of the units"),
         "fewer train.num_minibatches or train.update_epochs, or a lower train.lr",
         "With four updates a step none of sixteen other losses is shown to end above GRPO's 0.530; A-GRAE fell to "
         "0.431.",
         f"{JUDGED}#losses"),
    Rule("another policy samples than learns", find_above("logprob_gap", GAP, "log-probabilities differ by {:.2g}"),
         "stop: look for two preprocessings, or stale weights of an engine", NONE,
         "docs/engines.md#off-policy-correction"),
    Rule("the policy drifts", find_growth("kl", DRIFT, "its KL grew {:.1f}-fold, and no gain is shown"),
         "a larger coef of kl in the losses, or the callback reference_reset", NONE, f"{CURVES}#the-others"),
    Rule("a decoupled objective without need", find_decoupled, "plain ppo_clip: advantages=[grpo]",
         "Means of five seeds: 0.414 with it and 0.494 without, at a staleness of 4; 0.501 at 0.", ASYNCHRONOUS),
    Rule("rollouts are old", find_above("staleness", OLD, "{:g} steps"), "a train.max_staleness of at most 4",
         "Plain ppo_clip shows no loss up to 4, 0.494 against 0.501; more was not tried.", ASYNCHRONOUS),
    Rule("a robot that learns on-policy", find_robot,
         "`vlrl offpolicy`: configs/studies/offpolicy_push_residual.yaml, configs/offpolicy_push.yaml",
         "Pushing a cube at equal ticks: residual SAC 0.97, DSRL 0.89, RLPD 0.88, GRPO 0.49; at five to fourteen "
         "times the CPU seconds per tick, and with 20 demonstrations.", "docs/evidence/vla_methods.md"),
    Rule("too few held-out samples to tell", find_noise, "eval.num_samples=512, and several seeds: `vlrl compare`",
         "512 held-out samples give an interval of about plus or minus 4 points.", f"{CURVES}#how-sure-is-it"),
)  # fmt: skip


def read_curves(run: Path) -> RunCurves:
    """The rows of a run, also of one that is under way. UserError: the folder holds no run of `vlrl train`."""
    if not is_training_config(run / "config.yaml"):
        raise UserError(f"{run}: is no run folder of `vlrl train`: it holds no such config.yaml")
    rows = read_lines(run / "metrics.jsonl")[0]
    steps = [row for row in rows if "reward" in row]
    return RunCurves(load_as(Config, run / "config.yaml"), steps, [row for row in rows if "eval/accuracy" in row])


def advise(run: Path) -> dict[str, Any]:
    """`{run, steps, accuracy: [first, last], findings: [{name, shows, advice, evidence, page}]}`."""
    curves = read_curves(run)
    measured = curves.accuracies()
    findings = [
        {"name": rule.name, "shows": shows, "advice": rule.advice, "evidence": rule.evidence, "page": rule.page}
        for rule in RULES
        if (shows := rule.find(curves))
    ]
    accuracy = [vars(each) for each in (measured[:1] + measured[-1:] if len(measured) > 1 else measured)]
    return {"run": str(run), "steps": len(curves.steps), "accuracy": accuracy, "findings": findings}


def format_advice(advice: Mapping[str, Any]) -> str:
    """The same as text."""
    accuracy = " -> ".join(
        f"{each['value']:.3f} [{each['low']:.3f}, {each['high']:.3f}]" for each in advice["accuracy"]
    )
    lines = [f"{advice['run']}: {advice['steps']} steps, held-out accuracy {accuracy or 'not measured'}"]
    if advice["steps"] < 2 * STEPS:
        lines.append(f"too short for most rules, which compare the first {STEPS} steps with the last {STEPS}")
    for each in advice["findings"]:
        lines += ["", f"{each['name']}: {each['shows']}", f"  try       {each['advice']}"]
        lines += [f"  measured  {each['evidence']}", f"  page      {each['page']}"]
    if not advice["findings"]:
        lines.append(f"none of {len(RULES)} rules applies; {CURVES} says what else to look at")
    return "\n".join(lines)
