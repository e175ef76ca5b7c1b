"""What docs/trial.md shows works as it stands there."""

import re
from pathlib import Path

from robot.trial.plan import load_trial

TEXT = (Path(__file__).parents[3] / "docs" / "trial.md").read_text(encoding="utf-8")


def test_the_example_is_a_trial(tmp_path):
    """A newcomer's first trial, typed from the page, must be read."""
    path = tmp_path / "trial.yaml"
    path.write_text(re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)[0])
    trial = load_trial(path, [], manual=True)
    assert set(trial.policies) == {"diffusion", "act"} and len(trial.starts) == 3
