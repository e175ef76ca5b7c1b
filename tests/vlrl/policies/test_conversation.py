"""Conversations: appended tokens, decoding from what is kept, one training sequence for each episode."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from tests.vlrl.policies.conftest import image
from vlrl.batch import last_features, name_candidates
from vlrl.config import Lora, PolicySection
from vlrl.episode_store import recorded_write
from vlrl.imitation.sft import Demonstrations, SFTLearner, questions
from vlrl.metrics import count_overlong
from vlrl.policies.conversation import find_branches, make_levels
from vlrl.policies.loading import load
from vlrl.policies.processor import to_turns
from vlrl.rollout import collect
from vlrl.types import BaseTask, Environment, Episode, Message, Observation, Sample, Score, Step, Turn, UserError, Video

TURNS = (
    (Message("system", ("Be brief.",)), Message("user", (image(48, 32), "Click the red square."))),
    (Message("user", ("Now this:", image(32, 64, 1), image(40, 32, 2))),),
    (Message("tool", ("[1, 2]",)), Message("user", (image(64, 64, 3), "Click the button."))),
)
OTHER = ((Message("user", ("What is at", image(32, 32, 4), "?")),), (Message("user", ("And now?",)),), TURNS[2])


def conversations(counts=(2, 2)) -> list[tuple[Episode, tuple]]:
    """Episodes of two groups and what each is shown turn by turn; the last one ends a turn early."""
    made = []
    for group, (turns, count) in enumerate(zip((TURNS, OTHER), counts, strict=True)):
        shown = tuple(Observation.from_messages(messages) for messages in turns)
        sample = Sample(f"q/{group}", shown[0])
        for member in range(count):
            made.append(
                (
                    Episode(sample, group, stream=(7, 10 * group + member)),
                    shown[: 2 if (group, member) == (1, 1) else 3],
                )
            )
    return made


def play(policy, made, **options) -> list[Episode]:
    for turn in range(max(len(shown) for _, shown in made)):
        active = [(episode, shown) for episode, shown in made if turn < len(shown)]
        decisions = policy.act([e for e, _ in active], [shown[turn] for _, shown in active], **options)
        for (episode, shown), decision in zip(active, decisions, strict=True):
            following = shown[min(turn + 1, len(shown) - 1)]
            episode.turns.append(Turn(shown[turn], decision, Step(following, terminated=turn + 1 == len(shown))))
    return [episode for episode, _ in made]


def decisions_of(episodes):
    return [turn.decision for episode in episodes for turn in episode.turns]


def by_hand(policy, decision) -> torch.Tensor:
    """A completion's log-probabilities by transformers' own forward pass of the whole conversation."""
    prompt, tokens = decision.inputs.prompt, torch.tensor(decision.inputs.tokens)
    media = [node for node in prompt.lineage if node.pixels is not None]
    ids = torch.cat([prompt.ids, tokens])[None]
    types = torch.cat([prompt.types, torch.zeros(len(tokens), dtype=torch.int32)])[None]
    logits = policy.model(
        input_ids=ids, mm_token_type_ids=types, pixel_values=torch.cat([n.pixels for n in media]),
        image_grid_thw=torch.cat([n.grid for n in media]),
    ).logits[0, len(prompt.ids) - 1 : -1].float()  # fmt: skip
    logits[:, list(policy.codec.banned_ids)] = float("-inf")
    return (logits / policy.temperature).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]


def test_what_was_shown_and_written_keeps_its_tokens(make):
    """Tokens that are rendered anew need not be those that were sampled: ratios and gradients would be of others."""
    policy = make(temperature=1.0)
    for episode in play(policy, conversations()):
        for before, after in zip(episode.turns, episode.turns[1:], strict=False):
            reply, prompt = before.decision.inputs, after.decision.inputs.prompt
            known = [*reply.prompt.ids.tolist(), *reply.tokens]
            assert prompt.ids[: len(known)].tolist() == known
            assert prompt.parent is reply.prompt


@pytest.mark.parametrize("turns", [TURNS, OTHER])
def test_a_conversation_reads_as_its_template_renders_it(make, turns):
    """A model is to see in training what its users' chat template will show it."""
    policy = make()
    shown = [Observation.from_messages(messages) for messages in turns]
    prompt, whole = policy.prompt(shown[0]), to_turns(shown[0])
    for number, observation in enumerate(shown[1:]):
        text = f"word {number}"
        decision = policy.decision(prompt, policy.codec.tokens(text), text)
        whole += [{"role": "assistant", "content": [{"type": "text", "text": text}]}, *to_turns(observation)]
        prompt = policy.codec.append(prompt, decision.inputs.tokens, observation)
    media = [part for observation in shown for part in observation.images]
    ids, made = policy.codec.tokenize(whole, media)
    assert prompt.ids.tolist() == ids.tolist()
    grids = [node.grid for node in prompt.lineage if node.grid is not None]
    torch.testing.assert_close(torch.cat(grids), made["image_grid_thw"])
    pixels = [node.pixels for node in prompt.lineage if node.pixels is not None]
    torch.testing.assert_close(torch.cat(pixels), made["pixel_values"])
    own, _ = policy.model.model.get_rope_index(
        ids[None], mm_token_type_ids=prompt.types[None], image_grid_thw=torch.cat(grids), video_grid_thw=None
    )
    torch.testing.assert_close(prompt.positions, own[:, 0])
    assert [frame.original for frame in prompt.frames] == [picture.size for picture in media]


