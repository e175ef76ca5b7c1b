"""Memory that does not suffice, by allocations that no machine can make: of 16 to the 12th bytes, 256 TiB."""

from __future__ import annotations

import json

import pytest
import torch

from tasks.gui_grounding import GuiGrounding
from vlrl.config import PolicySection
from vlrl.performance.memory import is_out_of_memory, report_oom
from vlrl.policies.loading import load
from vlrl.rollout import PolicyWrapper, collect
from vlrl.types import UserError

MODULE = '''
import torch
from vlrl.algorithms.policy_losses import ppo_clip
from vlrl.methods import method


@method(source="a test's")
def hungry(now, batch, *, each: int = 3):
    """Takes 16 MiB for two groups, and what no machine has for four."""
    torch.empty(16 ** min(12, each * len(set(batch.group.tolist()))), dtype=torch.uint8)
    return ppo_clip(now, batch, low=0.2, high=0.2)
'''
TRAIN = {"steps": 2, "prompts_per_step": 4, "group_size": 2, "lr": 1e-3, "skip_zero_advantage": False}
TASK = {"name": "gui_grounding", "pool": 12, "held_out": 2, "weights": {"hit": 1.0, "format": 0.5}}


def rows(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def test_the_update_goes_on_with_fewer_prompts_at_a_time(place, train):
    """A long prompt in the middle of a night would end the run; what it learns must not hang on the machine."""
    folders = [place(name, MODULE, losses=["mine:hungry"], train=TRAIN) for name in ("all", "few")]
    code, said = train(folders[0], "config.yaml").wait()
    assert code == 0, said
    assert said.count("out of memory in the update with 4 prompts in one forward: on with 2") == 1
    assert train(folders[1], "config.yaml", "train.micro_batch_size=2").wait()[0] == 0
    for row, expected in zip(*map(rows, folders), strict=True):
        assert row == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_an_update_that_cannot_be_smaller_says_what_to_turn(place, train):
    """A traceback of an allocator says nothing of the keys that help."""
    folder = place("run", MODULE, losses=[{"name": "mine:hungry", "each": 12}], train=TRAIN)
    code, said = train(folder, "config.yaml").wait()
    assert code == 2 and "Traceback" not in said
    last = said.splitlines()[-1]
    assert (
        last.startswith("vlrl: out of memory in the update with 2 prompts") and "policy.gradient_checkpointing" in last
    )


class Hungry(PolicyWrapper):
    """A policy that cannot act for more than a few episodes at a time."""

    def __init__(self, policy, each: int):
        super().__init__(policy)
        self._each = each

    def act(self, episodes, observations, **options):
        torch.empty(16 ** min(12, self._each * len(episodes)), dtype=torch.uint8)
        return self.policy.act(episodes, observations, **options)


def test_the_rollout_goes_on_with_fewer_episodes_at_a_time(capsys):
    """Completions must stay those of the seed, whatever memory there is."""
    task = GuiGrounding(pool=4, held_out=1)
    policies = [load(PolicySection(max_tokens=6), seed=3) for _ in range(2)]
    samples = list(task.samples("train"))
    whole = collect(policies[0], task, samples, 3)
    hungry = Hungry(policies[1], each=1)
    for i, expected in enumerate((whole, collect(policies[0], task, samples, 3))):
        made = collect(hungry, task, samples, 3, keep=True)
        assert [e.completion for e in made] == [e.completion for e in expected]
        said = capsys.readouterr().err
        assert ("with 12 episodes at a time: on with 6" in said) == (i == 0)
    hungry._each = 2
    with pytest.raises(UserError, match=r"rollout with 6 episodes at a time: set policy\.max_num_seqs"):
        collect(hungry, task, samples, 3)


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (MemoryError(), True), (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("shapes do not match"), False), (ValueError("out of memory"), False),
    ],
)  # fmt: skip
def test_what_counts_as_memory(error, memory):
    """Another error taken for it would be hidden behind a smaller batch."""
    assert is_out_of_memory(error) == memory
    with pytest.raises(UserError if memory else type(error)), report_oom():
        raise error
