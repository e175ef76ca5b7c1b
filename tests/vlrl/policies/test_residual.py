"""A learned correction on a frozen robot policy: its law, what it remembers, what is frozen, what is kept."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from vlrl.cli import main
from vlrl.config import PolicySection
from vlrl.policies.discrete import ControlPolicy, DiscreteShape, Network
from vlrl.policies.loading import load
from vlrl.policies.residual import ResidualPolicy, Size
from vlrl.serving.policies import servable
from vlrl.serving.protocol import PolicyRequest
from vlrl.types import Episode, Observation, Sample, Step, Turn, UserError

ROOT = Path(__file__).parents[3]
SHAPE = DiscreteShape(3, ("vx", "grip"), (-0.4, 0.0), (0.4, 0.04), chunk=3, bins=5, hidden=16, layers=1)
SIZE = Size(scale=0.1, log_std=-1.0, hidden=8, layers=1)


def policy(size: Size = SIZE, seed: int = 0, **options) -> ResidualPolicy:
    torch.manual_seed(seed)
    base = ControlPolicy(Network(SHAPE), seed=seed)
    torch.nn.init.normal_(base.model.head.weight, std=1.0)
    base.model.mean.fill_(0.2)
    base.model.spread.fill_(2.0)
    return ResidualPolicy(base, size, seed=seed, **options)


def shown(seed: int) -> Observation:
    return Observation(("Go.",), np.random.default_rng(seed).normal(size=3).astype(np.float32))


def episode() -> Episode:
    return Episode(Sample("a", Observation(("Go.",))), 0)


def played(made: ResidualPolicy, episodes: list[Episode], seeds: range, **options) -> list[Episode]:
    """A turn of each episode for each seed; all are shown the same."""
    for seed in seeds:
        decisions = made.act(episodes, [shown(seed) for _ in episodes], **options)
        for one, decision in zip(episodes, decisions, strict=True):
            one.turns.append(Turn(shown(seed), decision, Step(shown(seed + 1))))
    return episodes


def base_chunk(made: ResidualPolicy, seed: int) -> np.ndarray:
    return made.base.policy.act([episode()], [shown(seed)], greedy=True)[0].action


def test_the_base_plays_its_chunk_and_is_asked_anew_when_it_is_used_up():
    """A residual that asked at every tick would correct another policy than the one that was evaluated."""
    made = policy()
    torch.nn.init.zeros_(made.model.body[-1].weight)
    (one,) = played(made, [episode()], range(7), greedy=True)
    first, second, third = (base_chunk(made, seed) for seed in (0, 3, 6))
    wanted = np.concatenate([first, second, third[:1]])[:, None]
    np.testing.assert_allclose([turn.decision.action for turn in one.turns], wanted, atol=1e-6)
    assert len({chunk.tobytes() for chunk in (first, second, third)}) == 3
    assert one.turns[0].decision.action.dtype == np.float32 and made.shape.chunk == 1


def test_a_held_correction_is_one_decision():
    """By hand: chunks of 3 and corrections held for 3 ticks. Rows of what was not corrected would be learned from."""
    made = policy(Size(scale=0.1, log_std=-1.0, ticks=3, hidden=8, layers=1))
    (one,) = played(made, [episode()], range(2))
    for seed, turn in enumerate(one.turns):
        chunk, correction = base_chunk(made, seed), turn.decision.inputs.correction.numpy()
        wanted = (chunk + np.float32([0.04, 0.002]) * correction).clip([-0.4, 0.0], [0.4, 0.04])
        np.testing.assert_allclose(turn.decision.action, wanted, atol=1e-6)
        assert turn.decision.inputs.inputs.shape == (3 + 3 * 2,) and turn.decision.logprobs.shape == (1,)
    assert made.shape.chunk == 3
    again = made.decide(shown(0), one.turns[0].decision.action)
    assert made.evaluate([again]).logprobs.shape == (1, 1)
    with pytest.raises(UserError, match="chunks of 3 ticks are no multiple of 2"):
        policy(Size(ticks=2))


def test_episodes_keep_their_own_place_in_the_chunk():
    """Episodes that start while others are under way would go on with the others' chunks."""
    made = policy()
    early, late = episode(), episode()
    played(made, [early], range(2), greedy=True)
    played(made, [early, late], range(2, 5), greedy=True)
    assert [turn.decision.inputs.plan.place for turn in early.turns] == [0, 1, 2, 0, 1]
    assert [turn.decision.inputs.plan.place for turn in late.turns] == [0, 1, 2]
    torch.testing.assert_close(late.turns[2].decision.inputs.plan.chunk, late.turns[0].decision.inputs.plan.chunk)


