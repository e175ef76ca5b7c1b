"""`vlrl plan`: what it says of a run, and what it reads to say it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vlrl import registry
from vlrl.cli import main
from vlrl.performance import profiling
from vlrl.policies import tiny
from vlrl.policies.loading import load
from vlrl.policies.processor import codec_for
from vlrl.recipe_checks import load_config
from vlrl.tools.memory_planner import (
    PlanOptions,
    knobs,
    model_of,
    plan_plan,
    singles,
    text_counter,
    together,
    tokens_of,
)
from vlrl.types import Observation, UserError, Video

_spec = importlib.util.spec_from_file_location("tiny_steps", Path(__file__).with_name("tiny_steps.py"))
tiny_steps = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny_steps)
TEXT, tokenizer = tiny_steps.TEXT, tiny_steps.tokenizer

ROOT = Path(tiny.__file__).parents[1]
GROUNDING = ROOT / "configs" / "gui_grounding.yaml"
QWEN = "policy.model=Qwen/Qwen2.5-VL-3B-Instruct"
TOLD = {"visual": 1400, "text": 100, "tokens": 50}
FLAGS = [word for name, number in TOLD.items() for word in (f"--{name}", str(number))]


def told(capsys, *arguments: str) -> dict:
    """The plan of a configuration as data."""
    assert main(["plan", str(GROUNDING), *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments: str) -> str:
    assert main(["plan", str(GROUNDING), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def planned(*changes: str, gpu: str = "h100", **asked: object):
    return plan_plan(
        load_config(GROUNDING, [QWEN, *changes]), PlanOptions(profiling.find_device(gpu), **{**TOLD, **asked})
    )


def test_the_table_says_what_fits_and_how_long_it_takes(capsys):
    """Nobody would find out before the weights are loaded."""
    assert main(["plan", str(GROUNDING), QWEN, "train.prompts_per_step=8", "--gpu", "h200", *FLAGS]) == 0
    shown = capsys.readouterr().out
    assert "3,754.6 M parameters" in shown
    assert "1500 tokens, 1400 of them visual (as told)" in shown
    assert "its prefill kept for the update" in shown
    assert "does not fit into 90% of 141 GB" in shown
    alone, enough = shown.split("WHAT WOULD HELP")[1].split("ENOUGH TOGETHER") if "ENOUGH" in shown else (shown, "")
    assert "policy.gradient_checkpointing=true" in alone
    assert "s a step  fits" in (enough or alone)


def test_a_run_that_fits_is_told_no_knobs(capsys):
    """Advice that is not needed hides what is."""
    assert main(["plan", str(GROUNDING), "--gpu", "cpu", "--memory", "4", "--tflops", "0.05"]) == 0
    shown = capsys.readouterr().out
    assert "it fits into 90% of 4 GB" in shown
    assert "SECONDS" in shown
    assert "HELP" not in shown


def test_the_embedded_models_prompts_are_counted_from_the_task(capsys):
    """The numbers would be those of another task."""
    found = told(capsys)
    config = load_config(GROUNDING)
    policy, samples = load(config.policy, device="cpu"), registry.make_task(config).samples("train")
    lengths = [len(policy.prompt(samples[i].prompt).ids) for i in range(8)]
    assert sum(found["prompt"].values()) == pytest.approx(sum(lengths) / 8)
    assert found["seconds"] is None


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_sizes_of_prompts_are_the_codecs(family, tmp_path):
    """Images are resized and videos get the marks of their times: a plan that does not know this is off by far."""
    model, processor = tiny.build(tokenizer(), family=family, patch={"qwen2_5_vl": 14, "qwen3_vl": 16}[family])
    processor.save_pretrained(tmp_path)
    model.config.save_pretrained(tmp_path)
    found, codec = model_of(str(tmp_path)), codec_for(processor, model)
    noise = np.random.default_rng(0)
    images = [Image.fromarray(noise.integers(0, 256, (*side, 3), dtype=np.uint8)) for side in ((90, 210), (448, 64))]
    frames = noise.integers(0, 256, (5, 100, 130, 3), dtype=np.uint8)
    clip = Video(frames, (0.0, 0.5, 1.0, 1.5, 2.0), 2.0, 2.5)
    count, _ = text_counter(found)
    for content in ((TEXT,), (images[0], TEXT), (*images, TEXT), (clip, TEXT)):
        prompt = codec.encode(Observation(content))
        size = tokens_of(Observation(content), found, found.pixels, count)
        assert size.visual == int(prompt.types.sum())
        # times take more letters the later they are
        assert size.tokens == pytest.approx(len(prompt.ids), abs=3 if clip in content else 0)


def test_a_config_json_is_enough(tmp_path, capsys):
    """Planning would need the download that it is there to spare."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text((tiny.FOLDER / "config.json").read_text())
    bundled = told(capsys, *FLAGS)
    assert told(capsys, f"policy.model={folder}", *FLAGS) == bundled | {"model": str(folder)}


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ([], "kept"),
        (["policy.gradient_checkpointing=true"], "kept"),
        (["train.micro_batch_size=4"], "shared"),
        (["train.update_epochs=2"], "shared"),
        (["train.shared_prefix=false"], "naive"),
    ],
)
def test_the_plan_forwards_prompts_as_the_trainer_does(changes, mode, capsys):
    """A plan of another kind of step is off by up to the group's size."""
    assert told(capsys, *changes, *FLAGS)["mode"] == mode


