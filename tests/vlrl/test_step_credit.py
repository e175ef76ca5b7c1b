"""Credit for single steps: estimators that compare or value them, and process rewards that pay them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vlrl.algorithms.critics import Squares, ValueCritic
from vlrl.algorithms.gae import Gae, explained
from vlrl.algorithms.multi_turn import GiGPO, Salt, cells, places, tgrpo, turn_of
from vlrl.checkpoint import flatten, unflatten
from vlrl.cli import main
from vlrl.contrib.process_rewards.progress import SPA, CaRL, Soft, changes, g_ra_steps
from vlrl.policies.discrete import ControlPolicy, DiscreteShape, Network
from vlrl.recipe_checks import load_config
from vlrl.types import Episode, Observation, Policy, Rollouts, Sample, Score, Step, Turn, UserError

ROOT = Path(__file__).parents[2]
RECIPES = ("simple_vla_rl", "ript_vla", "vla_rl", "tgrpo", "gigpo", "salt", "spa", "g_ra_steps", "carl")


def rollouts_of(rewards: list[float], turns: list[int], group: list[int] | None = None, **columns) -> Rollouts:
    """Episodes of so many turns, all of one group unless told otherwise, with further columns."""
    episode = torch.arange(len(turns)).repeat_interleave(torch.tensor(turns))
    one = torch.ones(len(episode), 1, dtype=torch.float64)
    reward, ids = torch.tensor(rewards, dtype=torch.float64), tuple(map(str, range(len(turns))))
    groups = torch.tensor(group or [0] * len(turns))
    return Rollouts(ids, reward, groups, episode, one.bool(), -one, one, **columns)


def near(got: Tensor, wanted: list[float]) -> None:
    torch.testing.assert_close(got.double(), torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-6)


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# -- places ----------------------------------------------------------------------------------------------------------


def test_places_are_those_of_a_group():
    """Steps of different scenes, or of bodies that stood elsewhere, would be each other's baseline."""
    rollouts = rollouts_of([1.0, 0.0, 0.0], [2, 2, 2], group=[0, 0, 1], observation_keys=("a", "b", "a", "a", "a", "b"))
    assert places(rollouts, "seen", 1.0).tolist() == [0, 1, 0, 0, 2, 3]
    states = torch.tensor([[0.0], [5.0], [0.0], [1.0], [0.0], [5.0]])  # the robot has no camera: all see the same
    with_body = replace(rollouts, observation_keys=("a",) * 6, states=states)
    assert places(with_body, "seen", 1.0).tolist() == [0, 1, 0, 2, 3, 4]
    with pytest.raises(UserError, match=r"by: state needs a body's state.*use by: seen"):
        places(rollouts, "state", 1.0)


def test_cells_are_measured_in_spreads():
    """A state in millimetres would have other places than the same in metres; one that is constant, none at all."""
    states = torch.tensor([[0.0, 7.0], [1.0, 7.0], [2.0, 7.0], [3.0, 7.0]])  # deviation sqrt(1.25) = 1.118
    assert cells(states, 1.0).tolist() == [[0, 0], [0, 0], [1, 0], [2, 0]]  # 0, 0.894, 1.789, 2.683
    assert cells(1000 * states, 1.0).tolist() == cells(states, 1.0).tolist()
    assert cells(states, 0.5)[:, 0].tolist() == [0, 1, 3, 5]


# -- GiGPO -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def walks(golden) -> tuple[Rollouts, dict, dict]:
    """Two episodes of a group, one of which is won, their worked advantages and the options of these."""
    inputs, outputs = golden("gigpo_advantage")
    rollouts = rollouts_of(inputs["rewards"], inputs["turns"], observation_keys=tuple(inputs["seen"]))
    return rollouts, outputs, {name: inputs[name] for name in ("gamma", "eps")}


@pytest.mark.parametrize(
    ("options", "name"), [({}, "episodes"), ({"over": "steps"}, "over_steps"), ({"std": "group"}, "std")]
)
def test_group_in_group_advantages_equal_the_worked_example(walks, options, name):
    """Steps would be compared by another rule than the paper's, or the released code's, or over other spreads."""
    rollouts, outputs, stated = walks
    method = GiGPO(**stated, **options)
    near(method(rollouts, doubles()), outputs[name])
    assert method.metrics["gigpo/shared"] == pytest.approx(outputs["shared"], abs=1e-6)


