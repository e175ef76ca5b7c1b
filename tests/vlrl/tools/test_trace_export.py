"""Conversations of a run in other programs: transformers' templates, our own readers, trackio, inspect."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.context import LastImages
from tests.vlrl.talks import embedded, make_task, play_gold
from vlrl import cli
from vlrl.episode_store import recorded_write
from vlrl.metrics import save_rollouts
from vlrl.tools.conversation_export import export_conversations, split_reply


@pytest.fixture(scope="module")
def episodes():
    policy = embedded()
    return [
        *play_gold(make_task("visual_search"), policy, 1),
        *play_gold(make_task("dialogue", context=LastImages(images=1)), policy, 1),
    ]


@pytest.fixture(scope="module")
def run(episodes, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "search"
    save_rollouts(folder, 3, episodes, [[0.5, -0.5], [0.25, 0.25]])
    return folder


@pytest.fixture(scope="module")
def rows(run) -> list[dict]:
    """As the command writes them."""
    out = run.with_name("messages")
    assert cli.main(["export", str(run), "--conversations", "messages", "--out", str(out)]) == 0
    return [json.loads(line) for line in (out / "conversations.jsonl").read_text().splitlines()]


def test_a_conversation_opens_in_a_chat_template(run, rows, monkeypatch, episodes):
    """A file that no template renders is of no use to any other trainer or server."""
    policy, (search, *_) = embedded(), rows
    monkeypatch.chdir(run.with_name("messages"))  # images are paths from there
    made = policy.processor.apply_chat_template(
        search["messages"], tools=search["tools"], tokenize=True, return_dict=True, return_tensors="pt"
    )
    assert len(made["image_grid_thw"]) == 2
    text = policy.tokenizer.decode(made["input_ids"][0]) if hasattr(policy, "tokenizer") else ""
    text = text or policy.codec.tokenizer.decode(made["input_ids"][0])
    for turn in episodes[0].turns:
        for said in turn.observation.text.split("\n"):
            assert said in text
    assert episodes[0].completion in text


def test_calls_and_answers_of_tools_belong_together(rows, episodes):
    """Viewers show a call beside what it returned; a call left as text could not be rendered by another family."""
    search = rows[0]
    assert [message["role"] for message in search["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    (call,) = search["messages"][2]["tool_calls"]
    assert call["function"]["name"] == "zoom" and call["id"] == search["messages"][3]["tool_call_id"]
    written = json.loads(episodes[0].turns[0].decision.action.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert call["function"]["arguments"] == written["arguments"]
    assert search["tools"][0]["function"]["name"] == "zoom"
    assert (search["reward"], search["step"]) == (episodes[0].reward, 3)
    assert [turn["advantage"] for turn in search["turns"]] == [0.5, -0.5]


def test_a_conversation_that_began_anew_becomes_several(rows):
    """Joined, it would show a model twice what it was shown once."""
    first, second = rows[1:]
    assert (first["id"][-2:], second["id"][-2:]) == ("/1", "/2") and first["sample_id"] == second["sample_id"]
    assert [len(row["messages"]) for row in (first, second)] == [2, 4]
    assert second["messages"][0]["content"][0]["text"] == "[image 1 is no longer shown]"


@pytest.mark.parametrize("bad", ["{}", '{"name": 1, "arguments": {}}', "zoom", '{"name": "zoom", "arguments": [1]}'])
def test_what_is_no_call_stays_text(bad):
    """A malformed call, which the model was told of, would look like a right one."""
    text = f"Look: <tool_call>{bad}</tool_call>"
    assert split_reply(text) == (text, [])
    thought = '<think><tool_call>{"name": "a", "arguments": {}}</tool_call></think>Yes.'
    assert split_reply(thought) == (thought, [])


def test_recordings_keep_images_whole(episodes, tmp_path, rows):
    """Details that tools looked for would be lost in thumbnails; and both sources must tell the same."""
    recorded_write(tmp_path / "demos", episodes)
    assert export_conversations(tmp_path / "demos", tmp_path / "out", "messages") == 3
    made = [json.loads(line) for line in (tmp_path / "out" / "conversations.jsonl").read_text().splitlines()]
    for one, other in zip(made, rows, strict=True):
        texts = [[part.get("text") for part in m["content"]] for m in one["messages"]]
        assert texts == [[part.get("text") for part in m["content"]] for m in other["messages"]]
        paths = [part["image"] for m in one["messages"] for part in m["content"] if part["type"] == "image"]
        assert all((tmp_path / "out" / path).is_file() for path in paths)


def test_evaluating_a_model_on_exported_conversations(run, rows, tmp_path, capsys):
    """Conversations with a checkable end, tools and images among them, are a test set."""
    file = run.with_name("messages") / "conversations.jsonl"
    config = str(Path(cli.__file__).parents[1] / "configs" / "dialogue.yaml")
    asked = ["eval", config, f"data.test={file}", "task.replies=file", "policy.model=embedded", "--json"]
    assert cli.main(asked) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["n"] == len(rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--merged"], "do not go with --conversations"),
        ([], "no conversations: name the folder of a run"),
    ],
)
def test_a_mistake_is_one_line(change, words, tmp_path, capsys):
    """A run of robots, or an option of models, would end in a traceback."""
    asked = ["export", str(tmp_path), "--conversations", "messages", "--out", str(tmp_path / "out"), *change]
    assert cli.main(asked) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_inspect_reads_the_log(run, tmp_path):
    """A log of another form shows as an empty page. Runs where the program `inspect` of inspect-ai is on the path."""
    assert export_conversations(run, tmp_path / "logs", "inspect") == 3
    (file,) = (tmp_path / "logs").iterdir()
    samples = json.loads(file.read_text())["samples"]
    assert len({sample["id"] for sample in samples}) == 3
    program = shutil.which("inspect")
    if program is None:
        pytest.skip("inspect-ai is not installed")
    done = subprocess.run([program, "log", "dump", str(file)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    search = json.loads(done.stdout)["samples"][0]
    assert [message["role"] for message in search["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert search["messages"][2]["tool_calls"][0]["function"] == "zoom"
    assert search["scores"]["reward"]["value"] == 1.0


def test_trackio_lists_the_traces(run, tmp_path):
    """Its dashboard shows nothing of what is not in its own store."""
    pytest.importorskip("trackio")
    out, own = tmp_path / "tracks", {"PYTHONPATH": os.pathsep.join(sys.path)}  # it reads its folder when imported
    for command in (
        [sys.executable, "-m", "vlrl.cli", "export", str(run), "--conversations", "trackio", "--out", str(out)],
        [sys.executable, "-m", "trackio.cli", "list", "traces", "--project", "vlrl", "--run", "search", "--json"],
    ):
        done = subprocess.run(
            command, env=os.environ | own | {"TRACKIO_DIR": str(out)}, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
    traces = json.loads(done.stdout)["traces"]
    search = next(trace for trace in traces if trace["metadata"]["sample_id"].startswith("visual_search"))
    assert [message["role"] for message in search["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert search["metadata"]["reward"] == 1.0
    assert len(list((out / "media").rglob("*.png"))) == 4
