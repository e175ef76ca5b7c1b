"""Episodes of a run in other programs, read back by those: chat templates, our own readers, inspect, trackio, wandb.

Packages of the extra `traces` that are not installed skip the tests that read with them.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.context import LastImages
from tests.vlrl.talks import embedded, make_task, play_gold
from vlrl import cli
from vlrl.episode_store import recorded_write
from vlrl.metrics import save_rollouts
from vlrl.tools.trace_export import export_traces, split_reply

Shown = list[tuple[str, list[Any]]]  # role, and each part's text or its image's bytes


@pytest.fixture(scope="module")
def episodes():
    policy = embedded()
    return [
        *play_gold(make_task("visual_search"), policy, 1),
        *play_gold(make_task("dialogue", context=LastImages(images=1)), policy, 1),
        *play_gold(make_task("gui_grounding"), policy, 2),
    ]


@pytest.fixture(scope="module")
def run(episodes, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "search"
    save_rollouts(folder, 3, episodes, [[0.5, -0.5], [0.25, 0.25], [1.0], [-1.0]])
    return folder


@pytest.fixture(scope="module")
def rows(run) -> list[dict]:
    """As the command writes them."""
    out = run.with_name("messages")
    assert cli.main(["export", str(run), "--traces", "messages", "--out", str(out)]) == 0
    return [json.loads(line) for line in (out / "conversations.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def shown(run, rows) -> dict[str, Shown]:
    """What each entry has to show, by its id."""
    return {row["id"]: parts_of(row["messages"], lambda part: (run.with_name("messages") / part["image"]).read_bytes())
            for row in rows}  # fmt: skip


def parts_of(messages: list[dict], read_image) -> Shown:
    return [
        (m["role"], [part["text"] if part.get("type") == "text" else read_image(part) for part in m["content"] or ()])
        for m in messages
    ]


def export(run: Path, form: str, out: Path) -> None:
    """In a process of its own, as packages read their folder when imported, whose user trains with uploads."""
    command = [sys.executable, "-m", "vlrl.cli", "export", str(run), "--traces", form, "--out", str(out)]
    own = environment(TRACKIO_SPACE_ID="owner/space", WANDB_MODE="online", WANDB_API_KEY="0" * 40)
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout == f"5 episodes; {out}\n", done.stderr


def environment(**changes: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | changes


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
    first, second = rows[1:3]
    assert (first["id"][-2:], second["id"][-2:]) == ("/1", "/2") and first["sample_id"] == second["sample_id"]
    assert [len(row["messages"]) for row in (first, second)] == [2, 4]
    assert second["messages"][0]["content"][0]["text"] == "[image 1 is no longer shown]"


def test_an_answer_to_one_prompt_is_a_conversation_too(rows, shown, episodes, run):
    """Most runs have no others, and would leave nothing to look at."""
    for row, episode, advantage in zip(rows[3:], episodes[2:], (1.0, -1.0), strict=True):
        (image,) = json.loads((run / "rollouts/step_000003.jsonl").read_text().splitlines()[2])["images"]
        (user, (picture, text)), reply = shown[row["id"]]
        assert (user, text) == ("user", episode.sample.prompt.text) and reply == ("assistant", [episode.completion])
        assert picture.startswith(b"\x89PNG") and (run / image).read_bytes().startswith(b"\x89PNG")
        assert row["turns"][0]["tokens"] == len(episode.turns[0].decision.logprobs)
        assert (row["reward"], row["turns"][0]["advantage"]) == (episode.reward, advantage)


@pytest.mark.parametrize("bad", ["{}", '{"name": 1, "arguments": {}}', "zoom", '{"name": "zoom", "arguments": [1]}'])
def test_what_is_no_call_stays_text(bad):
    """A malformed call, which the model was told of, would look like a right one."""
    text = f"Look: <tool_call>{bad}</tool_call>"
    assert split_reply(text) == (text, [])
    thought = '<think><tool_call>{"name": "a", "arguments": {}}</tool_call></think>Yes.'
    assert split_reply(thought) == (thought, [])


def test_recordings_keep_images_whole(episodes, tmp_path, rows):
    """Details that tools looked for would be lost in thumbnails; and both sources must tell the same."""
    recorded_write(tmp_path / "demos", episodes[:2])
    assert export_traces(tmp_path / "demos", tmp_path / "out", "messages") == 3
    made = [json.loads(line) for line in (tmp_path / "out" / "conversations.jsonl").read_text().splitlines()]
    for one, other in zip(made, rows[:3], strict=True):
        texts = [[part.get("text") for part in m["content"]] for m in one["messages"]]
        assert texts == [[part.get("text") for part in m["content"]] for m in other["messages"]]
        paths = [part["image"] for m in one["messages"] for part in m["content"] if part["type"] == "image"]
        assert all((tmp_path / "out" / path).is_file() for path in paths)


def test_evaluating_a_model_on_exported_conversations(run, rows, tmp_path, capsys):
    """Conversations with a checkable end, tools and images among them, are a test set."""
    file = tmp_path / "conversations.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:3]))
    (tmp_path / "images").symlink_to(run.with_name("messages") / "images")
    config = str(Path(cli.__file__).parents[1] / "configs" / "dialogue.yaml")
    asked = ["eval", config, f"data.test={file}", "task.replies=file", "policy.model=embedded", "--json"]
    assert cli.main(asked) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["n"] == 3


@pytest.mark.parametrize(
    ("content", "words", "expected"),
    [
        ("", ["--merged"], "--merged and --dtype are of models: they do not go with --traces"),
        ("", [], "no run: name the folder of a run, or of `vlrl record`"),
        ("", ["--traces", "html"], "--traces html: must be one of messages, inspect, rerun, trackio, wandb"),
        ("config.yaml", [], "the run kept no rollouts"),
        ("config.yaml", ["--traces", "rerun"], "the run kept no rollouts"),
        ("meta/info.json", [], "a data set of robots: --traces rerun"),
        ("rollouts/step_000001.jsonl", [], "None/step_000001/0 is no episode"),
        ("rollouts/step_000001.jsonl", ["--traces", "rerun"], "no episodes of robots: --traces rerun is of these"),
        ("nowhere", [], "there is no such folder"),
    ],
)
def test_a_mistake_is_one_line(content, words, expected, tmp_path, capsys):
    """A folder of something else, or an option of models, would end in a traceback, and leave half a folder."""
    source, out = tmp_path / "source", tmp_path / "out"
    if content != "nowhere":
        (source / content).parent.mkdir(parents=True, exist_ok=True)
        source.mkdir(exist_ok=True)
        (source / content).write_text("{}\n") if content else None
    assert cli.main(["export", str(source), "--traces", "messages", "--out", str(out), *words]) == 2
    error = capsys.readouterr().err
    assert expected in error and error.count("\n") == 1 and not out.exists()


def test_an_image_outside_the_folder_is_refused(run, tmp_path):
    """A folder from elsewhere could have any file of this machine copied into what is given away."""
    (tmp_path / "secret.png").write_bytes(b"mine")
    row = json.loads((run / "rollouts/step_000003.jsonl").read_text().splitlines()[-1]) | {"images": ["../secret.png"]}
    (tmp_path / "run" / "rollouts").mkdir(parents=True)
    (tmp_path / "run" / "rollouts" / "step_000001.jsonl").write_text(json.dumps(row))
    assert cli.main(["export", str(tmp_path / "run"), "--traces", "messages", "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("form", "module", "extra"),
    [("inspect", "inspect_ai", "traces"), ("trackio", "trackio", "trackio"), ("wandb", "wandb", "wandb")],
)
def test_a_missing_package_is_named_with_its_extra(form, module, extra, run, tmp_path, monkeypatch, capsys):
    """A traceback does not say which of our extras brings a package of another name."""
    monkeypatch.setitem(sys.modules, module, None)
    if module == "inspect_ai":
        monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    for name in ("TRACKIO_DIR", "WANDB_DATA_DIR", "WANDB_ERROR_REPORTING"):
        monkeypatch.setenv(name, str(tmp_path))  # and is put back
    assert cli.main(["export", str(run), "--traces", form, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.endswith(f"pip install 'vlrl[{extra}]' [VL105]\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_inspect_reads_the_log(run, rows, shown, tmp_path):
    """A log of another form shows as an empty page, one without usage or scores as a run that measured nothing."""
    pytest.importorskip("inspect_ai.log")
    export(run, "inspect", tmp_path / "logs")
    (file,) = (tmp_path / "logs").iterdir()
    script = (
        "from inspect_ai.log import read_eval_log\n"
        f"print(read_eval_log({str(file)!r}, resolve_attachments=True).model_dump_json())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    log = json.loads(done.stdout)
    assert file.suffix == ".eval" and log["status"] == "success" and len(log["samples"]) == len(rows)
    samples = {sample["id"]: sample for sample in log["samples"]}  # it sorts them
    assert samples.keys() == shown.keys()
    for row in rows:
        sample = samples[row["id"]]
        assert parts_of(sample["messages"], lambda part: base64.b64decode(part["image"].split(",")[1])) \
            == shown[row["id"]]  # fmt: skip
        scores = {name: score["value"] for name, score in sample["scores"].items()}
        assert scores == {**row["parts"], "reward": row["reward"], "correct": row["correct"]}
        tokens = sum(turn["tokens"] for turn in row["turns"])
        assert sample["output"]["usage"]["output_tokens"] == sample["model_usage"]["vlrl"]["output_tokens"] == tokens
        assert sample["metadata"]["turns"] == row["turns"]
    search = samples[rows[0]["id"]]["messages"]
    call = search[2]["tool_calls"][0]
    assert (call["function"], call["id"]) == ("zoom", search[3]["tool_call_id"])
    means = {score["name"]: score["metrics"]["mean"]["value"] for score in log["results"]["scores"]}
    assert means["reward"] == pytest.approx(np.mean([row["reward"] for row in rows]))


def test_trackio_lists_the_traces(run, rows, shown, tmp_path):
    """Its dashboard shows nothing of what is not in its own store."""
    out = tmp_path / "tracks"
    export(run, "trackio", out)
    command = [sys.executable, "-m", "trackio.cli", "list", "traces", "--project", "vlrl", "--run", "search", "--json"]
    own = environment(TRACKIO_DIR=str(out))
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    traces = {trace["metadata"]["id"]: trace for trace in json.loads(done.stdout)["traces"]}
    assert traces.keys() == shown.keys()
    for row in rows:
        trace = traces[row["id"]]
        told = parts_of(trace["messages"], lambda part: (out / "media" / part["file_path"]).read_bytes())
        assert told == shown[row["id"]]
        for name in ("reward", "correct", "parts", "turns"):
            assert trace["metadata"][name] == row[name]


@pytest.mark.slow
def test_wandb_syncs_the_table_with_its_images(run, rows, shown, tmp_path):
    """`wandb sync` uploads what the run's file names; a table whose images lie elsewhere would show none."""
    pytest.importorskip("wandb")
    export(run, "wandb", tmp_path / "w")
    (file,) = (tmp_path / "w").glob("wandb/offline-run-*/run-*.wandb")
    (artifact,) = [record.artifact for record in wandb_records(file) if record.HasField("artifact")]
    files = {entry.path: Path(entry.local_path) for entry in artifact.manifest.contents}
    assert all(path.is_relative_to(tmp_path / "w") for path in files.values())
    table = json.loads(files["episodes.table.json"].read_text())
    assert len(table["data"]) == len(rows)
    for cells, row in zip(table["data"], rows, strict=True):
        entry = dict(zip(table["columns"], cells, strict=True))
        pictures = [files[image["path"]].read_bytes() for image in entry["images"]]
        told = parts_of(json.loads(entry["messages"]), lambda part, pictures=pictures: pictures[part["image"]])
        assert told == shown[entry["id"]]
        assert (entry["reward"], entry["correct"], entry["step"]) == (row["reward"], row["correct"], 3)
        assert {name: entry[name] for name in row["parts"]} == row["parts"]
        assert entry["tokens"] == sum(turn["tokens"] for turn in row["turns"])


def wandb_records(file: Path):
    """The messages of a `.wandb` file: LevelDB's log of wandb's own records."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, message = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at < len(data):
        if (left := 32768 - at % 32768) < 7:  # no head fits into the rest of a block
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        message += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last part
            yield Record.FromString(message)
            message = b""