def test_group_in_group_advantages_are_a_sum(walks):
    """A weight of one part would weigh the other too."""
    rollouts, outputs, stated = walks
    for over, name in (("episodes", "episodes"), ("steps", "over_steps")):
        whole = GiGPO(over=over, weight=0.0, **stated)(rollouts, doubles())
        near(whole, [a - s for a, s in zip(outputs[name], outputs["steps"], strict=True)])
        near(GiGPO(over=over, weight=2.0, **stated)(rollouts, doubles()) - whole, [2 * s for s in outputs["steps"]])


def test_group_in_group_advantages_count_what_steps_earned(golden):
    """Process rewards would be paid and not compared."""
    inputs, outputs = (each["earned_case"] for each in golden("gigpo_advantage"))
    earned = {"observation_keys": tuple(inputs["seen"]), "process_reward": doubles(*inputs["earned"])}
    rollouts = rollouts_of(inputs["rewards"], inputs["turns"], **earned)
    near(GiGPO(gamma=inputs["gamma"])(rollouts, doubles()), outputs)


@settings(max_examples=20)
@given(st.integers(0, 9999))
def test_at_every_place_steps_are_compared_with_each_other(seed):
    """Steps from a place would be pushed up or down as a whole."""
    drawn = torch.Generator().manual_seed(seed)
    states, rewards = torch.randn(12, 2, generator=drawn), torch.rand(4, generator=drawn).tolist()
    rollouts = rollouts_of(rewards, [3, 1, 2, 6], group=[0, 0, 1, 1], states=states)
    steps = GiGPO(by="state")(rollouts, doubles()) - GiGPO(by="state", weight=0.0)(rollouts, doubles())
    place = places(rollouts, "state", 1.0)
    near(doubles(*[0.0] * 12).index_add(0, place, steps), [0.0] * 12)


# -- SALT ------------------------------------------------------------------------------------------------------------


def test_shared_steps_have_the_mean_of_their_episodes():
    """What good and bad episodes both did would be rewarded in the one and punished in the other."""
    # (s0, open) is taken by the episodes of 1 and -2: -0.5. (s1, right) by that of 1, (s1, left) by that of -2, alone.
    # The third goes twice through (s0, wait), with the second: the mean of 1 and -2 all the same, each counts once.
    seen = ("s0", "s1", "s0", "s1", "s0", "s0", "s0", "s9")
    done = ("open", "right", "open", "left", "wait", "wait", "wait", "x")
    turns = [2, 3, 3]  # 1: open, right; 2: open, left, wait; 3: wait, wait, x
    rollouts = rollouts_of([0.0] * 3, turns, observation_keys=seen, action_keys=done)
    method = Salt()
    got = method(rollouts, doubles(1, 1, -2, -2, -2, 4, 4, 4))
    near(got, [-0.5, 1, -0.5, -2, 1, 1, 1, 4])
    assert method.metrics["salt/shared"] == pytest.approx(5 / 8)


def test_a_step_may_be_known_by_where_it_led():
    """A robot's actions never recur: nothing would ever be shared."""
    seen, done = ("s0", "s1", "s0", "s1"), ("a", "b", "c", "d")
    rollouts = rollouts_of([0.0, 0.0], [2, 2], observation_keys=seen, action_keys=done)
    given_ = doubles(3, 3, -1, -1)
    near(Salt(action="done")(rollouts, given_), [3, 3, -1, -1])
    near(Salt(action="next")(rollouts, given_), [1, 3, 1, -1])  # s0 -> s1 is shared, the last steps are their own
    apart = replace(rollouts, group=torch.tensor([0, 1]))
    near(Salt(action="next")(apart, given_), [3, 3, -1, -1])


# -- TGRPO -----------------------------------------------------------------------------------------------------------


def test_fused_advantages_equal_the_worked_example():
    """Episodes and steps would be weighed by another rule."""
    # r: 0.2, 1.4 | 0.0, 0.0, 0.4. Sums 1.6, 0.4: mean 1, deviation 1.2 / sqrt 2 = 0.848528: T = +-0.707106. At t = 0:
    # 0.2, 0.0: +-0.1 / 0.141422; at t = 1: 1.4, 0: +-0.7 / 0.989950; at t = 2 the second plays alone: 0.
    earned = doubles(0.2, 0.4, 0.0, 0.0, 0.4)
    rollouts = rollouts_of([1.0, 0.0], [2, 3], process_reward=earned)
    t, at_0, at_1 = 0.6 / 0.848529, 0.1 / 0.1414224, 0.7 / 0.9899505
    near(tgrpo(rollouts, doubles()), [t + at_0, t + at_1, -t - at_0, -t - at_1, -t])
    near(tgrpo(rollouts, doubles(), episode=0.5, step=0.0), [t / 2, t / 2, -t / 2, -t / 2, -t / 2])
    near(tgrpo(rollouts, doubles(), episode=0.0, step=2.0), [2 * at_0, 2 * at_1, -2 * at_0, -2 * at_1, 0])
    assert turn_of(rollouts.episode).tolist() == [0, 1, 0, 1, 2]


