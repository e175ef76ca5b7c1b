"""Every recipe by itself up to the second step."""

import pytest

from tests.vlrl.heads import RECIPES, check_head

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_reaches_its_second_step(name, tmp_path, monkeypatch, capsys):
    """A published method that a user picks would end in a traceback, or never begin."""
    monkeypatch.chdir(tmp_path)  # `runs/...` of this checkout must not be found
    check_head(name, RECIPES[name], tmp_path / "run", capsys)
