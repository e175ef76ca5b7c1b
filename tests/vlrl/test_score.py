"""`vlrl score`: saved completions are scored like in training, one line out per line in."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlrl import registry
from vlrl.config import Component
from vlrl.evaluation.score import score_file
from vlrl.types import Score, UserError

CLICK = {"completion": "<answer>[12, 15]</answer>", "answer": [10, 10, 20, 20], "image_size": [64, 48]}
PUZZLE = {"completion": "<answer>2 1 4 3</answer>", "answer": [2, 1, 4, 3]}
INSIDE = {"inputs": {"point": [1, 2], "box": [0, 0, 3, 3]}}


@pytest.fixture
def score(tmp_path) -> Callable[..., tuple[list[dict[str, Any]], str | None]]:
    """`score(name, *rows)` -> (lines out, what the command says at the end). A row is an object or a raw line."""

    def run(name: str, *rows: Any) -> tuple[list[dict[str, Any]], str | None]:
        file = tmp_path / "rows.jsonl"
        lines = (row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows)
        file.write_bytes(b"".join(line + b"\n" for line in lines))
        out: list[dict[str, Any]] = []
        try:
            out.extend(score_file(name, str(file)))
        except UserError as error:
            return out, str(error)
        return out, None

    return run


def test_a_click_is_scored_with_its_parts(score):
    """A saved evaluation could not be checked by hand."""
    wanted = {"id": "a", "reward": 1.0, "parts": {"hit": 1.0, "format": 1.0}, "correct": 1.0, "answer": [12.0, 15.0]}
    assert score("gui_grounding", CLICK | {"id": "a"}) == ([wanted | {"reason": None}], None)


@pytest.mark.parametrize(
    ("space", "point", "shown"),
    [
        ("original_px", "[15, 15]", None),
        ("resized_px", "[30, 30]", [128, 96]),
        ("rel1000", "[234, 312]", None),
        ("rel1", "[0.234, 0.312]", None),
        ("grid16", "[3, 4]", None),
    ],
)
def test_coordinates_are_read_in_the_models_space(score, space, point, shown):
    """A Qwen3-VL answer read as pixels would count as a miss."""
    row = CLICK | {"completion": f"<answer>{point}</answer>", "coordinates": space}
    (line,), _ = score("gui_grounding", row | ({"shown_size": shown} if shown else {}))
    assert line["correct"] == 1.0
    assert line["answer"] == pytest.approx((15, 15), abs=2)


def test_rows_may_set_options_of_the_task(score):
    """Only one size of puzzle could be scored."""
    rows = [
        PUZZLE,
        {"completion": "<answer>3 1 2</answer>", "answer": [3, 2, 1], "task": {"rows": 3, "columns": 1}},
        PUZZLE | {"completion": "<think>so</think><answer>2 1 4 3</answer>", "task": {"thinking": True}},
        PUZZLE | {"completion": "B", "answer": "B", "task": {"kind": "pair"}},
    ]
    out, error = score("jigsaw", *rows)
    assert error is None
    assert [line["parts"]["accuracy"] for line in out] == [1.0, pytest.approx(1 / 3), 1.0, 0.0]
    assert [line["id"] for line in out] == [1, 2, 3, 4]


@given(st.text(max_size=60) | st.text(alphabet='<>answer/[]{}0123456789,. "\\', max_size=60))
def test_any_completion_gets_the_score_of_training(completion):
    """Model output would stop the scoring, or count otherwise than in training."""
    task = registry.make("task", Component(name="jigsaw"), "task")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        file.write_text(json.dumps(PUZZLE | {"completion": completion}) + "\n")
        (line,) = score_file("jigsaw", str(file))
    json.dumps(line)
    assert set(line) == {"id", "reward", "parts", "correct", "answer", "reason"}
    assert (line["reason"] is None) == (line["answer"] is not None)
    assert line["reward"] == task.reward(Score(line["parts"], line["correct"]))


BROKEN = [
    (b"nope", "not JSON"),
    (b"", "not JSON"),
    (b"\xff\xfe\x00", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    ([1, 2], "not a JSON object"),
    ({"answer": CLICK["answer"], "image_size": [64, 48]}, "completion: give it, or messages"),
    (CLICK | {"completion": 5}, "completion: should be a valid string"),
    (CLICK | {"completion": None}, "completion: give it, or messages"),
    (CLICK | {"image_size": [64]}, "image_size: "),
    (CLICK | {"image_size": [64, 0]}, "image_size.1: "),
    (CLICK | {"image_size": [10**400, 1]}, "image_size.0: "),
    (CLICK | {"coordinate": "rel1000"}, "coordinate: unknown key; did you mean 'coordinates'?"),
    (CLICK | {"coordinates": "inches"}, "coordinates: 'inches'"),
    (CLICK | {"coordinates": "grid0"}, "coordinates: 'grid0'"),
    ({k: v for k, v in CLICK.items() if k != "image_size"}, "image_size"),
    *[
        (CLICK | {"answer": bad}, "answer: ")
        for bad in (None, 3, "x", [1, 2], [10, 10, "a", 20], [20, 10, 10, 20], {"x": 1})
    ],
    (CLICK | {"answer": [float("nan"), 0, 1, 1]}, "answer: "),
    (CLICK | {"answer": [0, 0, 10**400, 1]}, "answer: "),
    (CLICK | {"answer": [100, 10, 120, 20]}, "answer: "),
    (CLICK | {"task": {"objcts": 2}}, "task.objcts: unknown key; did you mean 'objects'?"),
    (CLICK | {"task": {"objects": 0}}, "task.objects: "),
    (CLICK | {"task": {"name": "jigsaw"}}, "task.name: "),
]


@pytest.mark.parametrize(("row", "needle"), BROKEN)
def test_a_broken_row_is_answered_in_its_place(score, row, needle):
    """A mistake in the data would count as a wrong answer of the model, or shift all later lines."""
    out, error = score("gui_grounding", CLICK, row, CLICK, row)
    assert [set(line) == {"row", "error"} for line in out] == [False, True, False, True]
    assert out[1]["row"] == 2 and needle in out[1]["error"], out[1]
    assert "\n" not in out[1]["error"]
    assert "2 of 4 rows could not be scored, the first is row 2" in error


@pytest.mark.parametrize(
    "answer", [[1, 2, 3], [1, 2, 3, 9], [1.0, 2.0, 3.0, 4.0], "A", [True, 2, 3, 4], [[1, 2], [3, 4]]]
)
def test_a_truth_that_the_task_cannot_have_is_refused(score, answer):
    """Every completion of that row would be wrong, and the accuracy too low."""
    out, error = score("jigsaw", PUZZLE | {"answer": answer})
    assert "answer: " in out[0]["error"] and "1 of 1" in error


def test_saved_rollouts_are_not_scored_against_themselves(score):
    """There `answer` is what the model answered: the accuracy would be 1."""
    out, _ = score("jigsaw", PUZZLE | {"step": 1, "sample_id": "jigsaw/1", "reward": 0.5})
    assert "unknown key" in out[0]["error"]


def test_a_reward_is_called_by_name(score):
    """A reward function could not be tried without writing code."""
    assert score("boxes.in_box", INSIDE, {"inputs": {"point": [9, 2], "box": [0, 0, 3, 3]}}) == (
        [{"value": 1.0}, {"value": 0.0}],
        None,
    )
    inputs = {"predicted": [2, 1, 3], "truth": [2, 3, 1]}
    assert score("order.index_accuracy", {"inputs": inputs})[0] == [{"value": 1 / 3}]
    inputs = {"completion": "<answer>x</answer>", "thinking": False}
    assert score("text.tagged", {"inputs": inputs})[0] == [{"value": 1.0}]


@pytest.mark.parametrize(
    ("row", "needle"),
    [
        ({"point": [1, 2], "box": [0, 0, 3, 3]}, "inputs: is required"),
        ({"inputs": 5}, "inputs: "),
        ({"inputs": {"point": [1, 2]}}, "inputs.box: is required"),
        ({"inputs": {"point": [1, 2], "bx": [0, 0, 3, 3]}}, "inputs.bx: unknown key; did you mean 'box'?"),
        ({"inputs": {"point": "ab", "box": [0, 0, 3, 3]}}, "inputs.point: "),
        ({"inputs": {"point": [1, 2, 3], "box": [0, 0, 3, 3]}}, "inputs: "),
    ],
)
def test_broken_inputs_of_a_reward_are_named(score, row, needle):
    """A typo in an argument would look like a reward of 0."""
    out, error = score("boxes.in_box", INSIDE, row, INSIDE)
    assert out[0] == out[2] == {"value": 1.0}
    assert needle in out[1]["error"] and "1 of 3" in error


@pytest.mark.parametrize(
    ("point", "value"), [(["1", "2"], "'1'"), ("12", "'12'"), ([True, 2], "True"), ([None, 2], "None")]
)
def test_a_text_is_no_number(score, point, value):
    """A file with numbers in quotes would be paid here and earn nothing in training."""
    (line,), _ = score("boxes.in_box", {"inputs": INSIDE["inputs"] | {"point": point}})
    assert "inputs.point" in line["error"]
    assert value in line["error"]


def test_ints_lists_and_objects_are_what_rewards_take(score):
    """A strict reader that refuses what JSON can hold would refuse every detection."""
    boxes = [{"label": "cat", "box": [0, 0, 3.5, 3]}]
    row = {"inputs": {"predicted": boxes, "truths": boxes}}
    assert score("boxes.f1", row) == ([{"value": 1.0}], None)
    quoted = {"inputs": {"predicted": [{"label": "cat", "box": ["0", 0, 3, 3]}], "truths": boxes}}
    (line,), _ = score("boxes.f1", quoted)
    assert "inputs.predicted.0.box.0" in line["error"]


@pytest.mark.parametrize(
    ("name", "right"),
    [("jigsw", "jigsaw"), ("point.in_box", "boxes.in_box"), ("order.exct", "order.exact"), ("base", None)],
)
def test_an_unknown_name_gets_the_nearest_right_one_and_the_list(score, name, right):
    """The user would have to read the sources to find a name."""
    out, error = score(name, CLICK)
    assert out == [] and "gui_grounding" in error and "boxes.in_box" in error
    assert right is None or f"did you mean {right!r}" in error


def test_files_that_cannot_be_read_are_named(tmp_path):
    """A wrong path is the commonest mistake of all."""
    for path in (tmp_path, tmp_path / "nowhere.jsonl"):
        with pytest.raises(UserError, match="cannot read"):
            list(score_file("jigsaw", str(path)))


def test_an_empty_file_gives_nothing(score):
    """No rows is no mistake."""
    assert score("jigsaw") == ([], None)


def test_results_come_while_rows_are_read(tmp_path):
    """A file larger than the memory could not be scored."""
    file = tmp_path / "rows.jsonl"
    file.write_text((json.dumps(PUZZLE) + "\n") * 3 + "broken\n")
    lines = score_file("jigsaw", str(file))
    assert next(lines)["correct"] == 1.0
    with file.open("a") as more:
        more.write(json.dumps(PUZZLE) + "\n")
    assert [line.get("id") for _, line in zip(range(4), lines, strict=False)] == [2, 3, None, 5]


def test_a_users_own_task_and_reward_work(tmp_path, monkeypatch, score):
    """Only what we ship could be scored."""
    (tmp_path / "my_rules.py").write_text(
        "from tasks.jigsaw import Jigsaw as Mine\n\n"
        "def longer(a: str, b: str) -> float:\n    return float(len(a) > len(b))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert score("my_rules:longer", {"inputs": {"a": "xx", "b": "x"}})[0] == [{"value": 1.0}]
    assert score("my_rules:Mine", PUZZLE)[0][0]["correct"] == 1.0


def test_the_command_prints_lines_and_exits_with_2_without_torch(tmp_path):
    """A script could not tell that some rows were not scored."""
    (tmp_path / "rows.jsonl").write_text(json.dumps(PUZZLE) + "\nbroken\n")
    code = (
        "import sys; from vlrl.cli import main; code = main(['score', 'jigsaw', sys.argv[1]]); "
        "sys.exit(9 if 'torch' in sys.modules else code)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "rows.jsonl")]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 2
    assert [set(json.loads(line)) for line in done.stdout.splitlines()][1] == {"row", "error"}
    assert done.stderr.startswith("vlrl: ") and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["visual_search", "dialogue"])
def test_recorded_conversations_earn_what_they_earned(name, tmp_path):
    """A recording could not be checked later, or by another version of the reward."""
    from tests.vlrl.talks import embedded, make_task, play_gold
    from vlrl.episode_store import recorded_write

    right = play_gold(make_task(name), embedded(), 3)
    wrong = [replace(e, turns=[*e.turns[:-1], said_no(e.turns[-1])]) for e in right[:2]]
    wrong[1].turns[0] = replace(wrong[1].turns[0], step=replace(wrong[1].turns[0].step, info={"malformed_calls": 1.0}))
    for episode in wrong:
        episode.score = make_task(name).score(episode)
        episode.reward = make_task(name).reward(episode.score)
    episodes = [*right, *wrong]
    recorded_write(tmp_path / "demos", episodes)
    rows = list(score_file(name, str(tmp_path / "demos")))
    assert [row["reward"] for row in rows] == pytest.approx([episode.reward for episode in episodes])
    assert [row["parts"] for row in rows] == [dict(episode.score.parts) for episode in episodes]
    assert len({row["reward"] for row in rows}) > 1
    with pytest.raises(UserError, match="has no sample"):
        list(score_file("jigsaw", str(tmp_path / "demos")))


def said_no(turn):
    return replace(turn, decision=replace(turn.decision, action="<answer>no</answer>"))


def test_exported_conversations_are_scored_by_their_messages(tmp_path):
    """Conversations of other programs could be scored by their last words alone, without the calls before them."""
    from tests.vlrl.talks import embedded, make_task, play_gold
    from vlrl.episode_store import recorded_write
    from vlrl.tools.trace_export import export_traces

    for name in ("visual_search", "dialogue"):
        (episode,) = play_gold(make_task(name), embedded(), 1)
        recorded_write(tmp_path / name, [episode])
        export_traces(tmp_path / name, tmp_path / f"{name}_out", "messages")
        row = json.loads((tmp_path / f"{name}_out" / "conversations.jsonl").read_text())
        row = {"messages": row["messages"], "answer": episode.sample.answer.text.answer}
        file = tmp_path / f"{name}_out" / "rows.jsonl"
        file.write_text(json.dumps(row) + "\n")
        (line,) = score_file(name, str(file))
        assert (line["reward"], line["parts"]) == (episode.reward, dict(episode.score.parts))


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "user", "content": "Hi"}], "must be the assistant's"),
        ([{"role": "human", "content": "Hi"}], "role"),
        ([{"role": "user", "content": [{"type": "audio"}]}], "messages.0.content: must be"),
        ([{"role": "user", "content": [{"type": "image", "image": "none.png"}]}], "messages.0.content: "),
    ],
)
def test_a_bad_conversation_is_named(score, messages, words):
    """Of ten thousand rows nobody would find the one."""
    (line,), error = score("dialogue", {"messages": messages, "answer": "red circle"})
    assert words in line["error"] and "row 1" in error
