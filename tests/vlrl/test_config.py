"""Configurations: what is said is what runs, and every mistake is answered in one line that names it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from tests import documented
from vlrl import config as configs
from vlrl import decoders
from vlrl.config import Config, Section, check_options, load_as
from vlrl.recipe_checks import load_config
from vlrl.types import READERS, UserError, find_readers

ROOT = Path(__file__).parents[2]
PLAIN = "task: gui_grounding\nout: runs/x\n"


@pytest.fixture
def load(tmp_path) -> Callable[..., Config]:
    """`load(text, *changes)`: that text as a file, loaded with changes."""

    def from_text(text: str, *changes: str) -> Config:
        (tmp_path / "c.yaml").write_text(text)
        return load_config(tmp_path / "c.yaml", changes)

    return from_text


FILES = [  # what the file holds beside PLAIN, what the message must say
    ("trian: {}", ["trian: unknown key", "did you mean 'train'?"]),
    ("train: {step: 5}", ["train.step: unknown key", "did you mean 'steps'?"]),
    ("policy: {lora: {rnk: 4}}", ["policy.lora.rnk: unknown key", "did you mean 'rank'?"]),
    ("train: {steps: five}", ["train.steps: should be a valid integer", "'five'"]),
    ("train: {steps: 1.5}", ["train.steps: should be a valid integer"]),
    ("train: {micro_batch_size: atuo}", ["train.micro_batch_size: should be a valid integer or 'auto' (got 'atuo')"]),
    ("train: {steps: 0}", ["train.steps: should be greater than or equal to 1"]),
    ("train: 5", ["train: should be a valid dictionary"]),
    ("train: {betas: [0.9]}", ["train.betas: "]),
    ("data: {on_bad_row: ignore}", ["data.on_bad_row: should be 'stop' or 'skip'"]),
    ("log: {trackers: [tensorbord]}", ["log.trackers.0: ", "'tensorboard'"]),
    ("1: 2", ["1: "]),
    ("base: 5", ["base: should be a file"]),
    ("base:", ["base: should be a file"]),
    ("base: nowhere.yaml", ["there is no config", "nowhere.yaml"]),
    ("base: c.yaml", ["base c.yaml leads back to itself"]),
    ("losses: [", ["no valid YAML", ".yaml:3: "]),
    ("seed: !!python/object:os.system x", ["no valid YAML"]),
    ("losses: [ppo_clp]", ["losses.0.name: unknown name 'ppo_clp'", "did you mean 'ppo_clip'?"]),
    ("losses: ppo_clip", ["losses: should be a valid list"]),
    ("losses: [5]", ["losses.0: "]),
    ("losses: [{low: 0.1}]", ["losses.0.name: is required"]),
    ("losses: [{name: ppo_clip, low: wide}]", ["losses.0.low: should be a valid number"]),
    ("losses: [{name: ppo_clip, lo: 0.1}]", ["losses.0.lo: unknown key", "did you mean 'low'?"]),
    ("losses: [{name: kl, kind: k4}]", ["losses.0.kind: should be 'k1', 'k2' or 'k3'"]),
    ("losses: []", ["losses: at least one term is needed"]),
    ("loss_aggregation: constant", ["loss_aggregation.length: is required"]),
    ("sampler: {name: shufled}", ["sampler.name: unknown name", "did you mean 'shuffled'?"]),
    ("sampler: {name: shuffled, limit: few}", ["sampler.limit: "]),
    ("losses: ['nowhere:loss']", ["losses.0.name: cannot find 'nowhere:loss'"]),
    ("losses: ['math:nothing']", ["losses.0.name: cannot find 'math:nothing'"]),
    ("losses: [':loss']", ["losses.0.name: cannot find ':loss'"]),
    ("train: {group_size: 1}", ["advantages.0 (grpo) needs several completions", "train.group_size"]),
    ("advantages: [entropy_shaping, batch_norm]", ["advantages.1 (batch_norm) must come before entropy_shaping"]),
    ("train: {num_minibatches: 17}", ["train.num_minibatches: at most train.prompts_per_step = 16"]),
]
CHANGES = [
    (["train.lr"], ["override 'train.lr'", "key.path=value"]),
    (["=5"], ["override '=5'", "key.path=value"]),
    (["train.lr=[1"], ["override 'train.lr=[1'", "no valid YAML"]),
    (["train.lr=fast"], ["train.lr: should be a valid number"]),
    (["train.lr=-1"], ["train.lr: should be greater than 0"]),
    (["train.lr=.nan"], ["train.lr: "]),
    (["trian.lr=1"], ["trian: unknown key", "did you mean 'train'?"]),
    (["nowhere.yaml"], ["there is no config nowhere.yaml"]),
    (["task=jigsw"], ["task.name: unknown task 'jigsw'", "did you mean 'jigsaw'?"]),
    (["task.widgets=3"], ["task.widgets: unknown key", "did you mean 'widget'?"]),
    (["task.objects=many"], ["task.objects: should be a valid integer"]),
    (["task=5"], ["task: "]),
]


def one_line(load: Callable[..., Config], text: str, *changes: str) -> str:
    with pytest.raises(UserError) as caught:
        load(text, *changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("text", "needles"), FILES)
def test_a_mistake_in_a_file_is_named(load, text, needles):
    """A misspelt key would be ignored, and the user would train something else."""
    message = one_line(load, PLAIN + text)
    assert all(needle in message for needle in [".yaml", *needles]), message


@pytest.mark.parametrize(("changes", "needles"), CHANGES)
def test_a_mistake_in_an_override_is_named(load, changes, needles):
    """A mistyped sweep would run with the defaults."""
    message = one_line(load, PLAIN, *changes)
    assert all(needle in message for needle in needles), message


@pytest.mark.parametrize("text", ["", "- a", "just text", "5"])
def test_a_file_that_is_no_mapping_is_named(load, text):
    """An empty or wrong file would end in a traceback."""
    assert "holds no mapping" in one_line(load, text)


@pytest.mark.parametrize("missing", ["task", "out"])
def test_required_keys_are_named(load, missing):
    """The run would write to nowhere, or train nothing."""
    kept = "".join(line + "\n" for line in PLAIN.splitlines() if not line.startswith(missing))
    assert f"{missing}: is required" in one_line(load, kept)


def test_an_unknown_key_in_a_mapping_of_sections_is_named(tmp_path):
    """The limits of a joint are such a mapping, and a mistyped limit must not be a traceback."""

    class Joint(Section):
        high: float = 1.0

    class Arm(Section):
        joints: dict[str, Joint] = Field(default_factory=dict)

    (tmp_path / "arm.yaml").write_text("joints: {pan: {hihg: 2.0}}\n")
    with pytest.raises(UserError, match=r"joints\.pan\.hihg: unknown key; did you mean 'high'"):
        load_as(Arm, tmp_path / "arm.yaml")


def test_missing_and_binary_files_are_named(tmp_path):
    """A wrong path is the commonest mistake of all."""
    (tmp_path / "image.yaml").write_bytes(b"\x89PNG\xff\xfe")
    said = {"nowhere.yaml": "there is no config", "image.yaml": "image.yaml: not UTF-8", ".": "it is a folder"}
    for name, problem in said.items():
        with pytest.raises(UserError, match=problem):
            load_config(tmp_path / name)


def test_a_base_loop_over_two_files_is_named(tmp_path):
    """Reading would never end."""
    (tmp_path / "a.yaml").write_text("base: b.yaml\n")
    (tmp_path / "b.yaml").write_text("base: a.yaml\n")
    with pytest.raises(UserError, match="leads back to itself"):
        load_config(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-6", 1e-6), ("3.0e-4", 3e-4), ("1E3", 1000.0), ("+2e0", 2.0), (".5", 0.5), ("7", 7.0), ("2.", 2.0)],
)
def test_numbers_are_numbers(load, text, value):
    """YAML 1.1 reads 1e-6 as text, and everybody writes learning rates like that."""
    assert load(PLAIN + f"train: {{lr: {text}}}").train.lr == value
    assert load(PLAIN, f"train.lr={text}").train.lr == value


@given(st.floats(1e-300, 1e300))
def test_any_float_as_python_writes_it_is_that_number(value):
    """A sweep script's numbers would arrive as text."""
    assert decoders.parse_yaml(repr(value), "value") == value


