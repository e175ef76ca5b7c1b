"""JSON and YAML from outside: hostile texts end in one line, at once, wherever they are read."""

from __future__ import annotations

import ast
import json
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import vlrl
from vlrl.cli import main
from vlrl.decoders import MAX_DEPTH, MAX_JSON, MAX_YAML, DecodeError, load_json, load_yaml, parse_json, parse_yaml
from vlrl.recipe_checks import load_config
from vlrl.types import UserError

ROOT = Path(vlrl.__file__).parents[1]
BASE = ROOT / "configs" / "gui_grounding.yaml"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))
YAML = {
    "alias bomb": (BOMB, "more than 100,000 values"),
    "merge bomb": (MERGES, "more than 100,000 values"),
    "alias to itself": ("seed: &a [*a]", "an alias within what it stands for"),
    "nested lists": (f"a: 1\nb: {'[' * 2000}{']' * 2000}", ":2: no valid YAML: more than 100 lists"),
    "nested mappings": ("\n".join(f"{' ' * i}k:" for i in range(400)), "more than 100 lists"),
    "a key twice": ("seed: 1\ntrain: {}\nseed: 2", ":3: no valid YAML: the key 'seed' stands twice"),
    "a key twice below": ("train:\n  steps: 1\n  steps: 2", ":3: no valid YAML: the key 'steps' stands twice"),
    "large": ("a: " + "x" * MAX_YAML, "characters: at most 262,144"),
    "a date that is none": ("a: 1\nb: 2026-99-99", ":2: no valid YAML: month must be"),
    "a number that is none": ("a: !!int x", ":1: no valid YAML: invalid literal"),
    "an object": ("a: !!python/object/apply:os.system [ls]", ":1: no valid YAML: could not determine a constructor"),
    "two documents": ("a: 1\n---\na: 2", ":2: no valid YAML: expected a single document"),
    "an unprintable character": ("a: 1\nb: \x01", ":2: no valid YAML: special characters are not allowed"),
    "a list as key": ("? [a]\n: 1", ":1: no valid YAML: while constructing a mapping found unhashable key"),
    "an open list": ("a: 1\nb: [", ":2: no valid YAML"),
}
JSON = {
    "a key twice": ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' stands twice"),
    "deep lists": ("[" * 5000 + "]" * 5000, "more than 100 lists and objects"),
    "deep objects": ('{"a":' * 5000 + "1" + "}" * 5000, "more than 100 lists and objects"),
    "unclosed": ("[" * 200_000, "more than 100 lists and objects"),
    "NaN": ('{"a": NaN}', "NaN is no JSON number"),
    "Infinity": ("[-Infinity]", "-Infinity is no JSON number"),
    "a large number": ("[1e999]", "1e999 is too large"),
    "many digits": ("1" * 5000, "digits"),
    "half a character": ('{"a": "\\ud83d"}', "half a surrogate pair"),
    "half a character as key": ('{"\\ude00": 1}', "half a surrogate pair"),
    "half a character as it is": ('"\ud83d"', "half a surrogate pair"),
    "no JSON": ("{'a': 1}", "Expecting property name"),
}


@pytest.mark.parametrize("case", YAML)
def test_a_hostile_config_is_refused_in_one_line(case, tmp_path, capsys):
    """`vlrl show` hung on nine lines of aliases, and ended in a traceback on nested lists."""
    text, words = YAML[case]
    file = tmp_path / "config.yaml"
    file.write_text(text)
    begun = time.process_time()
    assert main(["show", str(file)]) == 2
    told = capsys.readouterr().err.strip()
    assert "\n" not in told and words in told and "config.yaml:" in told
    assert time.process_time() - begun < 30  # an alias bomb takes hours


def test_a_hostile_value_on_the_command_line_is_refused():
    """The same through `key.path=value`."""
    for value in (f"{'[' * 2000}{']' * 2000}", "{a: 1, a: 2}", "&a [*a]"):
        with pytest.raises(UserError, match="the value is no valid YAML: ") as caught:
            load_config(BASE, [f"losses={value}"])
        assert "\n" not in str(caught.value)


def test_honest_aliases_and_anchors_are_read():
    """A configuration may well say a list once and use it twice."""
    assert parse_yaml("a: &x [1, 2]\nb: *x\nc: {<<: &m {d: 1e-3}, e: 2}", "x") == {
        "a": [1, 2], "b": [1, 2], "c": {"d": 1e-3, "e": 2},
    }  # fmt: skip