def test_a_control_is_the_base_and_a_scaled_correction_within_the_limits():
    """By hand, limits 0.4 and 0 to 0.04: 0.1 of a half is 0.04 and 0.002 a correction of 1."""
    made = policy(Size(scale=0.1, log_std=1.0, hidden=8, layers=1))
    chunk = base_chunk(made, 0)[0].astype(np.float64)
    for decision in made.act([episode()] * 50, [shown(0)] * 50):
        correction = decision.inputs.correction.double().numpy()
        wanted = (chunk + np.array([0.04, 0.002]) * correction).clip([-0.4, 0.0], [0.4, 0.04])
        np.testing.assert_allclose(decision.action[0], wanted, atol=1e-6)


def test_it_begins_at_the_base():
    """The first updates would undo a random correction instead of improving on the base."""
    torch.manual_seed(0)
    made = ResidualPolicy(policy().base.policy, Size())
    states = [shown(seed) for seed in range(64)]
    off = torch.stack([d.inputs.correction for d in made.act([episode()] * 64, states, greedy=True)])
    assert off.abs().max() < 0.1
    singular = torch.linalg.svdvals(made.model.body[-1].weight)
    torch.testing.assert_close(singular, torch.full_like(singular, 0.01))


@pytest.mark.parametrize(("level", "units"), [("token", 2), ("action", 1), ("chunk", 1)])
@pytest.mark.parametrize("temperature", [1.0, 2.25])
def test_the_law_is_a_normal_distribution(level, units, temperature):
    """A ratio that is not 1 before the first update would be learned from as if the policy had changed."""
    made = policy(level=level, temperature=temperature)
    decisions = [turn.decision for one in played(made, [episode(), episode()], range(4)) for turn in one.turns]
    inputs, corrections = (torch.stack([getattr(d.inputs, n) for d in decisions]) for n in ("inputs", "correction"))
    std = math.exp(-1.0) * math.sqrt(temperature)  # a density to the power of 1 / T has the variance T times
    law = Normal(made.model(inputs), std)
    entropy = 0.5 * math.log(2 * math.pi * math.e) + math.log(std)
    by_hand = law.log_prob(corrections), torch.full_like(corrections, entropy)
    now = made.evaluate(decisions)
    for values, sampled, trained in zip(
        by_hand, ([d.logprobs for d in decisions], [d.entropy for d in decisions]), (now.logprobs, now.entropy),
        strict=True,
    ):  # fmt: skip
        wanted = values if units == 2 else values.sum(1, keepdim=True)
        torch.testing.assert_close(trained, wanted)
        torch.testing.assert_close(torch.stack(sampled), wanted)
    assert now.logprobs.shape == (8, units) and now.mask.all()


def test_corrections_are_drawn_from_that_law():
    """Updates would weigh actions by chances with which they were not drawn."""
    made = policy()
    drawn = torch.stack([d.inputs.correction for d in made.act([episode()] * 4000, [shown(1)] * 4000)])
    mean = made.model(made.act([episode()], [shown(1)], greedy=True)[0].inputs.inputs)
    standard = (drawn - mean) / math.exp(-1.0)
    assert standard.mean().abs() < 0.05 and (standard.std() - 1).abs() < 0.03
    assert torch.corrcoef(standard.T)[0, 1].abs() < 0.06


def test_gradients_are_those_of_the_density():
    """By hand: d log N / d mean = (a - mean) / std^2. What is trained would not be the likelihood of what was done."""
    made = policy()
    decisions = [turn.decision for turn in played(made, [episode()], range(5))[0].turns]
    made.evaluate(decisions).logprobs.sum().backward()
    own = {name: p.grad.clone() for name, p in made.model.named_parameters()}
    made.model.zero_grad()
    for decision in decisions:
        mean = made.model(decision.inputs.inputs)
        slope = ((decision.inputs.correction - mean) / math.exp(-2.0)).detach()
        (mean * slope).sum().backward()
    for name, parameter in made.model.named_parameters():
        torch.testing.assert_close(own[name], parameter.grad, rtol=1e-4, atol=1e-5)