def test_bases_lie_beneath_and_changes_on_top_in_order(tmp_path):
    """A recipe or an override would be undone by what it is meant to change."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "low.yaml").write_text(PLAIN + "seed: 1\ntrain: {steps: 1, prompts_per_step: 2, lr: 0.1}\n")
    (tmp_path / "sub" / "high.yaml").write_text("base: ../low.yaml\nseed: 2\ntrain: {steps: 3}\n")
    (tmp_path / "top.yaml").write_text("train: {prompts_per_step: 5}\n")
    config = load_config(tmp_path / "sub" / "high.yaml", [str(tmp_path / "top.yaml"), "train.lr=0.5", "train.lr=0.7"])
    assert (config.seed, config.train.steps, config.train.prompts_per_step, config.train.lr) == (2, 3, 5, 0.7)


def test_a_base_may_be_a_bundled_config_by_its_name(tmp_path, monkeypatch):
    """The YAML of docs/guides/qwen.md would be read in a checkout alone; a file beside it is still meant first."""
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub" / "mine.yaml").write_text("base: [configs/gui_grounding.yaml, published/memory/24gb]\nout: x\n")
    config = load_config(tmp_path / "sub" / "mine.yaml")
    assert config.task.name == "gui_grounding" and config.policy.load_in_4bit
    (tmp_path / "sub" / "configs").mkdir()
    (tmp_path / "sub" / "configs" / "gui_grounding.yaml").write_text("task: counting\n")
    assert load_config(tmp_path / "sub" / "mine.yaml").task.name == "counting"


def test_a_recipe_as_a_change_brings_only_what_it_says_itself(tmp_path):
    """Laying a method over a task would swap the task for the one the recipe was written on."""
    (tmp_path / "gui.yaml").write_text("task: gui_grounding\nout: runs/gui\nseed: 3\n")
    (tmp_path / "recipe.yaml").write_text("base: gui.yaml\nlosses: [{name: ppo_clip, high: 0.28}]\n")
    (tmp_path / "jigsaw.yaml").write_text("task: jigsaw\nout: runs/jigsaw\n")
    config = load_config(tmp_path / "jigsaw.yaml", [str(tmp_path / "recipe.yaml")])
    assert (config.task.name, config.out, config.seed) == ("jigsaw", "runs/jigsaw", 0)
    assert config.losses[0].options == {"high": 0.28}
    assert load_config(tmp_path / "recipe.yaml").seed == 3


def test_options_go_with_the_component_they_were_given_for(load):
    """Another sampler or task would inherit options that mean nothing to it, or lose its own."""
    text = "out: x\ntask: {name: jigsaw, rows: 3}\n"
    assert load(text, "task.columns=1").task.options == {"rows": 3, "columns": 1}
    assert load(text, "task=gui_grounding").task.options == {}
    assert load(text, "task.name=gui_grounding").task.options == {}
    assert load("out: x\ntask: jigsaw\n", "task.rows=3").task.options == {"rows": 3}


@pytest.mark.parametrize(
    "changes", [[], ["train.lr=1e-6", "policy.lora={}", "losses=[ppo_clip, {name: kl, coef: 1e-3}]"]]
)
def test_what_is_dumped_loads_as_the_same_config(load, changes):
    """A run could not be repeated or resumed from its own config.yaml."""
    config = load(PLAIN, *changes)
    assert load(configs.dump(config)) == config
    assert configs.dump(load(configs.dump(config))) == configs.dump(config)


# stages and what clusters read have tests of their own: tests/vlrl/tools/test_plan.py, tests/vlrl/test_placement_ray.py
SHIPPED = sorted(path for path in (ROOT / "configs").rglob("*.yaml") if path.parent.name not in ("stages", "cluster"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_the_configs_we_ship_load(path):
    """The first command a user types would fail."""
    keys = yaml.safe_load(path.read_text())
    if path.parent.name == "deploy":  # for `vlrl deploy`
        from robot.deploy.config import load

        assert load(str(path)).safety
    elif path.parent.name == "accelerate":  # for `accelerate launch`
        from accelerate.commands.config.config_args import load_config_from_file

        assert load_config_from_file(str(path)).num_processes > 1
    elif path.parent.name == "memory":  # to be laid over a config
        assert load_config(ROOT / "configs" / "gui_grounding.yaml", [str(path)]).policy.max_num_seqs
    elif "recipes" in keys:  # for `vlrl compare`
        from vlrl.evaluation.compare import Comparison

        assert load_as(Comparison, path).recipes
    elif "discriminate" in keys or path.stem.startswith("pretrain"):  # for `vlrl pretrain`
        from vlrl.offpolicy.config import pretrain_config_load

        assert pretrain_config_load(str(path)).updates
    elif path.stem.startswith("learn"):  # for `vlrl learn`
        from vlrl.imitation.configs import LearnConfig

        assert load_as(LearnConfig, path).episodes
    elif path.stem.startswith("reward"):  # for `vlrl reward-model`
        from vlrl.imitation.reward_classifier import RewardConfig

        assert load_as(RewardConfig, path).out
    elif path.stem.startswith(("offpolicy", "offline")):  # for `vlrl offpolicy`
        from vlrl.offpolicy.config import load as off_policy

        assert off_policy(path).out
    elif path.stem.startswith("preferences"):  # for `vlrl preferences`
        from vlrl.contrib.preferences.labelling import PreferencesConfig

        assert load_as(PreferencesConfig, path).out
    elif "lessons" in keys:  # for `vlrl warmstart`
        from vlrl.imitation.configs import WarmstartConfig

        assert load_as(WarmstartConfig, path).lessons
    elif "noise" in keys or "kind" in keys.get("policy", {}):  # for `vlrl clone`
        from vlrl.imitation.configs import CloneConfig

        assert load_as(CloneConfig, path).episodes
    else:
        assert load_config(path).losses


SECTIONS = {
    "vlrl train": documented.Config, "vlrl compare": documented.Comparison, "vlrl stages": documented.stages.Stages,
    "vlrl warmstart": documented.WarmstartConfig, "vlrl clone": documented.CloneConfig,
    "vlrl offpolicy": documented.offpolicy.OffPolicyConfig, "vlrl preferences": documented.PreferencesConfig,
    "vlrl pretrain": documented.PretrainConfig, "vlrl learn": documented.LearnConfig,
    "vlrl reward-model": documented.RewardConfig, "vlrl deploy": documented.deploys.Deploy,
    "vlrl trial": documented.trials.Trial,
}  # fmt: skip


def test_each_command_reads_the_keys_of_its_section():
    """A key that is new would make files with it unknown to every command."""
    ours = {command: set(keys.split()) for command, keys in READERS.items() if command.startswith("vlrl")}
    assert ours == {command: set(section.model_fields) for command, section in SECTIONS.items()}


@pytest.mark.parametrize("path", [*SHIPPED, *(ROOT / "configs" / "stages").glob("*.yaml")], ids=lambda p: p.stem)
def test_a_file_for_another_command_names_that_command(path):
    """Who trains with the file of `vlrl clone` would read a wall of unknown keys, and not what to type."""
    keys = configs._read(path).keys()  # with those of its bases
    (reader,) = [command for command, names in READERS.items() if keys <= set(names.split())]
    for command, section in SECTIONS.items():
        assert find_readers(keys, section.model_fields) == ([] if command == reader else [reader])


@pytest.mark.parametrize(
    ("section", "name", "command"),
    [
        ("vlrl train", "models/embedded_smolvla", "vlrl clone"), ("vlrl train", "models/embedded", "vlrl warmstart"),
        ("vlrl train", "compare/turns", "vlrl compare"), ("vlrl compare", "stages/lmm_r1", "vlrl stages"),
        ("vlrl clone", "gui_grounding", "vlrl train"), ("vlrl deploy", "learn_so101", "vlrl learn"),
        ("vlrl train", "deploy/so101", "vlrl deploy"), ("vlrl train", "offpolicy_push", "vlrl offpolicy"),
        ("vlrl offpolicy", "preferences_push", "vlrl preferences"), ("vlrl learn", "reward_so101", "vlrl reward-model"),
    ],
)  # fmt: skip
def test_the_command_to_type_is_the_whole_answer(section, name, command):
    """The right command would stand behind twelve keys that are not wrong."""
    with pytest.raises(UserError) as caught:
        load_as(SECTIONS[section], f"configs/{name}.yaml")
    assert str(caught.value) == (
        f"configs/{name}.yaml: another command reads this file: `{command} configs/{name}.yaml`"
    )


@pytest.mark.parametrize("change", ["trian.steps=3", "steps=3", "noise=0.1"])
def test_a_mistake_in_a_change_is_not_taken_for_another_command(load, change):
    """Who mistypes a key would be sent to a command that does something else."""
    with pytest.raises(UserError, match=f"{change.partition('.')[0].partition('=')[0]}: unknown key"):
        load(PLAIN, change)


def fresh(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command line in a new interpreter; the last line of stdout names the heavy libraries that it loaded."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from vlrl.cli import main; code = main({list(arguments)!r}); "
        "print([m for m in ('torch', 'transformers') if m in sys.modules]); sys.exit(code)"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)


@pytest.mark.parametrize("command", [["show"], ["train"], ["eval"]])
@pytest.mark.parametrize("change", ["train.step=5", "losses=[ppo_clp]", "task.objects=many"])
def test_the_command_answers_a_mistake_in_one_line_without_torch(tmp_path, command: Sequence[str], change: str):
    """The user would wait seconds for libraries to load, only to read a traceback."""
    (tmp_path / "c.yaml").write_text(PLAIN)
    done = fresh(*command, "c.yaml", change, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "[]\n")
    assert done.stderr.startswith("vlrl: ") and len(done.stderr.splitlines()) == 1


def test_show_prints_the_whole_config_without_torch(tmp_path):
    """Users could not see what a file, its bases and their overrides amount to."""
    (tmp_path / "c.yaml").write_text(PLAIN)
    done = fresh("show", "c.yaml", "train.lr=2e-5", cwd=tmp_path)
    text, _, loaded = done.stdout.removesuffix("\n").rpartition("\n")
    assert (done.returncode, done.stderr, loaded) == (0, "", "[]")
    assert yaml.safe_load(text)["train"]["lr"] == 2e-5


@dataclass(frozen=True)
class Inner:
    depth: int = 1


@dataclass(frozen=True)
class Outer:
    low: float = 0.0
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    by: dict[str, Inner] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"lo": 1}, r"advantages\.0\.range\.lo: unknown key; did you mean 'low'\?"),
        ({"low": "x"}, r"advantages\.0\.range\.low: should be a valid number, .* \(got 'x'\)"),
        ({"inner": {"dept": 2}}, r"range\.inner\.dept: unknown key; did you mean 'depth'\? \(one of: depth\)"),
        ({"inner": {"depth": 0.5}}, r"range\.inner\.depth: should be a valid integer"),
        ({"many": [{}, {"dept": 2}]}, r"range\.many\.1\.dept: unknown key; did you mean 'depth'\?"),
        ({"by": {"left": {"dept": 2}}}, r"range\.by\.left\.dept: unknown key; did you mean 'depth'\?"),
        (3, r"advantages\.0\.range: should be a dictionary or an instance of Outer \(got 3\)"),
    ],
)
def test_a_dataclass_of_a_users_own_is_checked_to_its_last_key(value, said):
    """A misspelt key two levels down was answered with the keys of the level above."""
    with pytest.raises(UserError, match=said):
        check_options({"range": value}, {"range": (Outer, Outer())}, "advantages.0")
