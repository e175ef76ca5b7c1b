"""The command line: what every command says, and the exit codes that scripts rely on."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import vlrl
from vlrl import cli
from vlrl.cli.help import GROUPS
from vlrl.recipe_checks import load_config

ROOT = Path(vlrl.__file__).parents[1]
GROUNDING = str(ROOT / "configs" / "gui_grounding.yaml")
RECIPE = str(ROOT / "configs" / "recipes" / "mssr.yaml")
EXAMPLES = {name: example for names in GROUPS.values() for name, example in names.items()}


_spec = importlib.util.spec_from_file_location("documented", ROOT / "tests" / "documented.py")
documented = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(documented)


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    """`main` puts the current folder on the path; the tests after this one get theirs back."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def asked(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    try:
        code = cli.main(arguments)
    except SystemExit as end:  # argparse
        code = end.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("command", EXAMPLES)
def test_every_command_explains_itself(command, capsys):
    """Otherwise a newcomer must read the sources, or guess what a command line looks like."""
    code, output, _ = asked(capsys, command, "--help")
    assert code == 0 and output.startswith(f"usage: vlrl {command}")
    assert f"\nexample: {EXAMPLES[command]}\n" in output


@pytest.mark.parametrize("command", EXAMPLES)
def test_every_example_is_accepted(command, monkeypatch):
    """An example that is refused teaches a newcomer that the tool is broken."""
    monkeypatch.chdir(ROOT)
    program, *words = shlex.split(EXAMPLES[command])
    assert (program, words[0]) == ("vlrl", command)
    if command in ("pretrain", "trial"):  # of files that a user writes
        cli.parsed(words)
    else:
        documented.check_command(words)


def read_terminal(words: list[str], folder: Path, **environment: str) -> str:
    """What a command writes on a terminal."""
    terminal, side = pty.openpty()
    own = {"TERM": "xterm", "COLUMNS": "100", "PYTHONPATH": str(ROOT), "NO_COLOR": ""}
    process = subprocess.Popen([sys.executable, "-m", "vlrl.cli", *words], cwd=folder, stdin=side, stdout=side,
                               stderr=side, env=os.environ | own | environment)  # fmt: skip
    os.close(side)
    shown = b""
    try:
        while part := os.read(terminal, 65536):
            shown += part
    except OSError:  # its other side is closed
        pass
    os.close(terminal)
    process.wait()
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("words", "styled"),
    [
        (["list", "tasks"], ["\x1b[1mTASKS (", "\x1b[36m  counting\x1b[0m "]),
        pytest.param(["doctor"], ["\x1b[32mok\x1b[0m "], marks=pytest.mark.slow),
        (
            ["train"],
            ["\x1b[1;31mvlrl:\x1b[0m ", "\x1b[36mvlrl train configs/gui_grounding.yaml\x1b[0m", "m[VL101]\x1b[0m"],
        ),
    ],
)
def test_a_terminal_has_colour_unless_it_wants_none(words, styled, tmp_path):
    """What to do stands at the end of a long line; escape codes in a file or for who set NO_COLOR are litter."""
    shown = read_terminal(words, tmp_path)
    assert all(each in shown for each in styled), shown
    assert "\x1b[" not in read_terminal(words, tmp_path, NO_COLOR="1")
    done = subprocess.run([sys.executable, "-m", "vlrl.cli", *words], cwd=tmp_path, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT), "FORCE_COLOR": "1"})  # fmt: skip
    assert "\x1b[" not in done.stdout + done.stderr


def test_the_version_is_said(capsys):
    """The first question of every bug report."""
    assert asked(capsys, "--version") == (0, f"vlrl {vlrl.__version__}\n", "")