def test_training_leaves_the_base_bit_for_bit():
    """What was proven of the base would no longer hold of it."""
    made = policy()
    before = {name: value.clone() for name, value in made.base.policy.model.state_dict().items()}
    optimizer = torch.optim.AdamW(made.model.parameters(), lr=0.1, weight_decay=0.1)
    chunk = base_chunk(made, 0)
    made.freeze_reference()
    decisions = [turn.decision for turn in played(made, [episode()], range(5))[0].turns]
    features = made.features(decisions)
    (-made.evaluate(decisions).logprobs.sum()).backward()
    optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in made.base.policy.model.state_dict().items())
    assert (base_chunk(made, 0) == chunk).all() and torch.equal(made.features(decisions), features)
    moved, start = made.evaluate(decisions).logprobs, made.reference(decisions)
    assert not torch.allclose(moved, start)
    torch.testing.assert_close(start, torch.stack([d.logprobs for d in decisions]))
    assert not {id(p) for p in made.base.policy.model.parameters()} & {id(p) for p in made.model.parameters()}


def test_features_are_the_scaled_state_and_the_bases_control():
    """By hand: (state - 0.2) / 2, and controls between -1 and 1. A critic would go by what the policy does not see."""
    made = policy()
    (one,) = played(made, [episode()], range(2))
    chunk = base_chunk(made, 0)
    for place, turn in enumerate(one.turns):
        scaled = (shown(place).state - 0.2) / 2
        control = (chunk[place] - np.array([0.0, 0.02])) / np.array([0.4, 0.02])
        np.testing.assert_allclose(made.features([turn.decision])[0], [*scaled, *control], rtol=1e-5, atol=1e-6)


def test_a_given_control_is_said_by_its_correction():
    """What a person or a script did could not be learned from."""
    made = policy()
    wanted = base_chunk(made, 0)[:1].clip([-0.3, 0.01], [0.3, 0.03]) + np.float32([[0.02, -0.001]])
    decision = made.decide(shown(0), wanted)
    np.testing.assert_allclose(decision.action, wanted, atol=1e-6)
    assert decision.inputs.plan.place == 0 and decision.logprobs.shape == (2,)
    with pytest.raises(UserError, match=r"turn 3: an action of shape \[3, 2\]; the policy gives \[1, 2\]"):
        made.decide(shown(0), np.zeros((3, 2), np.float32), key="turn 3")


def test_a_policy_is_saved_whole_and_goes_on_in_the_middle_of_a_chunk(tmp_path):
    """A run that is resumed, or an episode that is replayed, would be another one."""
    made = policy(level="action")
    torch.nn.init.normal_(made.model.body[-1].weight)
    made.save(tmp_path / "own")
    again = load(PolicySection(model=str(tmp_path / "own"), logprob_level="action"), seed=5, device="cpu")
    assert isinstance(again, ResidualPolicy) and (again.size, again.shape) == (made.size, made.shape)
    again.load_state_dict(made.state_dict())
    begun = played(made, [episode()], range(2))[0]
    played(again, [episode()], range(2))
    rest = [played(each, [Episode(begun.sample, 0, list(begun.turns))], range(2, 8))[0] for each in (made, again)]
    for one, other in zip(rest[0].turns, rest[1].turns, strict=True):
        assert (one.decision.action == other.decision.action).all()
        assert torch.equal(one.decision.logprobs, other.decision.logprobs)
        assert one.decision.inputs.plan.place == other.decision.inputs.plan.place


@pytest.mark.parametrize(
    "about", [{}, {"scale": 0.0}, {"scale": 0.1, "width": 3}, {"hidden": 0}, {"log_std": math.inf}, {"hidden": 9}]
)
def test_a_folder_of_something_else_is_named(tmp_path, about):
    """A traceback would not say which file to look at."""
    policy().save(tmp_path)
    changed = {"model_type": "vlrl_residual", "hidden": 8, "layers": 1} | about
    (tmp_path / "config.json").write_text(json.dumps(changed))
    if about:
        with pytest.raises(UserError, match=r"policy\.model"):
            load(PolicySection(model=str(tmp_path)))
    else:
        load(PolicySection(model=str(tmp_path)))


