"""Inspect itself, unchanged, asks `vlrl serve-model` by its OpenAI-compatible provider: docs/guides/benchmarks.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from PIL import Image

from tests.lmms_folder import fetch
from vlrl.types import Episode, Observation, Sample

inspect_log = pytest.importorskip("inspect_ai.log", reason="the extra traces")
pytestmark = pytest.mark.slow

TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, ContentImage, ContentText
from inspect_ai.scorer import includes


@task
def shapes(target: str):
    content = [ContentImage(image="shape.png"), ContentText(text="Where is the red square?")]
    ask = [ChatMessageUser(content=content)]
    return Task(dataset=[Sample(id="right", input=ask, target=target), Sample(id="wrong", input=ask, target="no such")],
                scorer=includes())
"""


@pytest.fixture(scope="module")
def single(serve):
    """A server that writes one completion at a time, as the test does here: no tie falls another way."""
    server = serve("--max-batch", 1)
    yield server
    server.kill()


def test_inspect_asks_the_server(single, policy, tmp_path):
    """A field that the server refuses, or another answer there than here, would be met by the user first."""
    image = Image.new("RGB", (64, 48), "white")
    image.paste("red", (30, 10, 50, 30))
    image.save(tmp_path / "shape.png")
    (tmp_path / "shapes.py").write_text(TASK)
    shown = Observation((image, "Where is the red square?"))
    (decision,) = policy().act([Episode(Sample("shape", shown, None), 0)], [shown], greedy=True)
    command = [sys.executable, "-m", "inspect_ai", "eval", "shapes.py", "-T", f"target={json.dumps(decision.action)}"]
    model = ["--model", "openai-api/vlrl/embedded", "--model-base-url", f"{single.url}/v1"]
    options = ["--max-tokens", "12", "--temperature", "0", "--log-dir", "logs", "--display", "plain"]
    newer = fetch("openai==3.57.0")  # than verifiers takes
    environment = os.environ | {"VLRL_API_KEY": "none", "PYTHONPATH": newer}
    run = subprocess.run([*command, *model, *options], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    (file,) = (tmp_path / "logs").glob("*.eval")
    log = inspect_log.read_eval_log(str(file))
    assert log.status == "success" and log.eval.model == "openai-api/vlrl/embedded"
    assert [each.output.completion for each in log.samples] == [decision.action] * 2
    assert {each.id: each.scores["includes"].value for each in log.samples} == {"right": "C", "wrong": "I"}
    assert all(each.output.usage.output_tokens > 0 for each in log.samples)
