"""The recorded results of the reference repositories (tests/golden/*.json), compared by tests/golden/run.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tests" / "golden" / "run.py"
FRESH = """
import json, sys
sys.path[:0] = sys.argv[1:2]
from fresh import pairs
print(json.dumps(list(pairs(int(sys.argv[2]), seed=int(sys.argv[3])))))
"""
REASONS = """
import sys
sys.path[:0] = sys.argv[1:2]
from lenient import LENIENT
print(*(reason for entries in LENIENT.values() for _, reason in entries), sep="\\n")
"""
CHECK = """
import json, sys
sys.path[:0] = sys.argv[1:2]
from references import REFERENCES
for file in ("gui", "detection", "video"):
    for pair in json.load(open(f"{sys.argv[1]}/{file}.json")):
        formula = REFERENCES.get((pair["source"].partition("@")[0], pair["function"]))
        if formula and abs(formula(pair["inputs"]) - float(pair["output"] or 0)) > 1e-4:
            print(pair)
"""
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
        assert line["equal"] + line["stricter"] + line["lenient"] == line["n"]
        assert line["equal"] >= LEAST.get(line["function"], 0.45) * line["n"], line
        assert line["stricter"] == 0 or line["function"] not in EQUAL_ON_ALL, line


def test_what_is_stricter_is_explained(results):
    """A user who compares a run with the paper must find out where the numbers can differ."""
    page = (ROOT / "docs" / "evidence" / "published_rewards.md").read_text(encoding="utf-8")
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


def python(code, *arguments):
    command = [sys.executable, "-c", code, str(RUN.parent), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_plain_formulas_give_what_is_recorded():
    """A formula that pays other than the released code would hide a reward that pays more."""
    assert python(CHECK) == ""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fresh_mutated_answers_are_not_paid_more_than_by_released_code(tmp_path, seed):
    """Recorded pairs are few: what they miss, white space, units, tuples, seams, is the hack that a policy finds."""
    (tmp_path / "pairs.json").write_text(python(FRESH, 400, seed))
    code, lines = compared(tmp_path / "pairs.json")
    assert [line for line in lines if line["looser"] or line["unmapped"]] == []
    assert code == 0
    assert all(line["equal"] > 0.2 * line["n"] for line in lines)


def test_what_is_lenient_is_listed_and_explained(tmp_path):
    """A user who compares a run with the paper must find out where ours pays more, and nothing else may."""
    inputs = {"completion": "<think>t</think><answer>A</answer>\n"}
    pairs = [{"source": "tulerfeng/Video-R1@0", "function": "format_reward", "inputs": inputs, "output": 0}]
    click = "<answer>[{'action': 'click', 'coordinate': [150, 230]}]</answer>"
    unlisted = {"source": "lll6gg/UI-R1@0", "function": "format_reward[nothink]", "inputs": {"completion": click}}
    pairs.append(unlisted | {"output": 0})
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    code, (listed, other) = compared(tmp_path / "pairs.json")
    assert (code, listed["lenient"], listed["looser"], other["lenient"], other["looser"]) == (1, 1, 0, 0, 1)
    reasons = python(REASONS)
    page = (ROOT / "docs" / "evidence" / "published_rewards.md").read_text(encoding="utf-8")
    assert {reason for reason in reasons.splitlines() if reason not in page} == set()
