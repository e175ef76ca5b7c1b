"""Completions that are written over several steps: they go on as if nothing had been, in windows or whole groups."""

from __future__ import annotations

import pytest
import torch

from vlrl import api, registry
from vlrl.algorithms.rollout_filtering import PartialCompletion, PartialRollouts, Window
from vlrl.batch import columns
from vlrl.checkpoint import flatten, unflatten
from vlrl.policies.loading import load
from vlrl.recipe_checks import load_config
from vlrl.rollout import collect
from vlrl.types import Decision, UserError

LONGEST = 16


def made():
    config = load_config("configs/gui_grounding.yaml", [f"policy.max_tokens={LONGEST}", "task.pool=24"])
    return load(config.policy, seed=0), registry.make_task(config)


@pytest.fixture(scope="module")
def parts():
    return made()


def thawed(state: dict) -> dict:
    tensors: dict[str, torch.Tensor] = {}
    return unflatten(flatten(state, tensors), tensors)


def test_a_completion_ends_as_if_no_window_had_cut_it(parts):
    """Answers would be others than the policy's, or be rewarded before they are whole."""
    policy, task = parts
    samples = [task.samples("train")[i] for i in range(4)]
    whole = {e.sample.id: e for e in collect(policy, task, samples, 1, greedy=True)}
    strategy, seen = Window(policy, task, 0, tokens=4), {}
    for step in range(4):
        for episode in strategy(policy, task, samples, 1, step, greedy=True):
            decision = episode.turns[0].decision
            if episode.turns[0].step.truncated:
                assert (episode.reward, episode.score.correct) == (0.0, 0.0)
            else:
                seen.setdefault(episode.sample.id, episode)
            assert len(decision.inputs.tokens) <= LONGEST
    assert set(seen) == set(whole)
    for name, then in whole.items():
        assert (seen[name].completion, seen[name].reward) == (then.completion, then.reward)


def test_only_new_tokens_are_trained_and_old_ones_keep_their_law(parts):
    """Tokens of earlier weights would be trained as if the present ones had written them."""
    policy, task = parts
    strategy, samples = Window(policy, task, 0, tokens=4), [task.samples("train")[i] for i in range(4)]
    first = strategy(policy, task, samples, 1, 0)
    kept = {part.group: part for part in strategy.open}
    assert kept and all(e.turns[0].decision.forced_mask is None for e in first)
    second = strategy(policy, task, samples, 1, 1)
    rollouts = columns(second)
    with torch.no_grad():
        now = policy.evaluate([e.turns[0].decision for e in second])
    for row, episode in enumerate(second):
        n = 4 if episode.group in kept else 0
        assert not rollouts.mask[row, :n].any() and 1 <= int(rollouts.mask[row].sum()) <= 4
        if n:
            assert episode.turns[0].decision.inputs.tokens[:n] == kept[episode.group].tokens
            assert torch.equal(rollouts.logprobs[row, :n], kept[episode.group].logprobs)
    new = rollouts.mask
    torch.testing.assert_close(now.logprobs[new], rollouts.logprobs[new], rtol=0, atol=1e-4)
    assert torch.equal(rollouts.truncated, torch.tensor([e.turns[0].step.truncated for e in second]))