def test_sampling_and_training_have_the_models_own_law(make):
    """Kept keys, branches behind shared roots and several images must change nothing."""
    policy = make(temperature=0.8)
    decisions = decisions_of(play(policy, conversations()))
    with torch.no_grad():
        now = policy.evaluate(decisions)
        for row, decision in enumerate(decisions):
            expected = by_hand(policy, decision)
            torch.testing.assert_close(now.logprobs[row][now.mask[row]], expected, rtol=0, atol=1e-5)
            torch.testing.assert_close(decision.logprobs, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("options", [{}, {"freeze": True}, {"checkpointing": True}])
def test_gradients_are_those_of_whole_conversations(make, options, keep):
    """One sequence for each episode is to be a saving, not another objective; nor is the rollout's pass, kept."""
    shared, plain = make(temperature=0.8), make(temperature=0.8, shared_prefix=False)
    for policy in (shared, plain):
        if "freeze" in options:
            policy.model.model.visual.requires_grad_(False)
        if "checkpointing" in options:
            policy.model.activation_checkpointing_enable()
    episodes = play(shared, conversations(), keep=keep)
    shared._verified.add("scoring")  # which forwards some
    shared.work.taken()
    weights, gradients = torch.Generator().manual_seed(0), []
    factors = torch.randn(len(decisions_of(episodes)), 6, generator=weights)
    for policy in (shared, plain):
        decisions = decisions_of(episodes)
        own = [torch.tensor(decision.inputs.tokens)[:, None] for decision in decisions]
        now = policy.evaluate(name_candidates(decisions, own))
        assert torch.equal(now.candidates[..., 0], now.logprobs)  # asked for anew, each in its own place
        loss = (now.logprobs * factors[:, : now.mask.shape[1]])[now.mask].sum() + now.entropy[now.mask].sum()
        policy.model.zero_grad()
        loss.backward()
        gradients.append([p.grad for p in policy.model.parameters() if p.requires_grad and p.grad is not None])
    work = shared.work.taken()
    assert ("patches" in work) == (not keep and "freeze" not in options)
    assert (work["tokens"] < sum(len(e.turns[-1].decision.inputs.prompt.ids) for e in episodes) / 2) == keep
    assert len(gradients[0]) == len(gradients[1])
    size = max(float(each.norm()) for each in gradients[1])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * size)


