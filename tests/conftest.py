"""What all tests share: few threads, no downloads, and system parts that may be missing."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
import leftovers

# who starts the tests in the background may have it ignored, and every process of theirs would inherit that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# read when torch and huggingface_hub are first imported, so they are set before any test module is
os.environ.setdefault("OMP_NUM_THREADS", "2")  # tiny models: more threads only wait for one another
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# a process has one server that forks, so these are there before any test starts it
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
settings.register_profile("calm", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("calm")

os.environ[leftovers.OWNER] = str(os.getpid())


def pytest_addoption(parser):
    check = {"action": argparse.BooleanOptionalAction, "default": True}
    parser.addoption("--leftovers", **check, help="a test file that leaves a process, a thread or a port behind fails")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """What a fixture starts for several files is no file's own."""
    if fixturedef.scope not in ("session", "package") or not request.config.getoption("--leftovers"):
        return (yield)
    before = leftovers.find_leftovers()
    try:
        return (yield)
    finally:
        leftovers.shared.update(leftovers.find_leftovers().keys() - before.keys())


@pytest.fixture(scope="module", autouse=True)
def _leave_nothing(request):
    """Browsers and simulators that stay open slow all files after them, and a leak of the product looks the same."""
    if not request.config.getoption("--leftovers"):
        yield
        return
    before = leftovers.find_leftovers()
    yield
    if left := leftovers.wait_for_ends(before):
        pytest.fail(f"{request.path} leaves behind: " + "; ".join(left), pytrace=False)


@pytest.fixture(scope="session")
def needs() -> Callable[..., str]:
    """`needs("chromium", "google-chrome")`: the path of the first that is on PATH; without one the test is skipped.

    With CI=true it fails instead: a part that went missing there must not pass for a test that passed.
    """

    def find(*programs: str) -> str:
        found = next(filter(None, map(shutil.which, programs)), None)
        if found:
            return found
        problem = f"needs {' or '.join(programs)} on PATH: run `make system`"
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)

    return find