def test_what_ends_makes_room_for_whole_groups(parts):
    """A step would grow without bound, or a prompt would get fewer answers than it should."""
    policy, task = parts
    strategy, members = Window(policy, task, 0, tokens=8), {}
    for step in range(6):
        samples = [task.samples("train")[3 * step % 18 + i] for i in range(3)]
        free = 9 - len(strategy.open)
        episodes = strategy(policy, task, samples, 3, step)
        assert len(episodes) == 9 - free + 3 * (free // 3) <= 9
        for episode in episodes:
            if episode.turns[0].decision.forced_mask is None:
                members.setdefault(episode.group, []).append(episode.sample.id)
        done = [e for e in episodes if not e.turns[0].step.truncated]
        assert strategy.metrics["window/finished"] == len(done) / len(episodes)
    assert all(len(ids) == 3 and len(set(ids)) == 1 for ids in members.values())
    assert list(members) == list(range(len(members))) and len(members) > 3


def test_completions_under_way_come_back_from_a_checkpoint(parts):
    """A killed run would forget half-written answers, or go on with other ones."""
    policy, task = parts
    strategy, samples = Window(policy, task, 0, tokens=4), [task.samples("train")[i] for i in range(4)]
    strategy(policy, task, samples, 2, 0)
    state, drawn = thawed(strategy.state_dict()), policy.state_dict()
    straight = strategy(policy, task, samples, 2, 1)
    other = Window(policy, task, 0, tokens=4)
    other.load_state_dict(state)
    policy.load_state_dict(drawn)
    resumed = other(policy, task, samples, 2, 1)
    for one, two in zip(straight, resumed, strict=True):
        a, b = one.turns[0].decision, two.turns[0].decision
        assert (one.group, one.sample.id, one.reward, a.action) == (two.group, two.sample.id, two.reward, b.action)
        assert torch.equal(a.logprobs, b.logprobs)
    other.pool = [task.samples("train")[9]]
    with pytest.raises(UserError, match="is gone"):
        other.load_state_dict(state)


def test_windows_that_cut_nothing_are_refused(parts):
    """A run would be called T-PPO and be plain."""
    with pytest.raises(UserError, match="at most half"):
        Window(*parts, 0, tokens=LONGEST // 2 + 1)


CHANGES = [
    "task.pool=12", "policy.max_tokens=12", "train.prompts_per_step=4", "train.num_minibatches=1", "train.lr=1e-3",
    "train.lr_end=null", "eval.num_samples=2", "eval.every_steps=null", "log.trackers=[]", "log.checkpoint_every=1",
    "advantages=[{name: egae, warmup: 1}, whiten]",
]  # fmt: skip


def trained(folder, steps: int, resume: bool = False) -> list[str]:
    config = load_config("configs/recipes/t_ppo.yaml", [*CHANGES, f"train.steps={steps}", f"out={folder}"])
    api.train(config, resume=resume)
    return [line for line in (folder / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]


def test_a_resumed_run_is_the_straight_one(tmp_path):
    """The critic or an answer under way would be lost with the process."""
    straight = trained(tmp_path / "straight", 5)
    trained(tmp_path / "killed", 3)
    assert trained(tmp_path / "killed", 5, resume=True) == straight


def drawn_samples(task, count: int, first: int = 0):
    return [task.samples("train")[first + i] for i in range(count)]


def test_a_group_is_returned_once_and_whole(parts):
    """Members would be compared with fewer than their group, or an answer would be learned from twice."""
    policy, task = parts
    strategy, returned = PartialRollouts(policy, task, 0, tokens=4), {}
    for step in range(6):
        episodes = strategy(policy, task, drawn_samples(task, 3, 3 * step), 4, step)
        for episode in episodes:
            returned.setdefault(episode.group, []).append((episode.sample.id, step))
            decision = episode.turns[0].decision
            assert decision.forced_mask is None and len(decision.inputs.tokens) == len(decision.logprobs) <= LONGEST
            assert decision.truncated == (decision.inputs.tokens[-1] not in policy.codec.stop_ids)
        assert episodes and strategy.metrics["partial/groups"] == len(episodes) / 4
    assert all(len(members) == 4 and len(set(members)) == 1 for members in returned.values())
    left = {each.group for each in strategy.under_way}
    assert left and left | set(returned) == set(range(18)) and not left & set(returned)
    assert max(step for _, step in returned[0]) > 0  # else nothing here went on in a later step


def test_segments_make_the_answers_and_rewards_of_one_piece(parts):
    """A long answer would be another one than the policy's, or its cut beginning would be rewarded."""
    policy, task = parts
    samples = drawn_samples(task, 4)
    whole = {
        e.sample.id: (e.completion, e.reward, e.score.correct) for e in collect(policy, task, samples, 1, greedy=True)
    }
    strategy, ended = PartialRollouts(policy, task, 0, tokens=3), {}
    for step in range(6):
        for e in strategy(policy, task, samples if step == 0 else drawn_samples(task, 1, 9), 1, step, greedy=True):
            ended.setdefault(e.sample.id, (e.completion, e.reward, e.score.correct))
    assert {name: ended[name] for name in whole} == whole


def test_each_segment_keeps_the_law_of_the_weights_that_wrote_it():
    """Ratios of tokens that earlier weights wrote would be taken for 1."""
    policy, task = made()
    strategy, laws, written = PartialRollouts(policy, task, 0, tokens=4), [], []
    weights = [p for p in policy.model.parameters() if p.requires_grad]
    for step in range(4):
        written += [(step, e) for e in strategy(policy, task, drawn_samples(task, 2, 2 * step), 2, step)]
        laws.append([p.detach().clone() for p in weights])
        with torch.no_grad():
            for number, p in enumerate(weights):
                p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(97 * step + number)))

    def find_law(decision: Decision, start: int) -> list[int]:
        """The steps whose weights give a segment's tokens the log-probabilities that were kept."""
        kept, matching = decision.logprobs[start : start + 4], []
        for step, law in enumerate(laws):
            with torch.no_grad():
                for p, value in zip(weights, law, strict=True):
                    p.copy_(value)
                now = policy.evaluate([decision]).logprobs[0, start : start + 4]
            matching += [step] if torch.allclose(kept, now[: len(kept)], rtol=0, atol=1e-4) else []
        return matching

    several = 0
    for step, episode in written:
        decision = episode.turns[0].decision
        found = [find_law(decision, start) for start in range(0, len(decision.logprobs), 4)]
        assert all(len(each) == 1 for each in found)
        steps = [number for (number,) in found]
        # a step writes several segments where no group would end otherwise
        assert steps == sorted(steps) and steps[0] == episode.group // 2 and steps[-1] <= step
        several += len(set(steps)) > 1
    assert several


def test_an_engine_that_wrote_the_segments_is_heard_of_each():
    """Corrections for the engine's law would read zeros for all segments but the last."""
    nothing, first, second = torch.zeros(0), torch.tensor([-1.0, -2.0]), torch.tensor([0.0, 0.0, -3.0])
    begun = PartialCompletion(None, 0, (), nothing, nothing)
    one = begun.extend(Decision("a", first, first, True, engine_logprobs=first - 0.5), (5, 6), 8)
    two = one.extend(Decision("ab", second, second, True, engine_logprobs=second - 0.25), (5, 6, 7), 8)
    assert two.engine_logprobs.tolist() == [-1.5, -2.5, -3.25] and two.logprobs.tolist() == [-1.0, -2.0, -3.0]
    cut = one.extend(Decision("ab", second, second, False, engine_logprobs=second), (5, 6, 7), 2)
    assert (cut.tokens, cut.truncated, len(cut.engine_logprobs), cut.segments) == ((5, 6), True, 2, 2)


def test_groups_under_way_come_back_from_a_checkpoint(parts):
    """A killed run would forget half-written groups, or go on with other ones."""
    policy, task = parts
    strategy, samples = PartialRollouts(policy, task, 0, tokens=4), drawn_samples(task, 3)
    strategy(policy, task, samples, 2, 0)
    state, drawn = thawed(strategy.state_dict()), policy.state_dict()
    assert state["under_way"]
    straight = strategy(policy, task, samples, 2, 1)
    other = PartialRollouts(policy, task, 0, tokens=4)
    other.load_state_dict(state)
    policy.load_state_dict(drawn)
    for one, two in zip(straight, other(policy, task, samples, 2, 1), strict=True):
        a, b = one.turns[0].decision, two.turns[0].decision
        assert (one.group, one.sample.id, one.reward, a.action) == (two.group, two.sample.id, two.reward, b.action)
        assert torch.equal(a.logprobs, b.logprobs) and torch.equal(a.entropy, b.entropy)
    other.pool = [task.samples("train")[9]]
    with pytest.raises(UserError, match="is gone"):
        other.load_state_dict(state)


def test_a_resumed_run_of_partial_rollouts_is_the_straight_one(tmp_path):
    """What is half-written would be lost with the process."""

    def run(folder, steps: int, resume: bool = False) -> list[str]:
        changes = [
            *CHANGES[:-1],
            "train.group_size=2",
            "rollout_strategy={name: partial, tokens: 4}",
            f"train.steps={steps}",
        ]
        api.train(load_config("configs/gui_grounding.yaml", [*changes, f"out={folder}"]), resume=resume)
        return [line for line in (folder / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]

    straight = run(tmp_path / "straight", 5)
    run(tmp_path / "killed", 3)
    assert run(tmp_path / "killed", 5, resume=True) == straight