def search_tree(policy) -> list[Episode]:
    """A tree search of one sample: two episodes from the root, two from the first one's middle, one of these forks."""
    episodes = play(policy, conversations((2, 1)))
    first, shown = episodes[0], [Observation.from_messages(messages) for messages in (*TURNS, *OTHER[1:2])]
    for number, (origin, kept) in enumerate([(0, 1), (0, 2), (3, 2), (4, 2)]):
        other = Episode(first.sample, first.group, turns=episodes[origin].turns[:kept], stream=(7, 90 + number))
        for turn in range(kept, 4):
            decision = policy.act([other], [shown[turn]])[0]
            other.turns.append(Turn(shown[turn], decision, Step(shown[turn], terminated=turn == 3)))
        episodes.append(other)
    return episodes


@pytest.mark.parametrize("checkpointing", [False, True])
def test_episodes_that_branch_late_share_what_they_have(make, checkpointing):
    """Tree searches and snapshots go on from the middle of another's conversation."""
    shared, plain = make(temperature=0.8), make(temperature=0.8, shared_prefix=False)
    if checkpointing:
        shared.model.activation_checkpointing_enable()
    episodes = search_tree(shared)
    assert episodes[4].turns[2].decision.inputs.prompt.parent is episodes[0].turns[1].decision.inputs.prompt
    distinct = list(dict.fromkeys(id(d) for d in decisions_of(episodes)))
    decisions = [next(d for d in decisions_of(episodes) if id(d) == each) for each in distinct]
    branches = find_branches([(d.inputs.prompt, d.inputs.tokens) for d in decisions])
    levels = make_levels(branches)
    assert len(levels) > 2
    nodes = {node: len(node.ids) for branch in branches for node in branch.leaf.lineage}
    added = sum(size - (len(node.parent.ids) if node.parent else 0) for node, size in nodes.items())
    forwarded = sum(segment.size for level in levels for segment in level)
    assert forwarded == added + sum(len(branch.tokens) - 1 for branch in branches)
    factors = torch.randn(len(decisions), 6, generator=torch.Generator().manual_seed(0))
    gradients = []
    for policy in (plain, shared):
        policy.model.zero_grad()
        now = policy.evaluate(decisions)
        values = now.logprobs.detach()
        (now.logprobs * factors[:, : now.mask.shape[1]])[now.mask].sum().backward()
        gradients.append([p.grad for p in policy.model.parameters() if p.grad is not None])
    size = max(float(each.norm()) for each in gradients[0])
    for theirs, ours in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * size)
    for row, decision in enumerate(decisions):
        expected = by_hand(shared, decision).detach()
        torch.testing.assert_close(values[row][now.mask[row]], expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(decision.logprobs, expected, rtol=0, atol=1e-5)


def test_micro_batches_have_the_gradients_of_the_whole(make):
    """A step that does not fit is cut into groups; it must stay the same step."""
    policy = make(temperature=0.8)
    episodes, gradients = play(policy, conversations()), []
    for parts in ([episodes], [episodes[:2], episodes[2:]]):
        policy.model.zero_grad()
        for part in parts:
            now = policy.evaluate(decisions_of(part))
            (now.logprobs.square() + now.entropy)[now.mask].sum().backward()
        gradients.append([p.grad.clone() for p in policy.model.parameters() if p.grad is not None])
    size = max(float(each.norm()) for each in gradients[0])
    for whole, parts in zip(*gradients, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5 * size)


def test_lanes_forward_a_root_once(make):
    """An episode that starts later would else pay for the whole image of its group again."""
    policy = make(temperature=1.0)
    early, late = conversations((2, 0))
    play(policy, [early])
    policy.work.taken()
    episode, shown = late
    policy.act([episode], [shown[0]])
    assert policy.work.taken()["tokens"] < len(early[0].turns[0].decision.inputs.prompt.ids)


@pytest.mark.parametrize("shape", ["groups", "trees"])
def test_an_adapters_conversations_are_its_own(folder, shape):
    """Under LoRA, too, what is sampled, evaluated and forwarded plainly must agree; the reference is without it."""
    section = PolicySection(model=str(folder), max_tokens=6, temperature=0.8, lora=Lora(rank=2, alpha=4))
    policy = load(section, shared_prefix=True, device="cpu")
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    episodes = search_tree(policy) if shape == "trees" else play(policy, conversations())
    decisions = list({id(decision): decision for decision in decisions_of(episodes)}.values())
    texts = [(decision.inputs.prompt, decision.inputs.tokens) for decision in decisions]
    assert (len(make_levels(find_branches(texts))) > 2) == (shape == "trees")
    with torch.no_grad():
        now, reference = policy.evaluate(decisions), policy.reference(decisions)
        for row, decision in enumerate(decisions):
            expected = by_hand(policy, decision)
            torch.testing.assert_close(now.logprobs[row][now.mask[row]], expected, rtol=0, atol=1e-5)
            torch.testing.assert_close(decision.logprobs, expected, rtol=0, atol=1e-5)
        with policy.model.disable_adapter():
            for row, decision in enumerate(decisions):
                expected = by_hand(policy, decision)
                torch.testing.assert_close(reference[row][now.mask[row]], expected, rtol=0, atol=1e-5)
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    ours = torch.autograd.grad(policy.evaluate(decisions).logprobs[now.mask].square().sum(), trained)
    theirs = torch.autograd.grad(sum(by_hand(policy, decision).square().sum() for decision in decisions), trained)
    size = max(float(each.norm()) for each in theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * size)


def test_each_episode_is_one_sequence_and_a_group_has_one_root(make):
    """Else each turn would pay for the history again."""
    policy = make(temperature=1.0)
    episodes = play(policy, conversations())
    texts = [(d.inputs.prompt, d.inputs.tokens) for d in decisions_of(episodes)]
    branches = find_branches(texts)
    assert len(branches) == len(episodes)
    assert sorted(r.number for b in branches for r in b.replies) == list(range(len(texts)))
    levels = make_levels(branches)
    assert [len(level) for level in levels] == [2, len(episodes)]
    assert {segment.whole for segment in levels[0]} == {branch.leaf.lineage[0] for branch in branches}
    shuffled = [texts[i] for i in np.random.default_rng(0).permutation(len(texts))]
    assert len(find_branches(shuffled)) == len(episodes)


def test_decoding_forwards_only_what_a_turn_adds(make):
    """A conversation of many turns would cost the square of its length."""
    policy, made, work = make(temperature=1.0), conversations(), []
    for turn in range(2):
        policy.work.taken()
        shown = [observations[turn] for _, observations in made]
        decisions = policy.act([episode for episode, _ in made], shown)
        work.append(policy.work.taken())
        for (episode, observations), decision in zip(made, decisions, strict=True):
            episode.turns.append(Turn(observations[turn], decision, Step(observations[-1])))
    written = [sum(len(e.turns[turn].decision.inputs.tokens) for e, _ in made) for turn in range(2)]
    prompts = [[e.turns[turn].decision.inputs.prompt for e, _ in made] for turn in range(2)]
    assert work[0]["tokens_distinct"] == sum(len(p.ids) for p in set(prompts[0])) + written[0]
    assert work[1]["tokens_distinct"] == sum(len(p.ids) - len(p.parent.ids) for p in prompts[1]) + written[1]
    # what reports call the hit rate of the prefix cache
    assert work[0]["conversation_tokens"] == sum(len(p.ids) for p in set(prompts[0])) and not work[0]["cached_tokens"]
    assert work[1]["conversation_tokens"] == sum(len(p.ids) for p in prompts[1])
    assert work[1]["cached_tokens"] == sum(len(p.parent.ids) for p in prompts[1])


def test_a_template_without_tools_is_told_of_once(make, capsys):
    """A policy that is never shown its tools cannot learn to call them, and nobody would see why."""
    function = {"name": "zoom", "description": "Zooms.", "parameters": {"type": "object", "properties": {}}}
    shown = Observation.from_messages(TURNS[0], tools=[{"type": "function", "function": function}])
    policy = make()
    blind = policy.processor.chat_template
    for _ in range(2):
        policy.prompt(shown)
    assert capsys.readouterr().err.count("chat template shows no tools") == 1
    policy = make()
    policy.processor.chat_template = "{{ tools[0].function.name if tools }}" + blind
    prompt = policy.prompt(shown)
    assert "zoom" in policy.processor.tokenizer.decode(prompt.ids) and not capsys.readouterr().err


def test_a_template_that_rewrites_earlier_turns_makes_segments(make, capsys):
    """Appending would train on prompts that the user's own chat template never writes."""
    policy = make(temperature=1.0)
    forgetful = policy.processor.chat_template.replace("{{ p.text }}", "{{ p.text if loop.last or m.role == 'user' }}")
    forgetful = forgetful.replace("<|im_start|>{{ m.role }}\n", "<|im_start|>{{ m.role }} {{ messages | length }}\n")
    policy.processor.chat_template = forgetful
    episodes = play(policy, conversations())
    assert all(d.inputs.prompt.parent is None for d in decisions_of(episodes))
    assert capsys.readouterr().err.count("each turn is a training sequence of its own") == 1
    last = policy.processor.tokenizer.decode(episodes[0].turns[2].decision.inputs.prompt.ids)
    assert "Click the red square." in last and "[1, 2]" in last
    with torch.no_grad():
        now = policy.evaluate(decisions_of(episodes))
    for row, decision in enumerate(decisions_of(episodes)):
        torch.testing.assert_close(now.logprobs[row][now.mask[row]], decision.logprobs, rtol=0, atol=1e-5)


def test_a_change_of_weights_forgets_what_was_kept(make):
    """Keys of other weights would give log-probabilities that no model has."""
    policy = make(temperature=0.8)
    made = conversations()
    first = [(episode, shown[:1]) for episode, shown in made]
    play(policy, first)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.01)
    shown = [turns[1] for _, turns in made]
    decisions = policy.act([e for e, _ in made], shown)
    for decision in decisions:
        torch.testing.assert_close(decision.logprobs, by_hand(policy, decision).detach(), rtol=0, atol=1e-5)