def test_a_kl_term_asks_for_a_reference():
    """Its weights and its forward pass would come as a surprise."""
    plain, kl = planned(), planned("losses=[{name: ppo_clip}, {name: kl, coef: 0.01}]")
    assert (plain.memory["reference"], plain.times["reference"]) == (0, 0)
    assert kl.memory["reference"] == kl.memory["weights"]
    assert kl.times["reference"] > 0
    adapted = planned("losses=[{name: ppo_clip}, {name: kl, coef: 0.01}]", "policy.lora.rank=8")
    assert adapted.memory["reference"] == 0  # the adapter is switched off instead
    assert adapted.times["reference"] > 0


def test_an_evaluation_counts_and_fewer_at_once_need_less():
    """A run that fits would end in its first evaluation, which answers more prompts at once than a step has."""
    lora = ("policy.lora.rank=8", "policy.gradient_checkpointing=true", "train.micro_batch_size=1")
    whole, few = planned(*lora), planned(*lora, "policy.max_num_seqs=8")
    assert whole.cost.phase == "evaluation" and few.gigabytes < 0.6 * whole.gigabytes
    assert planned(*lora, "eval.batch_size=8").gigabytes < whole.gigabytes
    assert next(iter(singles(whole))).change == "policy.max_num_seqs=32"


def test_narrow_weights_count_as_they_are_held():
    """Bytes a weight: 4 + 4 + 8 in float32, 2 + 2 + 8 in bfloat16, 4 more with copies; half a byte in 4 bits."""
    wide, narrow, copies = (
        planned(*changes) for changes in (
            (), ("policy.weights_dtype=bfloat16",), ("policy.weights_dtype=bfloat16", "train.master_weights=true")
        )
    )  # fmt: skip
    count = wide.cost.trained
    for plan, weights, states in ((wide, 4, 8), (narrow, 2, 8), (copies, 2, 12)):
        assert (plan.memory["weights"], plan.memory["optimizer"]) == (weights * count, states * count)
    assert narrow.memory["weights for products"] == 0 < wide.memory["weights for products"]
    adapted, packed = (planned("policy.lora.rank=8", f"policy.load_in_4bit={on}") for on in ("false", "true"))
    assert adapted.memory["weights"] / 4 < packed.memory["weights"] < adapted.memory["weights"] / 2
    assert any(turn.change == "policy.load_in_4bit=true" for turn in singles(adapted))


