"""The benchmark for a GPU, on a CPU: that all of it runs, as nobody can mend it on a machine borrowed for minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench" / "speed"))  # scripts, not a package

import gpu  # noqa: E402
import gpu_arms  # noqa: E402
import gpu_check  # noqa: E402
import gpu_draws  # noqa: E402
import gpu_jobs  # noqa: E402
import gpu_model  # noqa: E402
import gpu_table  # noqa: E402
import gpu_trl  # noqa: E402
import vs_trl_arms  # noqa: E402

from vlrl.performance.profiling import from_config, parameters  # noqa: E402
from vlrl.policies import decode_step  # noqa: E402

# peft asks transformers for what newer releases call otherwise
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")]
CPU = torch.device("cpu")


def run(monkeypatch, *options: str) -> None:
    monkeypatch.setattr(gpu, "BEGAN", time.monotonic())
    monkeypatch.setattr(decode_step, "RECORDERS", dict(decode_step.RECORDERS))  # the script adds one for CPUs
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--tiny", "--device", "cpu", *options])
    gpu.main()


def test_the_whole_script_runs_on_a_toy(tmp_path, monkeypatch, capsys):
    """What breaks here would break on the GPU, where minutes are counted; a CPU's figures must not pass for a GPU's."""
    file, figure = tmp_path / "gpu.json", tmp_path / "gpu.png"
    run(monkeypatch, "--json", str(file), "--figure", str(figure))
    told, printed = json.loads(file.read_text()), capsys.readouterr().out
    assert told["checks"].keys() == gpu_check.CHECKS.keys() and printed.count("PASS") == len(gpu_check.CHECKS)
    assert list(told["rows"]) == gpu_jobs.jobs_of(gpu_jobs.TINY, False)
    for name, row in told["rows"].items():
        assert 0 < sum(row["parts"].values()) < row["step"], name
        assert all(row["parts"][part] > 0 for part in gpu_arms.SHOWN), name
        assert row["rate"] > 0 and 0 < row["decode_flops"] < row["flops"] and row["mfu"] is None, name
    assert "device CPU, no GPU" in printed and figure.stat().st_size > 10_000
    for row in (f"lora/{{}}/{gpu_jobs.TINY[0].name}", f"full/{{}}/{gpu_jobs.TINY[0].name}"):
        shared, naive = (told["rows"][row.format(arm)] for arm in ("shared", "naive"))
        assert shared["flops"] == naive["flops"] and shared["tokens"] == naive["tokens"]
        assert shared["forwarded"]["tokens"] < naive["forwarded"]["tokens"]
        assert shared["forwarded"]["patches"] < naive["forwarded"]["patches"]


def test_the_script_needs_few_packages():
    """A borrowed machine has torch and transformers, and minutes in which nothing is to be installed."""
    missing = ("pydantic", "peft", "matplotlib", "datasets")
    code = (
        f"import sys, runpy; sys.modules.update(dict.fromkeys({missing!r})); "
        f"sys.path[0] = {str(ROOT / 'bench' / 'speed')!r}; "
        f"sys.argv[1:] = {['--tiny', '--device', 'cpu', '--steps', '1']!r} + "
        f"['--no-check', '--only', 'lora/shared', 'full/shared/{gpu_jobs.TINY[0].name}']; "
        "runpy.run_path(sys.path[0] + '/gpu.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"| full | shared | {gpu_jobs.TINY[0].visual} |" in done.stdout
    assert done.stdout.count("- lora/shared/") == 2 and "peft" in done.stdout  # named, not died


def test_a_row_of_graphs_is_one(monkeypatch, tmp_path):
    """The loop's seconds would stand under the name of graphs."""
    monkeypatch.setattr(decode_step, "RECORDERS", {})
    processor, row = gpu_model.processor_of(), gpu_jobs.TINY[-1]
    model = gpu_model.model_of(gpu_model.TINY, "full", processor, CPU)
    policy = gpu_model.policy_of(model, processor, row.tokens, True, True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with pytest.raises(gpu_arms.SkippedError, match="no graphs: there are none on the device cpu"):
        gpu_arms.measure(policy, optimizer, row, gpu_arms.Counted(0, 1, time.monotonic() + 60))
    with pytest.raises(AssertionError, match="no graphs: there are none"):
        gpu_check.in_bfloat16("full", CPU, True)


def test_rows_without_time_are_named(tmp_path, monkeypatch, capsys):
    """A row that is silently missing reads as if it had never been meant to be measured."""
    run(monkeypatch, "--no-check", "--minutes", "0", "--only", "lora/naive", "--json", str(tmp_path / "gpu.json"))
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert list(rows) == [name for name in gpu_jobs.jobs_of(gpu_jobs.TINY, False) if name.startswith("lora/naive")]
    assert all("no time left" in row["skipped"] for row in rows.values())
    assert capsys.readouterr().out.count("- lora/naive/") == len(rows)


def test_an_arm_stops_before_the_time_is_up():
    """Otherwise a slow row takes the machine past its limit, and all others with it."""
    processor, row = gpu_model.processor_of(), gpu_jobs.TINY[0]
    policy = gpu_model.policy_of(gpu_model.model_of(gpu_model.TINY, "lora", processor, CPU), processor, 4, True)
    optimizer = torch.optim.AdamW([p for p in policy.model.parameters() if p.requires_grad])
    with pytest.raises(gpu_arms.SkippedError, match="999 more steps"):
        gpu_arms.measure(policy, optimizer, row, gpu_arms.Counted(0, 1000, time.monotonic() + 1))


def test_a_row_that_dies_leaves_the_others(monkeypatch, tmp_path, capsys):
    """One defect would cost the whole loan of a machine."""
    true = gpu_jobs.measure

    def measure(policy, optimizer, row, counted):
        if row == gpu_jobs.TINY[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if not policy.shared_prefix:
            raise ValueError("broken")
        return true(policy, optimizer, row, counted)

    monkeypatch.setattr(gpu_jobs, "measure", measure)
    with pytest.raises(SystemExit, match="a row died"):
        run(monkeypatch, "--no-check", "--only", "lora", "--json", str(tmp_path / "gpu.json"))
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert [row.get("skipped") for row in rows.values()] == ["out of memory"] * 2 + [None, None, "died: ValueError"]
    assert "ValueError: broken" in capsys.readouterr().err


def test_a_check_that_fails_or_dies_fails(monkeypatch, capsys):
    """A fast path that computes something else on a GPU would be praised for its speed."""

    def dies(device):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(gpu_check, "CHECKS", {"off": (1e-4, lambda d: 1e-3), "nan": (1, lambda d: float("nan")),
                                              "dies": (1, dies), "exact": (0, lambda d: 0.0)})  # fmt: skip
    with pytest.raises(SystemExit, match="a check failed"):
        run(monkeypatch, "--check")
    said = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[:4]]
    assert said == [["FAIL", "off:"], ["FAIL", "nan:"], ["FAIL", "dies:"], ["PASS", "exact:"]]


def test_draws_without_probability_are_found(monkeypatch):
    """On a GPU sums of probabilities are rounded otherwise: a banned token could be drawn once in millions."""
    assert gpu_draws.draws_of_nothing(CPU) == 0
    monkeypatch.setattr(gpu_draws, "draw", lambda probs, uniform: torch.full_like(uniform, 2).long())
    assert gpu_draws.draws_of_nothing(CPU) == 4 * 64


@pytest.mark.parametrize("name", ["Qwen2.5-VL-3B", "Qwen2.5-VL-7B", "tiny"])
def test_the_model_has_the_published_sizes(name):
    """Seconds and MFU of another model would stand under the published one's name."""
    geometry = gpu_model.GEOMETRIES[name]
    config = gpu_model.config_of(geometry, gpu_model.processor_of().tokenizer)
    assert from_config(config.to_dict()) == geometry
    with torch.device("meta"):
        model = Qwen2_5_VLForConditionalGeneration(config)
    assert gpu_model.parameters_of(model)["all"] == parameters(geometry).all


def test_prompts_have_the_sizes_that_rows_say():
    """A row of 1,500 visual tokens that had 1,444 would be told as 1,500."""
    processor = gpu_model.processor_of()
    policy = gpu_model.policy_of(gpu_model.model_of(gpu_model.TINY, "full", processor, CPU), processor, 4, True)
    sizes = set()
    for row in gpu_jobs.ROWS:
        first, *_, last = gpu_model.episodes_of(row, processor, 0)
        prompt = policy.prompt(first.sample.prompt)
        assert int(prompt.types.sum()) == row.visual
        assert first.group == 0 and last.group == row.prompts - 1
        sizes.add(len(prompt.ids) - row.visual - row.text)
    assert len(sizes) == 1  # what the chat format adds


def test_lora_is_frozen_below_and_narrow():
    """Weights in float32 or a tower that trains would be another training than the one that is named."""
    model = gpu_model.model_of(gpu_model.TINY, "lora", gpu_model.processor_of(), CPU)
    kinds = {("lora_" in n and "visual" not in n, p.requires_grad, p.dtype) for n, p in model.named_parameters()}
    assert kinds == {(True, True, torch.float32), (False, False, torch.bfloat16)}


def test_a_missing_package_is_one_line(tmp_path):
    """On a bare machine a traceback of imports says less than the package's name."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    command = [sys.executable, str(ROOT / "bench" / "speed.py"), "gpu"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "No module named 'torch'" in done.stderr


def test_trl_comes_from_wheels_or_a_folder(tmp_path):
    """A machine without a network gets it in either form."""
    with zipfile.ZipFile(tmp_path / "trl-9-py3-none-any.whl", "w") as wheel:
        wheel.writestr("trl/__init__.py", "")
    for given in (tmp_path, tmp_path / "trl-9-py3-none-any.whl"):
        with gpu_trl.importable(given) as folder:
            assert (folder / "trl" / "__init__.py").exists()
    (tmp_path / "installed" / "trl").mkdir(parents=True)
    with gpu_trl.importable(tmp_path / "installed") as folder:
        assert folder == tmp_path / "installed"


def test_a_trl_that_cannot_be_imported_says_so(tmp_path):
    """Otherwise the run waits for it until the time is up."""
    (tmp_path / "trl.py").write_text("raise ImportError('no datasets here')")
    work = {**vars(gpu_jobs.TINY[0]), "model": "tiny", "kind": "lora", "device": "cpu", "warm_up": 1, "steps": 1}
    with pytest.raises(gpu_arms.SkippedError, match=r"died after 0 of 2 steps: .*no datasets here"):
        gpu_trl.measure(work, tmp_path, time.monotonic() + 60)


def test_other_work_is_no_comparison():
    """A ratio between different numbers of tokens says nothing."""
    rows = {"lora/shared/9": {"tokens": 100, "step": 1.0}}
    same, other = {"tokens": 100, "step": 3.0}, {"tokens": 90, "step": 2.0}
    for row in (same, other):
        gpu_jobs.same_work("lora/trl/9", row, rows)
    assert same["step"] == 3.0 and other == {"skipped": "steps of 90 tokens, where ours have 100"}


def test_the_table_tells_ratios_and_shares():
    """The figures that are quoted from it."""
    parts = dict.fromkeys(gpu_arms.SHOWN, 0.1)
    row = {"step": 1.0, "parts": parts, "rate": 500.0, "peak_gb": 40.0, "prompt": 90, "mfu": 0.25, "mfu_rest": 0.4}
    rows = {
        "lora/shared/9/9/8/4/2": row, "lora/trl/9/9/8/4/2": {"step": 9.0, "peak_gb": 80.0},
        "full/shared/9/9/8/4/2": {"skipped": "out of memory"},
    }  # fmt: skip
    lines = gpu_table.table(rows).splitlines()
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert "| 1.00 |  |" in lines[2] and "| 0.40 | 500 | 25.0% | 40.0% | 40.0 |" in lines[2]
    assert "| 9.00 | **9.0x** |" in lines[3] and lines[3].endswith("| 80.0 |")
    assert lines[-1] == "- full/shared/9/9/8/4/2: out of memory"


@pytest.mark.slow
@pytest.mark.skipif(not (vs_trl_arms.trl_folder() / "made").exists(), reason="vs_trl has not installed TRL")
def test_trl_does_the_same_work(monkeypatch, tmp_path):
    """A ratio to a trainer that writes or scores other tokens says nothing."""
    trl = next(vs_trl_arms.trl_folder().glob("lib/python*/site-packages"))
    name, file = gpu_jobs.TINY[0].name, tmp_path / "gpu.json"
    run(monkeypatch, "--no-check", "--only", f"lora/shared/{name}", f"lora/trl/{name}", "--trl", str(trl),
        "--steps", "1", "--json", str(file))  # fmt: skip
    rows = json.loads(file.read_text())["rows"]
    assert rows[f"lora/trl/{name}"]["tokens"] == rows[f"lora/shared/{name}"]["tokens"]