def completed(line: str, folder: Path) -> list[str]:
    """What a shell gets that asks what may follow, as argcomplete's functions in it do."""
    asks = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(folder / "answer"),
            "COMP_TYPE": "9", "COMP_LINE": line, "COMP_POINT": str(len(line))}  # fmt: skip
    code = (
        "import os, sys; from vlrl import cli; leave = os._exit\n"
        "def ended(code): print('torch' in sys.modules); sys.stdout.flush(); leave(code)\n"
        "os._exit = ended; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=os.environ | asks | {"PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
    return [word.strip() for word in (folder / "answer").read_text().split("\n")]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("vlrl tr", ["train", "trial"]),
        ("vlrl train gui_gr", ["gui_grounding"]),
        ("vlrl train mi", ["mine.yaml", "mixture"]),
        ("vlrl train gui_grounding recipes/mss", ["recipes/mssr"]),
        ("vlrl train gui_grounding recipes/mssr policy.lora.r", ["policy.lora.rank="]),
        ("vlrl train gui_grounding train.master_weights=", ["train.master_weights=false", "train.master_weights=true"]),
        ("vlrl train gui_grounding losses=ppo", ["losses=ppo_clip"]),
        ("vlrl list ke", ["keys"]),
        ("vlrl eval gui_grounding --mo", ["--model"]),
    ],
)
def test_tab_completes(line, offered, tmp_path):
    """Names of 200 configs and 70 keys would have to be known by heart. Torch would make every Tab wait for seconds."""
    (tmp_path / "mine.yaml").write_text("")
    assert sorted(completed(line, tmp_path)) == offered


@pytest.mark.slow
def test_tab_completes_in_a_real_bash(tmp_path):
    """The line that the docs give for a shell's start would complete nothing in the shell itself."""
    ways = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    terminal, side = pty.openpty()
    environment = os.environ | {"PATH": ways, "PS1": "$ ", "TERM": "dumb"}
    shell = subprocess.Popen(["bash", "--norc", "--noprofile"], cwd=tmp_path, stdin=side, stdout=side, stderr=side,
                             env=environment, start_new_session=True)  # fmt: skip
    os.close(side)

    def expect(text: str) -> None:
        shown, end = "", time.monotonic() + 300
        while text not in shown:
            assert select.select([terminal], [], [], end - time.monotonic())[0], shown
            shown += os.read(terminal, 4096).decode()

    try:
        page = (ROOT / "docs" / "reference" / "commands.md").read_text()
        (start,) = [line for line in page.splitlines() if "argcomplete vlrl" in line]
        os.write(terminal, f"{start}; echo is_$((1 + 1))_read\n".encode())
        expect("is_2_read")
        for typed, rest in (("vlrl train gui_gr", "ounding "), ("recipes/mss", "r "), ("policy.lora.ra", "nk=")):
            os.write(terminal, f"{typed}\t".encode())
            expect(typed + rest)
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)


def test_the_demo_finds_its_config_from_anywhere(capsys, tmp_path, monkeypatch):
    """The README's first command would end in an error."""
    monkeypatch.chdir(tmp_path)
    code, _, errors = asked(capsys, "demo", "train.setps=1")
    assert code == 2 and "train.setps: unknown key" in errors


def test_help_names_every_command(capsys):
    """Otherwise a command stays unknown, or is told twice."""
    code, output, _ = asked(capsys, "--help")
    assert code == 0
    told = re.findall(r"^  ([a-z][a-z-]*) ", output, re.MULTILINE)
    assert sorted(told) == sorted(cli.parser()._subparsers._group_actions[0].choices)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["trian"], "unknown command 'trian'; did you mean 'train'?"),
        (["train", GROUNDING, "--steps", "3"], "settings are written key=value"),
        (["deploy"], "required: config [VL101]\n"),
    ],
)
def test_a_mistyped_command_line_is_led_on(arguments, named, capsys):
    """A list of 35 commands, or of arguments that are not needed, is no answer to a slip."""
    code, _, errors = asked(capsys, *arguments)
    assert code == 2 and named in errors


@pytest.mark.parametrize("arguments", [[], ["fly"], ["train", GROUNDING, "--fast"], ["show"]])
def test_wrong_usage_exits_with_2(arguments, capsys):
    """Otherwise a script takes a typing mistake for success."""
    code, output, errors = asked(capsys, *arguments)
    assert code == 2 and not output
    assert "usage: vlrl" in errors


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train"], "name a config"),
        (["train", "nothing.yaml"], "nothing.yaml"),
        (["train", "gui_groundin"], "did you mean 'gui_grounding'?"),
        (["train", GROUNDING, "recipes/grp"], "did you mean 'recipes/grpo'?"),
        (["train", "configs/classification.yaml"], "`vlrl warmstart configs/models/embedded_digits.yaml` makes it"),
        (["train", GROUNDING, "--resume", "run"], "--resume"),
        (["show", GROUNDING, "trian.steps=3"], "train"),
        (["show", GROUNDING, "steps"], "key.path=value"),
        (["list", "flavours"], "tasks"),
        (["eval", GROUNDING, "--model", "./nothing"], "./nothing"),
        (["select", GROUNDING, "--out", "x.jsonl", "--model", "./nothing"], "./nothing"),
        (["score", "gui_grounding", "nothing.jsonl"], "nothing.jsonl"),
    ],
)
def test_mistakes_are_one_line_and_exit_with_2(arguments, named, capsys, tmp_path, monkeypatch):
    """Otherwise a user reads a traceback instead of what to mend."""
    monkeypatch.chdir(tmp_path)
    code, output, errors = asked(capsys, *arguments)
    assert code == 2 and not output
    (line,) = errors.splitlines()
    assert line.startswith("vlrl: ") and named in line


