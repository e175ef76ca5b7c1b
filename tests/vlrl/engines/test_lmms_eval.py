"""lmms-eval itself, unchanged, asks `vlrl serve-model` by its OpenAI-compatible model: docs/guides/benchmarks.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.lmms_folder import add_lmms_eval
from vlrl.cli import main

LMMS = add_lmms_eval()
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of lmms-eval's own code


@pytest.fixture(scope="module")
def single(serve):
    """A server that writes one completion at a time, as the test does here: no tie falls another way."""
    made = serve("--max-batch", 1)
    yield made
    made.kill()


def test_lmms_eval_asks_the_server(single, tmp_path, monkeypatch, capsys):
    """A field that the server refuses, or another answer there than here, would show in no test of either."""
    import datasets

    pixels = [np.full((48, 64, 3), 60 * i, np.uint8) for i in range(3)]
    columns = {"image": list(map(Image.fromarray, pixels)), "instruction": ["the red circle", "the star", "the square"],
               "bbox": [[0, 0, 0.5, 0.5]] * 3, "data_type": ["text"] * 3}  # fmt: skip
    datasets.Dataset.from_dict(columns).to_parquet(str(tmp_path / "test.parquet"))
    definition = Path(find_spec("lmms_eval").origin).parent / "tasks" / "screenspot_v2" / "screenspot_v2.yaml"
    local = {"include": str(definition), "task": "screenspot_v2_local", "dataset_path": "parquet",
             "dataset_kwargs": {"data_files": {"test": str(tmp_path / "test.parquet")}}}  # fmt: skip
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "local.yaml").write_text(json.dumps(local))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    model = f"base_url={single.url}/v1,model_version=embedded,timeout=120"
    command = ["-m", "lmms_eval", "--model", "openai", "--model_args", model, "--tasks", "screenspot_v2_local"]
    options = ["--include_path", str(tmp_path / "tasks"), "--gen_kwargs", "max_new_tokens=12,temperature=0"]
    output = ["--log_samples", "--output_path", str(tmp_path / "out")]
    environment = os.environ | {"OPENAI_API_KEY": "none", "PYTHONPATH": LMMS}
    done = subprocess.run(
        [sys.executable, *command, *options, *output], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "out").rglob("*_results.json")
    (samples,) = (tmp_path / "out").rglob("*_samples_*.jsonl")
    rows = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda row: row["doc_id"])
    by_server = [row["filtered_resps"] for row in rows]

    answers = []
    from vlrl.evaluation import benchmarks

    add = benchmarks.StrictScores.add
    monkeypatch.setattr(
        benchmarks.StrictScores, "add", lambda self, *given: (answers.append(given[2]), add(self, *given))
    )
    here = [
        "eval",
        "embedded",
        "policy.max_tokens=12",
        "eval.batch_size=1",
        "--benchmark",
        "screenspot_v2",
        "--data",
        str(tmp_path),
    ]
    capsys.readouterr()
    assert main([*here, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert by_server == answers
    official = json.loads(file.read_text())["results"]["screenspot_v2_local"]
    assert official["screenspot_v2_action_acc,none"] == result["value"]