# -- generalised advantages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        # V = 0.5 everywhere. Won: delta 0.1 + 0.45 - 0.5 = 0.05 and 0.2 + 1 - 0.5 = 0.7, with gamma lam = 0.45.
        # Timed out, with 0.5 behind it: delta -0.05 and 0.45 - 0.5 = -0.05.
        ({"gamma": 0.9}, [0.05 + 0.45 * 0.7, 0.7, -0.05 - 0.45 * 0.05, -0.05]),
        ({"gamma": 0.9, "bootstrap": False}, [0.05 + 0.45 * 0.7, 0.7, -0.05 - 0.45 * 0.5, -0.5]),
        # gamma = 1: never; delta 0.1, 0.7 and 0, -0.5, with gamma lam = 0.5
        ({"gamma": 1.0}, [0.1 + 0.5 * 0.7, 0.7, -0.25, -0.5]),
    ],
)
def test_generalised_advantages_of_steps_and_time_outs(options, wanted):
    """What steps earned would be lost; an episode that was only too slow would be learned as a failure."""
    untaught = Gae(lam=0.5, critic="hl_gauss", low=-1.0, high=2.0, **options)  # begins at the middle
    rollouts = rollouts_of(
        [1.0, 0.0], [2, 2], features=torch.ones(4, 3), process_reward=doubles(0.1, 0.2, 0.0, 0.0),
        truncated=torch.tensor([False, True]), final=torch.ones(2, 3),
    )  # fmt: skip
    near(untaught(rollouts, rollouts.reward[rollouts.episode]), wanted)


def test_a_step_in_which_nothing_was_cut_needs_no_last_features():
    """The first step without a time-out would stop the run."""
    rollouts = rollouts_of([1.0], [2], features=torch.ones(2, 3), truncated=torch.tensor([False]))
    assert torch.isfinite(Gae(gamma=0.9)(rollouts, rollouts.reward[rollouts.episode])).all()


def test_a_hidden_layer_tells_what_a_line_cannot():
    """The option would cost time and learn nothing more; a resumed run would go on with another critic."""
    features = torch.randn(256, 2, generator=torch.Generator().manual_seed(0))
    truth = (features[:, 0] * features[:, 1] > 0).float()  # no line tells these quadrants apart
    told = {}
    for hidden in (0, 32):
        critic, other = (ValueCritic(2, lr=3e-2, epochs=5, head=Squares(), hidden=hidden) for _ in range(2))
        assert (critic.values(features) == 0).all()
        for _ in range(40):
            critic.learn(features, truth)
        told[hidden] = explained(critic.values(features), truth)
        other.load_state_dict(critic.state_dict())
        assert other.learn(features, truth) == critic.learn(features, truth)
        assert torch.equal(other.values(features), critic.values(features))
    assert told[0] < 0.1 and told[32] > 0.7


# -- process rewards -------------------------------------------------------------------------------------------------

SHAPE = DiscreteShape(state=2, controls=("x",), low=(-1.0,), high=(1.0,), chunk=1, bins=3, hidden=16, layers=1)


def policy_of(seed: int = 0) -> ControlPolicy:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ControlPolicy(Network(SHAPE), seed=seed)


def played(policy: ControlPolicy, states: list[tuple[float, float]], reward: float, infos: list[dict] | None = None):
    """An episode that was shown these states, the last one behind its last turn."""
    shown = [Observation((), np.array(state, np.float32)) for state in states]
    turns = []
    for i, (before, after) in enumerate(pairwise(shown)):
        info = infos[i] if infos else {}
        turns.append(Turn(before, policy.decide(before, np.zeros((1, 1))), Step(after, info=info)))
    return Episode(Sample("a", shown[0]), 0, turns, Score({"success": reward, "form": 0.5}, reward), reward)


def walk(infos: list[dict], reward: float = 1.0) -> Episode:
    return played(policy_of(), [(0.0, 0.0)] * (len(infos) + 1), reward, infos)


def earned(episode: Episode) -> list[float]:
    return [turn.process_reward for turn in episode.turns]


def paid(method: CaRL, *episodes: Episode) -> list[Episode]:
    return method(list(episodes), 0)