@pytest.mark.parametrize(("file", "name"), [("tasks/__init__.py", "tasks"), ("rewards.py", "rewards")])
def test_a_package_of_the_same_name_is_named(file, name, tmp_path):
    """A folder `tasks` of the user's own hides ours, and every task is unknown."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("")
    (tmp_path / "script.py").write_text("import vlrl\nvlrl.load_config('gui_grounding')\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    problem = f"the package `{name}` is not vlrl's: {tmp_path / file} comes before it"
    for arguments, code, lines in ((["-m", "vlrl.cli", "show", "gui_grounding"], 2, 1), (["script.py"], 1, None)):
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        said = done.stderr.splitlines()
        assert done.returncode == code and problem in said[-1] and lines in (None, len(said))


def test_show_prints_what_would_run(capsys, tmp_path):
    """Otherwise recipes and overrides are guesswork."""
    code, output, _ = asked(capsys, "show", GROUNDING, RECIPE, "train.lr=1e-5")
    assert code == 0
    shown = yaml.safe_load(output)
    assert shown["train"]["lr"] == 1e-5 and shown["train"]["group_size"] == 1
    assert [a["name"] for a in shown["advantages"]] == ["beta_tracker", "batch_norm", "entropy_shaping"]
    (tmp_path / "shown.yaml").write_text(output)
    assert load_config(tmp_path / "shown.yaml") == load_config(GROUNDING, [RECIPE, "train.lr=1e-5"])


def test_list_names_what_a_yaml_may_hold(capsys):
    """Otherwise methods and tasks are found by reading the sources."""
    code, output, _ = asked(capsys, "list")
    assert code == 0 and "gui" in output and "advantages" in output
    code, output, _ = asked(capsys, "list", "--search", "num", "generations")
    assert code == 0 and "train.group_size" in output
    code, _, errors = asked(capsys, "list", "tasks", "--search", "gui")
    assert code == 2 and "--search" in errors


def test_doctor_answers_in_json(capsys):
    """Otherwise a report of a broken setup cannot be sent or checked by a script."""
    code, output, _ = asked(capsys, "doctor", "--json")
    findings = json.loads(output)
    assert code == any(finding["status"] == "error" for finding in findings)
    assert {"name", "status"} <= findings[0].keys()


def test_eval_measures_the_embedded_model(capsys):
    """Otherwise scripts cannot compare models."""
    changes = ("eval.num_samples=6", "eval.batch_size=4", "task.held_out=8", "policy.max_tokens=3")
    code, output, _ = asked(capsys, "eval", GROUNDING, *changes, "--json")
    assert code == 0
    measured = json.loads(output)
    assert measured["n"] == 6 and measured["low"] <= measured["value"] <= measured["high"]
    assert measured["task"] == "gui_grounding" and set(measured["parts"]) == {"hit", "format"}
    code, output, _ = asked(capsys, "eval", GROUNDING, *changes)
    assert code == 0 and "on 6 samples" in output.splitlines()[0] and "best_constant" in output


def test_changes_may_come_after_options(capsys):
    """Otherwise `vlrl eval CONFIG --model DIR eval.num_samples=6` calls a right change an unknown option."""
    code, _, error = asked(capsys, "eval", GROUNDING, "--model", "embedded", "eval.smaples=6")
    assert code == 2 and "eval.smaples" in error and "did you mean 'num_samples'" in error


def test_help_and_mistakes_need_no_torch():
    """Otherwise a typing mistake is answered after seconds of imports."""
    code = (
        "import sys; from vlrl import cli\n"
        f"assert cli.main(['show', {GROUNDING!r}, 'train.setps=1']) == 2\n"
        f"assert cli.main(['show', {GROUNDING!r}]) == 0\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy'"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
