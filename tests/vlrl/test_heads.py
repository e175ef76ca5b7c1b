"""The commands of configs, and of recipes over other tasks, up to the second step."""

import pytest

from tests.vlrl.heads import CONFIGS, OTHERS, check_head

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [*CONFIGS, *OTHERS])
def test_a_head_command_reaches_its_second_step(name, tmp_path, monkeypatch, capsys):
    """The first thing that a user copies out of a config would end in a traceback, or never begin."""
    monkeypatch.chdir(tmp_path)  # `runs/...` of this checkout must not be found
    check_head(name, (CONFIGS | OTHERS)[name], tmp_path / "run", capsys)