def test_progress_times_penalties_equals_the_worked_example():
    """A robot would be paid for how it got there by another rule than how far it got."""
    # Over a span of -0.5 m: 0.4 m is the first known, 0.3 gains 0.2, 0.35 nothing, 0.1 another 0.4. Forces: 25 N halves
    # (limit 20, fall 10), 40 N takes all. Above 60 N nothing is paid any more, and the outcome neither.
    forces = {"progress": "distance", "span": -0.5, "soft": {"force": Soft(20.0, 10.0)}, "hard": {"force": 60.0}}
    ways = [0.4, 0.3, 0.35, 0.1]
    soft = walk([{"distance": d, "force": f} for d, f in zip(ways, [0, 25, 40, 0], strict=True)])
    hard = walk([{"distance": d, "force": f} for d, f in zip(ways, [0, 0, 61, 0], strict=True)])
    method = CaRL(None, None, 0, coef=2.0, penalty=1.0, **forces)
    first, second = paid(method, soft, hard)
    assert earned(first) == pytest.approx([0.0, 2 * 0.2 * 0.5, 0.0, 2 * 0.4]) and first.reward == 1.0
    assert earned(second) == pytest.approx([0.0, 2 * 0.2, -1.0, 0.0]) and second.reward == 0.0
    assert method.metrics == pytest.approx({"carl/progress": (0.6 + 0.2) / 2, "carl/violated": 0.5})
    (begun,) = paid(CaRL(None, None, 0, progress="distance", span=-0.5, start=0.5), soft)
    assert earned(begun) == pytest.approx([0.2, 0.2, 0.0, 0.4])  # the way before the first turn is known as well


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=12), st.lists(st.floats(0, 3), min_size=12, max_size=12))
def test_going_to_and_fro_earns_nothing(ways, penalties):
    """A policy would oscillate for a living."""
    episode = walk([{"way": w, "force": f} for w, f in zip(ways, penalties, strict=False)])
    (made,) = paid(CaRL(None, None, 0, progress="way", span=1.0, soft={"force": Soft(1.0, 1.0)}), episode)
    assert min(earned(made)) >= 0 and sum(earned(made)) <= max(ways) - ways[0] + 1e-9


def test_numbers_that_nobody_tells_are_refused():
    """A misspelt name would pay nothing for a night."""
    episode = walk([{"distance": 0.1, "ticks": 8.0}])
    for options in (
        {"progress": "distanse", "span": 1.0},
        {"progress": "ticks", "span": 1.0, "soft": {"f": Soft(1, 1)}},
    ):
        with pytest.raises(UserError, match=r"carl: no step tells '(distanse|f)' \(one of: distance, ticks\)"):
            paid(CaRL(None, None, 0, **options), episode)
    with pytest.raises(UserError, match="span = 0"):
        CaRL(None, None, 0, progress="ticks", span=0.0)


def test_steps_count_only_where_the_outcome_does():
    """A policy would live on what steps earn and never get done."""
    episodes = [
        replace(e, turns=[replace(turn, process_reward=0.25) for turn in e.turns])
        for e in (walk([{}] * 2, reward=1.0), walk([{}] * 2, reward=0.0))
    ]
    for options in ({"threshold": 1.0}, {"threshold": 0.5, "high": "success"}):
        won, lost = g_ra_steps(episodes, 0, **options)
        assert earned(won) == [0.25, 0.25] and earned(lost) == [0.0, 0.0] and (won.reward, lost.reward) == (1.0, 0.0)
    assert earned(g_ra_steps(episodes, 0, threshold=0.5, high="form")[1]) == [0.25, 0.25]
    with pytest.raises(UserError, match=r"has no part 'sucess'.*form, success"):
        g_ra_steps(episodes, 0, threshold=1.0, high="sucess")


def journeys(policy: ControlPolicy, seed: int, n: int = 16) -> list[Episode]:
    """Of two to four turns; won are those whose first state number ever jumps to 1."""
    drawn = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        turns, won = int(drawn.integers(2, 5)), bool(drawn.integers(2))
        jump = int(drawn.integers(1, turns + 1)) if won else turns + 1
        made.append(played(policy, [(float(t >= jump), 0.0) for t in range(turns + 1)], float(won)))
    return made