def test_decoding_is_bound_by_memory_or_by_starting_operations():
    """At its share of the peak a token would take a hundredth of its time."""
    replayed = planned("policy.cuda_graphs=true", tokens=500)
    weights = 2 * 3_085_000_000  # bytes of the language model's matrices in bfloat16
    assert replayed.times["decode"] > 500 * weights / 3.35e12
    assert planned("policy.cuda_graphs=true", tokens=500, gpu="h200").times["decode"] < replayed.times["decode"]
    started, slots = planned(tokens=500), planned("policy.max_num_seqs=64", tokens=500)
    assert (
        started.times["decode"] == pytest.approx(500 * (36 * 60 + 60) * 6e-6)
        and started.times["decode"] > replayed.times["decode"]
    )
    assert slots.times["decode"] == pytest.approx(2 * started.times["decode"])


def test_every_knob_is_one_that_the_configuration_takes():
    """Copied into the command line it would be refused, or do something else."""
    whole = planned("policy.freeze=[projector]")
    for knob in knobs(whole.config, 1, whole.model, 1400):
        if not knob.change.startswith("--"):
            again = load_config(GROUNDING, [QWEN, "policy.freeze=[projector]", knob.change])
            assert again.model_dump() == knob.config.model_dump()


LARGE = ("policy.model=Qwen/Qwen2.5-VL-72B-Instruct", "policy.gradient_checkpointing=true", "policy.freeze=[vision]",
         "train.prompts_per_step=64")  # fmt: skip
ELSEWHERE = "policy.engine={name: server, urls: [http://h:1], api: vllm, folder: /w}"


@pytest.mark.parametrize(
    ("model", "gpus", "slices", "most"),
    [
        ("7B", 8, 1, {"true": 71_000, "offload": 179_000}), ("7B", 8, 4, {"true": 219_000, "offload": 396_000}),
        ("72B", 64, 1, {"true": 8_700, "offload": 54_000}), ("72B", 64, 8, {"true": 74_000, "offload": 199_000}),
    ],
)  # fmt: skip
def test_long_conversations_fit_in_slices_and_where_inputs_of_layers_wait_on_the_host(model, gpus, slices, most):
    """docs/scale_out.md would promise prompts that do not fit."""

    def fits(prompt: int, checkpointing: str) -> bool:
        changes = [f"policy.model=Qwen/Qwen2.5-VL-{model}-Instruct", f"train.prompts_per_step={gpus}",
                   f"policy.gradient_checkpointing={checkpointing}", "policy.max_prompt_tokens=1000000"]  # fmt: skip
        asked = {"gpus": gpus, "slices": slices, "tokens": 512, "text": prompt - TOLD["visual"]}
        return planned(*LARGE, ELSEWHERE, *changes, **asked).fits

    for checkpointing, prompt in most.items():
        assert fits(prompt, checkpointing) and not fits(round(1.05 * prompt), checkpointing)


@pytest.mark.parametrize(
    ("changes", "asked", "message"),
    [
        ((), {"gpus": 8, "slices": 3}, "--slices 3: must divide --gpus (8) and the attention heads (16)"),
        ((), {"gpus": 24, "slices": 3}, "the attention heads (16)"),
        (
            ("policy.model=embedded_push", "task=manipulation"),
            {"gpus": 2, "slices": 2},
            "--slices: embedded_push has no",
        ),
    ],
)
def test_slices_that_cannot_be_are_refused(changes, asked, message):
    """Else a cluster is rented for a run that is refused on it."""
    with pytest.raises(UserError) as found:
        planned(*changes, **asked)
    assert message in str(found.value)


def test_72_billion_parameters_train_on_64_gpus_where_an_engine_writes():
    """Else a cluster is rented for a model that does not fit, or is not for one that does."""
    itself, served = (planned(*LARGE, *more, gpus=64, tokens=512) for more in ((), (ELSEWHERE,)))
    assert not itself.fits and itself.memory["gathered weights"] > 140e9
    assert served.fits and served.cost.phase == "update" and "gathered weights" not in served.memory
    trained, frozen = served.cost.trained, served.cost.parameters - served.cost.trained
    tower = profiling.parameters(served.model.geometry)
    whole = 2 * tower.vision + 4 * tower.projector  # on every GPU; the projector trains
    assert served.memory["weights"] == pytest.approx(whole + 4 * (trained - tower.projector) / 64)
    assert frozen == tower.vision
    asked = [*LARGE, ELSEWHERE, "losses=[ppo_clip, {name: kl, coef: 0.1}]"]
    reference = planned(*asked, gpus=64, tokens=512).memory["reference"]
    assert reference == pytest.approx(served.memory["weights"])