def test_a_new_segment_begins_where_an_observation_restarts(make):
    """A context strategy changes what was shown before; the new prompt is the whole of what is shown now."""
    policy = make(temperature=1.0)
    episode = play(policy, conversations())[0]
    fresh = Observation.from_messages(TURNS[1], restart=True)
    assert policy.prompt(fresh, before=episode.turns).parent is None


def test_videos_may_come_in_any_turn(make):
    frames = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    video = Video(frames, (0.0, 0.5, 1.0, 1.5), 2.0, 2.0)
    policy = make(temperature=0.8)
    shown = [
        Observation.from_messages([Message("user", content)])
        for content in (("Hello", video), ("And", image(32, 32)), (video, "?"))
    ]
    sample = Sample("v", shown[0])
    made = [(Episode(sample, 0, stream=(1, i)), tuple(shown)) for i in range(2)]
    decisions = decisions_of(play(policy, made))
    with torch.no_grad():
        now = policy.evaluate(decisions)
    plain = make(temperature=0.8, shared_prefix=False)
    with torch.no_grad():
        theirs = plain.evaluate(decisions)
    torch.testing.assert_close(now.logprobs, theirs.logprobs, rtol=0, atol=1e-5)


class Talk(BaseTask, Environment):
    """A task of conversations that show the same in each episode, however they are answered."""

    max_parallel_envs = None

    def __init__(self, turns=TURNS):
        self.shown = [Observation.from_messages(messages) for messages in turns]

    def samples(self, split):
        return []

    def environment(self, sample: Sample) -> Talk:
        return Talk([each.messages for each in self.shown])

    def reset(self) -> Observation:
        self.turn = 0
        return self.shown[0]

    def step(self, action: str, frames=()) -> Step:
        self.turn += 1
        return Step(self.shown[min(self.turn, len(self.shown) - 1)], terminated=self.turn == len(self.shown))

    def close(self) -> None:
        pass

    def score(self, episode: Episode) -> Score:
        return Score({}, 0.0)

    def reward(self, score: Score) -> float:
        return score.correct


