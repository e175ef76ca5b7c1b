"""From the `policy:` section to a policy."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from vlrl.config import PolicySection
from vlrl.policies.loading import load
from vlrl.types import UserError

# peft uses the former name of activation checkpointing
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")


def section(folder, **options) -> PolicySection:
    return PolicySection(model=str(folder), **options)


def refused(options: PolicySection) -> str:
    with pytest.raises(UserError) as caught:
        load(options, device="cpu")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_loads_as_it_was_saved(folder, make, act):
    """Otherwise training starts from other weights than the user's."""
    policy = load(section(folder), device="cpu")
    decisions = act(policy)
    torch.testing.assert_close(policy.evaluate(decisions).logprobs, make().evaluate(decisions).logprobs)


def test_a_missing_folder_is_named(tmp_path):
    """Otherwise a typing mistake becomes a download of something else or a traceback."""
    assert str(tmp_path / "nothing") in refused(section(tmp_path / "nothing"))


def test_a_folder_without_a_config_is_named(tmp_path):
    """Otherwise a wrong folder fails deep inside transformers."""
    assert "config.json" in refused(section(tmp_path))


@pytest.mark.parametrize("text", ["not json", "[1]"])
def test_a_broken_config_is_named(tmp_path, text):
    """Otherwise a damaged file fails with a parser's words alone."""
    (tmp_path / "config.json").write_text(text)
    assert "config.json" in refused(section(tmp_path))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "sailboat"}, "does not know it"),
        ({"model_type": "llama"}, "no vision-language model"),
        ({"model_type": "sailboat", "auto_map": {"AutoConfig": "boat.Boat"}}, "policy.trust_remote_code=true"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_named_before_weights_are_read(tmp_path, config, reason):
    """Otherwise the user waits for gigabytes to learn that the model cannot be used."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    message = refused(section(tmp_path))
    assert repr(config["model_type"]) in message and reason in message


def test_code_from_the_hub_is_not_trusted():
    """Otherwise one line of a configuration runs what a stranger uploads tomorrow."""
    assert "read its code first" in refused(PolicySection(model="someone/model", trust_remote_code=True))


def test_weights_that_do_not_fit_are_refused(folder, tmp_path):
    """Otherwise missing layers train on from noise (transformers only warns)."""
    shutil.copytree(folder, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["num_hidden_layers"] = 3
    if "layer_types" in config["text_config"]:
        config["text_config"]["layer_types"] = config["text_config"]["layer_types"][:1] * 3
    file.write_text(json.dumps(config))
    assert "do not fit" in refused(section(tmp_path / "model"))


def test_missing_weights_are_named(folder, tmp_path):
    """Otherwise an unfinished download is a traceback."""
    shutil.copytree(folder, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    assert "cannot load the model" in refused(section(tmp_path / "model"))


def test_a_hub_name_that_cannot_be_had_says_what_to_look_at():
    """A lost network reads like a typing mistake in the hub's own words, after a minute of retries."""
    message = refused(section("nobody/nothing"))
    assert message.startswith("nobody/nothing: ") and "no copy in the cache: check the network" in message


def test_truncated_weights_are_named(folder, tmp_path):
    """Otherwise an interrupted copy is a traceback."""
    shutil.copytree(folder, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    assert "cannot load the model" in refused(section(tmp_path / "model"))


def test_pixel_limits_reach_the_images_of_this_policy_alone(folder, noise):
    """Otherwise a limit is ignored, or leaks into every other processor of the process."""
    small = load(section(folder, max_pixels=32 * 32), device="cpu")
    usual = load(section(folder), device="cpu")
    assert small.codec.see(noise(160, 160)).size == (32, 32)
    assert usual.codec.see(noise(160, 160)).size == (160, 160)


def test_limits_that_exclude_every_size_are_refused(folder):
    """Otherwise the first image ends the run with an assertion of another library."""
    assert "policy.max_pixels: 100" in refused(section(folder, max_pixels=100))


PARTS = {"vision": "visual.blocks", "projector": "visual.merger", "language": "language_model"}


@pytest.mark.parametrize("frozen", [["vision"], ["language"], ["vision", "projector"], []])
def test_frozen_parts_do_not_train_and_the_others_do(folder, frozen):
    """Otherwise a frozen tower drifts, or nothing is trained at all."""
    policy = load(section(folder, freeze=frozen), device="cpu")
    for part, key in PARTS.items():
        trained = {p.requires_grad for n, p in policy.model.named_parameters() if key in n}
        assert trained == {part not in frozen}


def test_an_adapter_trains_only_itself(folder):
    """Otherwise LoRA changes the base and the reference with it."""
    policy = load(section(folder, lora={"rank": 2, "alpha": 4, "targets": "all-linear"}), device="cpu")
    trained = [n for n, p in policy.model.named_parameters() if p.requires_grad]
    assert trained and all("lora_" in name for name in trained)


def test_a_run_folder_stands_for_its_newest_checkpoint(folder, make, act, tmp_path, capsys):
    """Otherwise `--model RUN` evaluates an old or no checkpoint, or one that is half made without a word."""
    shutil.copytree(folder, tmp_path / "checkpoints" / "step_000001")
    newest = make()
    with torch.no_grad():
        newest.model.lm_head.weight.mul_(2.0)
    newest.save(tmp_path / "checkpoints" / "step_000010")
    (tmp_path / "config.yaml").touch()
    for _ in range(2):
        policy = load(section(tmp_path), device="cpu")
    assert torch.equal(policy.model.lm_head.weight, newest.model.lm_head.weight)
    told = f"vlrl: {tmp_path} has not finished: its newest checkpoint, step_000010, is the policy\n"
    assert capsys.readouterr().err.count(told) == 1
    shutil.copytree(tmp_path / "checkpoints", tmp_path / "ended" / "checkpoints")
    for name in ("config.yaml", "summary.json"):
        (tmp_path / "ended" / name).write_text("{}")
    load(section(tmp_path / "ended"), device="cpu")
    assert "has not finished" not in capsys.readouterr().err