def test_every_number_of_many_gpus_has_a_source(capsys):
    """Else nobody can check a plan before a cluster is rented."""
    flags = ["--gpu", "h100", "--gpus", "64", *FLAGS]
    for more in ((), (ELSEWHERE,)):
        assert main(["plan", str(GROUNDING), *LARGE, *more, *flags]) == 0
        shown = capsys.readouterr().out
        rows = shown.split("MEMORY")[1].split("sources")[0].splitlines()[1:-1]
        for name in (row.strip().split("  ")[0] for row in rows):
            assert name == "together" or f"    {name}: " in shown, name


def test_every_knob_gives_memory():
    """A recommendation that costs time for nothing."""
    whole = planned()
    assert {turn.change.split("=")[0] for turn in singles(whole)} >= {
        "policy.gradient_checkpointing", "train.micro_batch_size", "policy.freeze", "policy.lora.rank",
        "policy.max_pixels",
        "train.prompts_per_step", "--gpus 2",
    }  # fmt: skip
    for turn in singles(whole):
        assert turn.plan.gigabytes < whole.gigabytes, turn.change


def test_knobs_together_are_enough_and_none_is_for_nothing():
    """A user would give up something that need not be given up."""
    whole = planned(gpu="4090")
    found = together(whole)
    assert found.plan.fits
    for left in found.change.split(" "):
        rest = [word for word in found.change.split(" ") if word != left]
        if not left.startswith("--") and "--gpus" not in rest:
            smaller = load_config(GROUNDING, [QWEN, *rest])
            visual = TOLD["visual"] // 2 if any("max_pixels" in word for word in rest) else TOLD["visual"]
            assert not plan_plan(smaller, PlanOptions(whole.asked.device, **{**TOLD, "visual": visual})).fits, left


def test_a_card_by_its_memory_has_no_seconds(capsys):
    """Seconds of a card whose peak nobody told would be made up."""
    found = told(capsys, QWEN, "--gpu", "24GB", *FLAGS)
    assert found["seconds"] is None
    assert found["fits"] is False
    assert told(capsys, QWEN, "--gpu", "24GB", "--tflops", "100", *FLAGS)["seconds"]["backward"] > 0


def test_float32_has_no_seconds_by_a_bfloat16_peak():
    """A step would seem ten times as fast as it is."""
    assert planned("policy.dtype=float32").times is None
    assert planned().times is not None


def test_mistakes_are_told_in_a_line(capsys):
    """A traceback, or a plan of something else."""
    assert "did you mean 'h100'" in refused(capsys, "--gpu", "h10")
    assert "give --memory" in refused(capsys, "--gpu", "cpu")
    assert "Qwen2.5-VL-7B" in refused(capsys, "policy.model=Qwen/Qwen9-VL")
    assert "'vlrl_control'" in refused(capsys, "policy.model=embedded_push", *FLAGS)
    assert "nothing to train" in refused(capsys, "policy.freeze=[vision, projector, language]", *FLAGS)
    assert "--visual and --text" in refused(capsys, "task={name: classification}", "data.train=nowhere.jsonl", QWEN)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("[1]", "no JSON object"), ("{", "cannot read"), ('{"model_type": "qwen3_vl"}', "lacks a size")],
)
def test_a_damaged_config_json_is_named(text, problem, tmp_path):
    """A KeyError says nothing of the file."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=problem):
        model_of(str(tmp_path))


@pytest.mark.parametrize("arguments", [["--gpus", "0"], ["--mfu", "nan"], ["--visual", "-1"], ["--tflops", "many"]])
def test_numbers_are_checked(arguments):
    """A division by nothing far away from its cause."""
    with pytest.raises(SystemExit):
        main(["plan", str(GROUNDING), *arguments])