def test_a_conversation_that_is_too_long_ends_its_episode_alone(make, capsys):
    """One long talk must not end a run of days; how many there were must be seen."""
    policy, task = make(max_prompt=110), Talk()
    episodes = collect(policy, task, [Sample("q", task.shown[0])], 3)
    for episode in episodes:
        assert 0 < len(episode.turns) < len(TURNS)
        assert episode.turns[-1].step.truncated and not episode.turns[-1].step.terminated
    assert count_overlong(episodes) == {"overlong": 3}
    told = re.findall(
        r"turn [23] of a conversation makes it \d+ tokens long, more than the 110", capsys.readouterr().err
    )
    assert len(told) == 1
    assert torch.isfinite(last_features(policy, episodes)).all()
    short = collect(make(), task, [Sample("q", task.shown[0])], 1)
    assert count_overlong(short) == {"overlong": 0} and len(short[0].turns) == 3


def test_a_first_prompt_that_is_too_long_is_refused(make):
    policy, task = make(max_prompt=20), Talk()
    with pytest.raises(UserError, match=r"a prompt of \d+ tokens is longer than the 20"):
        policy.check(Sample("q", task.shown[0]))


def test_conversations_that_are_the_same_so_far_go_on_as_one(make):
    """A group that has learned to begin alike would else forward every image as often as it has members."""
    policy = make(temperature=1.0)
    made = conversations((3, 0))
    play(policy, [(episode, shown[:1]) for episode, shown in made], greedy=True)
    decisions = policy.act([e for e, _ in made], [shown[1] for _, shown in made])
    assert len({id(d.inputs.prompt) for d in decisions}) == 1
    with torch.no_grad():
        for decision in decisions:
            torch.testing.assert_close(decision.logprobs, by_hand(policy, decision), rtol=0, atol=1e-5)


