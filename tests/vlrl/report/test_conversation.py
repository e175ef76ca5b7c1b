"""Conversations in a report, in a real browser: turn by turn, with their images, calls and numbers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from page_checks import checked
from small_runs import HOSTILE, write_lines

from tests.vlrl.talks import embedded, make_task, play_gold
from vlrl.metrics import save_rollouts
from vlrl.report.html import write_report

TURNS = """[...document.querySelectorAll("#cards > article:first-child .turns > li")].map((turn) => ({
  roles: [...turn.querySelectorAll(".role")].map((node) => node.textContent),
  images: [...turn.querySelectorAll(".frame")].map((node) => node.getBoundingClientRect().width),
  calls: [...turn.querySelectorAll(".part.call pre")].map((node) => node.textContent),
  bars: turn.querySelectorAll(".bars rect").length,
  likely: turn.querySelector(".likely").textContent,
  said: turn.textContent,
}))"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that kept a search with a call of a tool, a dialogue, and a tool that answers with markup."""
    folder, policy = tmp_path_factory.mktemp("talks"), embedded()
    search, *_ = play_gold(make_task("visual_search"), policy, 1)
    dialogue, *_ = play_gold(make_task("dialogue"), policy, 1)
    first, second = search.turns
    message = replace(second.observation.messages[0], content=(HOSTILE,))
    hostile = replace(second, observation=replace(second.observation, content=(HOSTILE,), messages=(message,)))
    broken = replace(search, turns=[first, hostile], reward=0.0)
    episodes = [search, dialogue, broken]
    save_rollouts(folder, 1, episodes, [[0.5, -0.25]] * 3)
    return folder


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1600, "light")])
def test_a_conversation_reads_turn_by_turn(open_page, run, width, scheme):
    """What a tool returned, or which turn was unlikely, could not be seen: only the first prompt's text was kept."""
    page = open_page(write_report(run), width=width, scheme=scheme)
    first, second = page.run(TURNS)
    assert first["roles"] == ["system", "user", "assistant"] and second["roles"] == ["tool", "assistant"]
    assert len(first["images"]) == len(second["images"]) == 1 and min(first["images"] + second["images"]) > 50
    assert json.loads(first["calls"][0])["name"] == "zoom" and not second["calls"]
    assert "tools: zoom" in first["said"] and "You see sharply." in first["said"]
    saved = json.loads((run / "rollouts" / "step_000001.jsonl").read_text().splitlines()[0])["turns"]
    assert [turn["bars"] for turn in (first, second)] == [min(96, turn["tokens"]) for turn in saved]
    assert "advantage +0.500" in first["likely"] and "advantage -0.250" in second["likely"]
    assert f"tokens {saved[1]['tokens']}" in second["likely"] and "log-prob -" in second["likely"]
    checked(page)


def test_saved_turns_are_those_that_were_played(run):
    """The log-probabilities of one turn beside the text of another would mislead."""
    task, policy = make_task("dialogue"), embedded()
    (episode,) = play_gold(task, policy, 1)
    row = json.loads((run / "rollouts" / "step_000001.jsonl").read_text().splitlines()[1])
    assert row["advantage"] == pytest.approx(0.125) and len(row["turns"]) == len(episode.turns) == 2
    for turn, saved in zip(episode.turns, row["turns"], strict=True):
        assert saved["action"] == turn.decision.action
        assert saved["logprobs"] == pytest.approx(turn.decision.logprobs.tolist(), abs=5e-4)
        assert [part for part in saved["content"] if isinstance(part, str)] == turn.observation.text.split("\n")
    assert [turn["content"][0]["image"] for turn in row["turns"]] == [0, 1]


@pytest.mark.parametrize("broken", [[{}], [{"content": [{"image": 7}], "action": "x"}], "turns", [3], {"a": 1}])
def test_a_broken_conversation_leaves_a_card(open_page, run, tmp_path, broken):
    """One bad row of a run that was killed would take the whole report with it."""
    row = json.loads((run / "rollouts" / "step_000001.jsonl").read_text().splitlines()[0])
    (tmp_path / "rollouts").mkdir()
    write_lines(tmp_path / "rollouts" / "step_000001.jsonl", [{**row, "turns": broken}])
    page = open_page(write_report(tmp_path))
    assert page.run("document.querySelectorAll('#cards > article .completion').length") == 1
    assert page.complaints() == []