@pytest.mark.parametrize("file", sorted(ROOT.glob("configs/**/*.yaml")), ids=lambda file: file.stem)
def test_every_config_reads_as_before(file):
    """A limit that is too tight would refuse the product's own files."""

    class Floats(yaml.SafeLoader):
        """As people mean 1e-6."""

    assert load_yaml(file).keys() == yaml.load(file.read_text(), Floats).keys()


@pytest.mark.parametrize("case", JSON)
@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_hostile_json_text_is_refused_in_one_line(case, as_bytes):
    """The last of two keys won; a deep text or half a character ended a run long after it was read."""
    text, words = JSON[case]
    with pytest.raises(DecodeError) as caught:
        parse_json(text.encode("utf-8", "surrogatepass") if as_bytes else text)
    assert words in str(caught.value) or (as_bytes and "not UTF-8" in str(caught.value))
    assert "\n" not in str(caught.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))) | st.sampled_from(['"', "\\", '[[{"', "\\\\\"]", "😀"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), inner),
)  # fmt: skip


@given(VALUES, st.booleans())
def test_json_is_read_as_pythons_own_reader_does(value, ascii_only):
    """A decoder with opinions of its own would change data."""
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert parse_json(text) == parse_json(text.encode()) == json.loads(text)


@given(st.integers(1, 300), st.sampled_from(['"]]]]]"', '"[[[["', '"\\""', '"\\\\"', "1"]), st.booleans())
def test_depth_counts_brackets_outside_of_texts(depth, inner, objects):
    """A text full of brackets would be refused, or hide how deep a list is."""
    opening, closing = ('{"k[": ', "}") if objects else ("[", "]")
    text = opening * depth + f"[{', '.join([inner] * 120)}]" + closing * depth
    if depth + 1 > MAX_DEPTH:
        with pytest.raises(DecodeError, match="within each other"):
            parse_json(text)
    else:
        assert parse_json(text) == json.loads(text)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    """A sparse file of terabytes would take all memory before it is found to be no JSON."""
    file = tmp_path / "large.json"
    with file.open("wb") as opened:
        opened.truncate(MAX_JSON + 1)
    with pytest.raises(DecodeError, match="bytes: at most"):
        load_json(file)
    with pytest.raises(DecodeError, match=r"characters: at most|special characters"):
        load_yaml(file)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"image": "a.png", "instruction": "x", "box": [0, 0, 5, 5], "box": [9, 9, 20, 20]}', "'box' stands twice"),
        ('{"image": "a.png", "instruction": "\\ud83d", "box": [0, 0, 5, 5]}', "half a surrogate pair"),
        ('{"image": "a.png", "instruction": "x", "box": [0, 0, NaN, 5]}', "not finite"),
        ('{"image": "a.png", "instruction": "x", "box": ' + "[" * 2000 + "]" * 2000 + "}", "more than 100 lists"),
    ],
)  # fmt: skip
def test_a_hostile_row_is_named(row, words, tmp_path, capsys):
    """Of two boxes the last won in JSON where YAML refused both; the others ended in tracebacks."""
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    good = '{"image": "a.png", "instruction": "x", "box": [0, 0, 5, 5]}'
    (tmp_path / "rows.jsonl").write_text(f"{good}\n{row}\n")
    data = f"data.train={tmp_path / 'rows.jsonl'}"
    assert main(["train", str(BASE), data, f"out={tmp_path / 'run'}", "train.steps=1"]) == 2
    told = capsys.readouterr().err.strip()
    assert words in told and "row 2" in told and "\n" not in told


# modules that call json or yaml themselves, and why
DIRECT = {
    "vlrl.decoders": "the decoders",
    "rewards.parse": "rewards import nothing of ours; has its own limits on size and depth",
    "robot.deploy.recorder": "the last line of a process that it started",
    "robot.deploy.scene": "answers of an emulator that it started",
    "robot.emulator.control": "answers of an emulator that it started",
    "robot.sim.remote_host": "messages from the process that started it; runs where nothing of ours is installed",
}


def test_nothing_else_decodes_json_or_yaml():
    """A reader without limits is a way round them."""
    readers = {"json.load", "json.loads", "yaml.load", "yaml.safe_load", "yaml.full_load", "yaml.unsafe_load",
               "yaml.load_all", "yaml.safe_load_all", "yaml.compose", "json.JSONDecoder"}  # fmt: skip
    found = set()
    for package in ("vlrl", "tasks", "rewards", "robot"):
        for file in (ROOT / package).rglob("*.py"):
            named = {
                ast.unparse(node) for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)
            }
            if named & readers:
                found.add(".".join(file.relative_to(ROOT).with_suffix("").parts))
    assert found == set(DIRECT)
