"""What tests of off-policy runs share: a folder to run in, and the path to the small modules beside them."""

import sys
from pathlib import Path

import pytest

FOLDER = str(Path(__file__).parent)
if FOLDER not in sys.path:
    sys.path.insert(0, FOLDER)


@pytest.fixture
def place(request, tmp_path, monkeypatch) -> Path:
    """A folder with the test module's configuration, where the user's own task lies on the Python path."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "line.yaml").write_text(request.module.CONFIG)
    yield tmp_path
    sys.modules.pop("line_task", None)