def test_contributions_sum_to_the_outcome_and_find_the_step_that_made_it():
    """All steps of a success would be praised, also those that brought nothing; or outcomes be paid twice, or lost."""
    policy = policy_of()
    method = SPA(policy, None, 0, lr=3e-2, epochs=20)
    for step in range(20):
        episodes = journeys(policy, step)
        made = method(episodes, step)
        for before, after in zip(episodes, made, strict=True):
            assert sum(earned(after)) + after.reward == pytest.approx(before.reward, abs=1e-5)
    assert method.metrics["spa/explained"] > 0.9
    won = played(policy, [(0.0, 0.0), (0.0, 0.0), (1.0, 0.0), (1.0, 0.0)], 1.0)
    idle, jump, after = earned(method([won], 20)[0])
    assert jump > 0.5 and abs(idle) < 0.25 and abs(after) < 0.25


def test_an_estimator_that_knows_nothing_changes_nothing():
    """The first steps of a run would be trained on noise."""
    policy = policy_of()
    episodes = journeys(policy, 0)
    made = SPA(policy, None, 0)(episodes, 0)
    assert [e.reward for e in made] == [e.reward for e in episodes] and not any(any(earned(e)) for e in made)
    with pytest.raises(UserError, match="spa: needs what a policy makes of its prompts"):
        SPA(Policy(), None, 0)


def test_contributions_see_what_a_step_changed():
    """Steps of one episode would be credited with those of the next."""
    policy = policy_of()
    episodes = [
        played(policy, [(0.0, 0.0), (1.0, 2.0)], 0.0),
        played(policy, [(3.0, 1.0), (2.0, 0.0), (5.0, 1.0)], 1.0),
    ]
    states = [(0.0, 0.0), (1.0, 2.0), (3.0, 1.0), (2.0, 0.0), (5.0, 1.0)]
    of = policy.features([policy.decide(Observation((), np.array(s, np.float32)), np.zeros((1, 1))) for s in states])
    before, after = of[[0, 2, 3]], of[[1, 3, 4]]
    torch.testing.assert_close(changes(policy, episodes), torch.cat([before, after - before], 1))


def test_a_resumed_estimator_goes_on_exactly():
    """A resumed run would spread outcomes otherwise than an unbroken one."""
    policy = policy_of()
    whole, resumed, fresh = (SPA(policy, None, 0) for _ in range(3))
    fresh.load_state_dict(whole.state_dict())
    for step in range(3):
        whole(journeys(policy, step), step)
    tensors: dict[str, Tensor] = {}
    resumed.load_state_dict(unflatten(json.loads(json.dumps(flatten(whole.state_dict(), tensors))), tensors))
    for step in range(3, 6):
        one, other = (method(journeys(policy, step), step) for method in (whole, resumed))
        assert list(map(earned, one)) == list(map(earned, other)) and whole.metrics == resumed.metrics
    assert fresh.weight is None


# -- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_of_steps_fit_their_robots(name):
    """`vlrl train configs/X.yaml configs/recipes/Y.yaml` is how recipes are used."""
    recipe = ROOT / "configs" / "recipes" / f"{name}.yaml"
    assert load_config(recipe).out == f"runs/{name}"
    for robot in ("manipulation", "manipulation_so101"):
        load_config(ROOT / "configs" / f"{robot}.yaml", [str(recipe)])


def test_a_robots_run_that_was_killed_goes_on_exactly(tmp_path):
    """Critic and estimator would begin anew in the middle of a night, or time-outs be valued otherwise."""
    small = ["task.horizon=24", "task.workers=1", "task.scenes=8", "eval.num_samples=2", "log.trackers=[]",
             "train.prompts_per_step=2", "train.num_minibatches=1", "train.update_epochs=1",
             "log.checkpoint_every=1"]  # fmt: skip
    own = [
        "process_rewards=[{name: carl, progress: distance, span: -0.2}, spa]",
        "advantages=[{name: gae, gamma: 0.9, hidden: 8}]",
    ]

    def train(out: Path, steps: int) -> list[dict]:
        recipe = str(ROOT / "configs" / "recipes" / "spa.yaml")
        assert main(["train", recipe, *small, *own, f"train.steps={steps}", f"out={out}"]) == 0
        return [row for row in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if "reward" in row]

    whole = train(tmp_path / "whole", 2)
    train(tmp_path / "part", 1)
    config = tmp_path / "part" / "config.yaml"
    config.write_text(config.read_text().replace("steps: 1\n", "steps: 2\n"))
    assert main(["train", "--resume", str(tmp_path / "part")]) == 0
    rows = (tmp_path / "part" / "metrics.jsonl").read_text().splitlines()
    assert [row for row in map(json.loads, rows) if "reward" in row] == whole
    assert {"gae/explained", "spa/explained", "carl/progress"} <= set(whole[0])