def test_a_residual_without_its_base_is_refused(tmp_path):
    """A traceback would not say what is missing."""
    policy().save(tmp_path)
    (tmp_path / "base" / "config.json").unlink()
    with pytest.raises(UserError, match=r"base/config\.json"):
        load(PolicySection(model=str(tmp_path)))


def test_another_robot_is_refused():
    """A policy fed with another robot's numbers would move, and nobody would know why so badly."""
    with pytest.raises(UserError, match="made for a state of 3 numbers"):
        policy().act([episode()], [Observation(("Go.",), np.zeros(4, np.float32))])


def test_it_is_served_as_it_was_trained(tmp_path):
    """A served residual that forgot where the base stands would be another policy than the one that was measured."""
    made = policy()
    torch.nn.init.normal_(made.model.body[-1].weight)
    made.save(tmp_path / "own")
    served = servable(str(tmp_path / "own"), hz=20.0, device="cpu")
    assert served.spec.chunk == 1 and [each.name for each in served.spec.action] == ["vx", "grip"]

    def asked(session: str, number: int, seed: int) -> np.ndarray:
        return served.infer([PolicyRequest(session, number, "Go.", shown(seed).state)])[0]

    (one,) = played(made, [episode()], range(5), greedy=True)
    wanted = [turn.decision.action for turn in one.turns]
    first = [asked("a", 0, 0), asked("a", 0, 1)]
    other = [asked("b", 0, seed) for seed in range(5)]  # another client meanwhile
    np.testing.assert_allclose(first + [asked("a", 0, seed) for seed in (2, 3, 4)], wanted, atol=1e-6)
    np.testing.assert_allclose(other, wanted, atol=1e-6)
    np.testing.assert_allclose(asked("a", 1, 0), wanted[0], atol=1e-6)  # a new episode begins a new chunk
    asked("b", 0, 0)
    served.forget("b")
    np.testing.assert_allclose(asked("b", 0, 0), wanted[0], atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [(["embedded"], "is no policy of the kind"), (["embedded_push", "--scale", "0"], "scale above 0"),
     (["embedded_pushh"], "did you mean"), (["embedded_push", "--hidden", "0"], "at least 1")],
)  # fmt: skip
def test_mistakes_of_the_command_are_one_line(tmp_path, capsys, arguments, problem):
    """A policy would be made that cannot be loaded, or a traceback be the answer."""
    assert main(["residual", *arguments, "--out", str(tmp_path / "made")]) == 2
    assert problem in capsys.readouterr().err and not (tmp_path / "made").exists()


@pytest.mark.slow
def test_a_residual_is_made_and_trained_and_a_killed_run_goes_on_exactly(tmp_path, capsys):
    """A night of simulation would be lost with one power cut, or go on as another run."""
    made, config = tmp_path / "made", ROOT / "configs" / "manipulation.yaml"
    assert main(["residual", "embedded_push", "--out", str(made), "--hidden", "16", "--scale", "0.2"]) == 0
    small = ["task.horizon=12", "task.scenes=6", "task.held_out=3", "task.workers=1", "train.prompts_per_step=4",
             "train.group_size=1", "train.num_minibatches=2", "log.checkpoint_every=1", "log.trackers=[]",
             f"policy.model={made}", "advantages=[{name: gae, gamma: 0.99}]"]  # fmt: skip
    for name, steps in (("whole", 2), ("part", 1)):
        assert main(["train", str(config), *small, f"train.steps={steps}", f"out={tmp_path / name}"]) == 0
    resolved = tmp_path / "part" / "config.yaml"
    resolved.write_text(resolved.read_text().replace("steps: 1\n", "steps: 2\n"))
    assert main(["train", "--resume", str(tmp_path / "part")]) == 0
    whole, part = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "part")
    )
    assert [row for row in part if "length" in row] == [row for row in whole if "length" in row]
    assert part[-1] == whole[-1] and whole[0]["eval/n"] == 3
    again = load(PolicySection(model=str(tmp_path / "whole")), device="cpu")
    base = load(PolicySection(model="embedded_push"), device="cpu").model.state_dict()
    assert all(torch.equal(value, base[name]) for name, value in again.base.policy.model.state_dict().items())