def test_an_mfu_counts_what_a_turn_adds(make):
    """Whole prompts in every turn would show a GPU that is never idle."""
    policy = make(temperature=1.0)
    options = {"passes": 0, "epochs": 1, "kept": False}
    episodes = play(policy, conversations((1, 0)))
    one, every = decisions_of(episodes)[:1], decisions_of(episodes)
    size = max(1, sum(p.numel() for p in policy.model.model.language_model.layers.parameters()))
    forwarded = len(every[-1].inputs.prompt.ids) + len(every[-1].inputs.tokens) - len(one[0].inputs.prompt.ids)
    tower = policy.effort(every, **options) - policy.effort(one, **options)
    assert 4 * 2 * size * (forwarded - 20) < tower
    whole = sum(policy.effort([each], **options) for each in every)
    assert policy.effort(every, **options) < whole


def test_supervised_learning_reads_a_conversation_once(make, tmp_path):
    """Loss on what the policy wrote alone, as a plain forward pass of each whole conversation has it."""
    policy = make(temperature=1.0)
    episodes = play(policy, conversations((1, 2)))
    for episode in episodes:
        episode.score = Score({}, 1.0)
    recorded_write(tmp_path, episodes)
    recorded = Demonstrations(str(tmp_path))
    assert [len(sample.answer) for sample in recorded] == [3, 3, 2]
    batch = [question for sample in recorded for question in questions(policy, recorded, [sample])]
    branches = find_branches([(q.decision.inputs.prompt, q.decision.inputs.tokens) for q in batch])
    assert len(branches) == 3
    learner = SFTLearner.__new__(SFTLearner)  # its loss needs nothing but the policy
    learner.policy = policy
    loss = learner.loss(batch)
    loss.backward()
    ours = [p.grad.clone() for p in policy.model.parameters() if p.grad is not None]
    policy.model.zero_grad()
    plain = -torch.cat([by_hand(policy, question.decision) for question in batch]).mean()
    plain.backward()
    torch.testing.assert_close(loss, plain, rtol=0, atol=1e-5)
    theirs = [p.grad for p in policy.model.parameters() if p.grad is not None]
    size = max(float(each.norm()) for each in theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * size)
