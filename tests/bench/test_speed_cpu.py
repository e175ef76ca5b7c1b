"""The benchmarks of speed: that the cost model is right, and that each script measures what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench" / "speed"))  # scripts, not a package

import decode  # noqa: E402
import sizes  # noqa: E402
import sizes_figure  # noqa: E402
import speed_rows  # noqa: E402
import step  # noqa: E402
import vs_trl  # noqa: E402

from vlrl.performance import profiling as vlrl_flops  # noqa: E402
from vlrl.performance.profiling import Group, Update, from_config  # noqa: E402

FAMILY = "qwen2_5_vl"


@pytest.mark.parametrize("arm", sizes.MODES)
def test_the_cost_model_is_what_torch_counts(arm):
    """Otherwise a step could waste half of its work and still be printed as close to the limit."""
    visual, group, tokens = 64, 4, 12
    policy = step.policy_of(FAMILY, tokens, step.ARMS[arm])
    policy._verified = {"scoring", "sampling"}  # its first look at itself would be counted too
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-6)
    episodes = step.episodes_of(visual, FAMILY, 1, group, 0)
    with FlopCounterMode(display=False) as counter:
        step.step(policy, optimizer, episodes)
    prompt = len(episodes[0].turns[0].decision.inputs.prompt.ids)
    geometry, asked = from_config(policy.model.config.to_dict()), Group(prompt, visual, tokens, group)
    expected = vlrl_flops.step(geometry, asked, Update(sizes.MODES[arm])).all
    counted = counter.get_flop_counts()["Global"]
    linear = sum(flops for name, flops in counted.items() if str(name) in vs_trl.LINEAR)
    assert linear == pytest.approx(expected.linear, rel=0.03)
    assert 0 < expected.attention < expected.linear


def test_finished_rows_are_kept_until_the_settings_change(tmp_path):
    """A benchmark of an hour that dies is gone on with; figures of other settings must never stand in one table."""
    file, made = tmp_path / "rows.json", []

    def measure(name: str) -> dict:
        made.append(name)
        if name == "c" and made.count("c") == 1:
            raise RuntimeError("died")
        return {"n": len(made)}

    about = {"steps": 5, "date": "2026-11-22"}
    with pytest.raises(RuntimeError):
        speed_rows.measured("abc", measure, file, True, about)
    rows = speed_rows.measured("cb", measure, file, True, about | {"date": "2026-11-23"})
    assert made == list("abcc") and rows == {"c": {"n": 4}, "b": {"n": 2}}
    assert set(json.loads(file.read_text())["rows"]) == set("abc")
    speed_rows.measured("a", measure, file, True, about | {"steps": 6})
    speed_rows.measured("a", measure, file, False, about | {"steps": 6})
    assert made == list("abccaa")


def test_both_rollouts_write_what_they_are_asked_for():
    """Tokens that a stopped completion never wrote would be praised as speed."""
    options = decode.argparse.Namespace(prompts=2, repeats=1)
    even = decode.measure("tiny/16/3/5/0", options)
    assert [even[arm]["length"] for arm in ("vlrl", "generate")] == [5, 5]
    uneven = decode.measure("tiny/16/8/12/0.9", options)
    assert all(1 <= uneven[arm]["length"] < 10 and uneven[arm]["rate"] > 0 for arm in ("vlrl", "generate"))
    assert decode.table({"tiny/16/3/5/0": even}).count("\n") == 2


def test_the_share_that_stops_early_is_the_share_asked_for():
    """Rows of unequal lengths would otherwise be called what they are not."""
    _, processor = step.model_of(FAMILY)
    ordinary = len(processor.tokenizer) - len(set(processor.tokenizer.all_special_ids))
    for tokens, share in ((32, 0.5), (64, 0.9), (16, 0.25)):
        stops = decode.stops_of(processor, tokens, share)
        met = 1 - (1 - len(stops) / ordinary) ** tokens
        assert met == pytest.approx(share, abs=0.08)
    assert decode.stops_of(processor, 32, 0.0) == ()


def test_the_scales_figure_shows_every_panel(tmp_path):
    """A release of matplotlib, or of ours, that breaks the script would leave an old figure unnoticed."""
    row = sizes.measure("tiny/16/2/3", 1)
    assert row["cpu"]["naive"] > 0 and row["flops"]["naive"] > row["flops"]["shared"]
    panels = {panel: [row] * len(sizes) for panel, sizes in sizes.PANELS.items()}
    sizes_figure.draw(panels, sizes.PANELS, sizes.rate(), tmp_path / "scale.png")
    assert (tmp_path / "scale.png").stat().st_size > 10_000
    assert all(name.count("/") == 3 for panel in sizes.PANELS for name in sizes.names_of(panel))
