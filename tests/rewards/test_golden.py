"""The recorded results of the reference repositories (tests/golden/*.json), compared by tests/golden/run.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tests" / "golden" / "run.py"
FUNCTIONS = {"gui.json": 23, "detection.json": 27, "video.json": 42}  # in each file
LEAST = {"cosine_reward": 0.3}  # the share that is equal; this one takes every answer for right
EQUAL_ON_ALL = {
    "accuracy_reward[No-Thinking]",
    "accuracy_reward[No-Thinking-open-pets]",
    "all_match_reward",
    "format_reward[nothink]",
    "dast_add_completion_length",
    "eval_omni_grounding_hit(transcribed)",
    "eval_screenspot_hit(transcribed)",
    "click_matching",
    "actor_step_advantage_indicator(transcribed)",
    "temporal_iou",
    "get_tIoU.tIoU",
    "score_boxes",
    "t_grpo.total_reward",
    "t_grpo.advantage",
}


def compared(file):
    done = subprocess.run([sys.executable, RUN, file], capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module", params=FUNCTIONS)
def results(request):
    """Exit code and lines of the runner for one file."""
    code, lines = compared(ROOT / "tests" / "golden" / request.param)
    assert len(lines) == FUNCTIONS[request.param]
    return code, lines


def test_no_reward_is_looser_than_its_paper(results):
    """A completion that the paper does not pay for must not be paid for here: that would be a new hack."""
    code, lines = results
    assert code == 0
    for line in lines:
        assert line["looser"] == line["unmapped"] == 0, line
        assert line["equal"] + line["stricter"] == line["n"]
        assert line["equal"] >= LEAST.get(line["function"], 0.45) * line["n"], line
        assert line["stricter"] == 0 or line["function"] not in EQUAL_ON_ALL, line


def test_what_is_stricter_is_explained(results):
    """A user who compares a run with the paper must find out where the numbers can differ."""
    page = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")
    stricter = {line["function"] for line in results[1] if line["stricter"]}
    assert {function for function in stricter if f"`{function}`" not in page} == set()


@pytest.mark.parametrize(
    ("output", "code", "counted"),
    [(0.125, 0, "equal"), (0.0, 1, "looser"), (-16.5, 1, "clipped"), (16.5, 0, "clipped"), (None, 1, "looser")],
)
def test_the_runner_counts(tmp_path, output, code, counted):
    """A runner that calls everything equal proves nothing."""
    inputs = {"completion": '[{"bbox_2d": [1, 2, 3, 4]}]', "solution": [1, 2, 3, 4], "image_size": [9, 9]}
    pairs = [
        {"source": "Yuqi-Zhou/GUI-G1@0", "function": "box_reward", "inputs": inputs, "output": output},
        {"source": "nobody/nothing@0", "function": "f", "inputs": {}, "output": 1},
    ]
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    returned, (first, second) = compared(tmp_path / "pairs.json")
    assert (returned, first[counted], first["n"]) == (code, 1, 1)
    assert (second["unmapped"], second["reasons"]) == (1, ["no adapter"])
