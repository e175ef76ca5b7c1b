"""Cards say what a model is and no more than strangers may know; nothing is uploaded that was not asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from vlrl.cli import main
from vlrl.tools.hub_export import base_of, card_write, located

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")  # peft asks for it
TOKEN = "hf_" + "s" * 34
MEASURED = {"value": 0.8242, "low": 0.7891, "high": 0.8551, "n": 512}
CONFIG = """\
# vlrl 0.1.0 (commit 0123456789ab), torch 2.11.0
# seed 3
task: {name: gui_grounding}
out: /data/somebody/runs/secret-project
data: {train: "hf://owner/clicks@1a2b:train[:500]", test: /data/somebody/private/test.jsonl}
policy: {model: Qwen/Qwen2.5-VL-3B-Instruct}
losses: [{name: ppo_clip, low: 0.2}]
process_rewards: [{name: polar, judge: {url: "https://somebody:password@judge.example/v1"}}]
"""


@pytest.fixture
def run(tmp_path):
    """A run's folder with a model of one small file."""
    folder = tmp_path / "run"
    model = folder / "checkpoints" / "step_000004"
    model.mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG)
    summary = {"before": MEASURED | {"value": 0.43}, "after": MEASURED, "task": "gui_grounding", "steps": 4, "seed": 3}
    (folder / "summary.json").write_text(json.dumps(summary | {"best": MEASURED | {"step": 4}}))
    rows = [{"step": 0, "eval/accuracy": 0.43, "eval/low": 0.4, "eval/high": 0.5}, {"step": 1, "reward": 0.5}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 2, "rew')
    (model / "config.json").write_text('{"model_type": "qwen2_5_vl"}')
    (model / "processor_config.json").write_text("{}")
    (model / "trainer.json").write_text("{}")
    return folder


def head_of(text: str) -> dict:
    return yaml.safe_load(text.split("---\n")[1])


def test_a_card_says_where_a_model_comes_from_and_how_good_it_is(run, capsys):
    """Who finds the model could not tell what it was made of, whether it learned, or how to load it."""
    assert main(["card", str(run), "--license", "apache-2.0"]) == 0
    file = run / "checkpoints" / "step_000004" / "README.md"
    assert capsys.readouterr().out.strip() == str(file)
    text, head = file.read_text(), head_of(file.read_text())
    assert (head["base_model"], head["base_model_relation"]) == ("Qwen/Qwen2.5-VL-3B-Instruct", "finetune")
    assert (head["datasets"], head["license"]) == (["owner/clicks"], "apache-2.0")
    assert head["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.8242
    assert "| after training | 0.824 | [0.789, 0.855] | 512 |" in text
    assert "| best checkpoint, step 4 | 0.824 |" in text
    assert "`ppo_clip` (low: 0.2)" in text
    assert "vlrl 0.1.0 (commit 0123456789ab)" in text
    assert "AutoModelForImageTextToText.from_pretrained" in text
    assert "| base: Qwen/Qwen2.5-VL-3B-Instruct | not stated |" in text  # nothing at hand says, and none is guessed


def test_a_card_tells_nothing_of_the_machine(run):
    """Names of people, folders and passwords would be published with the weights."""
    text = card_write(located(run), run / "checkpoints" / "step_000004").read_text()
    assert "somebody" not in text
    assert "password" not in text
    assert "test.jsonl" in text  # what it was, not where
    assert "https://***@judge.example/v1" in text  # which judge it was


def test_curves_are_drawn_from_what_is_whole(run):
    """A killed run's last line is cut: its card would show nothing, or not be written."""
    pytest.importorskip("matplotlib")
    text = card_write(located(run), run / "checkpoints" / "step_000004").read_text()
    assert "](curves.png)" in text
    assert (run / "checkpoints" / "step_000004" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_model_without_a_run_gets_a_card_that_claims_nothing(tmp_path):
    """A card must not say that a model was measured that was not."""
    (tmp_path / "config.json").write_text("{}")
    text = card_write(located(tmp_path), tmp_path).read_text()
    assert "Not measured." in text
    assert "model-index" not in head_of(text)
    assert "base_model" not in head_of(text)


def test_licences_are_read_where_a_base_tells_its_own(run, tmp_path):
    """A base with a licence for research alone would be passed on without a word."""
    base = tmp_path / "base"
    base.mkdir()
    (base / "README.md").write_text("---\nlicense: other\nlicense_name: for-research\n---\n# Base\n")
    origin = base_of(located(run), {"policy": {"model": str(base)}})
    assert origin.licence == "for-research"
    assert str(tmp_path) not in origin.label


# -- push -------------------------------------------------------------------------------------------------------------


def push(*arguments: object, hub: Any, home: Path, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    names = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "vlrl.cli", "push", *map(str, arguments)]
    given = {k: v for k, v in os.environ.items() if k not in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")}
    environment = given | names | ({"HF_TOKEN": token} if token else {})
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=home)


def test_push_sends_the_model_and_its_card_alone(run, hub, tmp_path):
    """The optimizer's state or a stray file would be published; or the card be missing, or the token printed."""
    (run / "checkpoints" / "step_000004" / "notes.md").write_text("not for others")
    done = push(run, "--to", "owner/clicker", "--private", hub=hub, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{hub.endpoint}/owner/clicker"
    assert hub.there == {"owner/clicker": True}
    assert hub.files.keys() - {"curves.png"} == {"README.md", "config.json", "processor_config.json"}
    assert 'from_pretrained("owner/clicker")' in hub.files["README.md"].decode()
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert TOKEN not in done.stdout + done.stderr


def test_push_refuses_in_a_line_and_sends_nothing(run, hub, tmp_path):
    """Private work would become public, or a mistake end in a traceback with headers in it."""
    hub.there["owner/open"] = False
    done = push(run, "--to", "owner/open", "--private", hub=hub, home=tmp_path)
    assert (done.returncode, hub.files) == (2, {})
    assert "owner/open is there and is public; nothing was sent" in done.stderr
    done = push(run, "--to", "owner/new", hub=hub, home=tmp_path, token="")
    assert done.returncode == 2
    assert "no token of the hub, so nothing was sent" in done.stderr
    hub.refuses = True
    done = push(run, "--to", "owner/new", hub=hub, home=tmp_path)
    announced, *refused = done.stderr.splitlines()
    assert (done.returncode, hub.files, len(refused)) == (2, {}, 1) and "owner/new" in announced
    assert "the hub did not take it (403" in done.stderr
    assert TOKEN not in done.stderr


def test_an_adapter_without_its_base_is_no_gift(run, tmp_path, capsys):
    """What was uploaded would load nowhere: its base is a folder of this machine."""
    model = run / "checkpoints" / "step_000004"
    (model / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path)}))
    assert main(["push", str(run), "--to", "owner/new"]) == 2
    assert "which nobody else has: use --merged" in capsys.readouterr().err
    assert main(["push", str(run), "--to", "new"]) == 2
    assert "must be owner/name" in capsys.readouterr().err
