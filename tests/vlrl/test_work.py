"""Counters and clocks of a run."""

from __future__ import annotations

import pytest
import torch

from vlrl.performance import profiling
from vlrl.performance.profiling import StepProfiler, mfu


class Ticks:
    """A clock that a test moves by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


def test_counts_add_up_and_are_taken_once():
    """A row of metrics would hold the work of earlier steps too."""
    work = StepProfiler()
    work.add(patches=4, tokens=10)
    work.add(patches=3)
    assert work.taken() == {"patches": 7, "tokens": 10}
    assert work.taken() == {}


def test_seconds_of_a_part_within_another_count_once():
    """Parts would sum to more than the step took, and the outer part would be blamed for the inner one."""
    clock = Ticks()
    work = StepProfiler(clock=clock)
    with work.timed("prefill"):
        clock.pass_(1)
        with work.timed("media"):
            clock.pass_(2)
            with work.timed("prefill"):
                clock.pass_(4)
        clock.pass_(8)
    clock.pass_(16)  # of no part
    with work.timed("media"):
        clock.pass_(32)
    assert work.taken() == {"prefill_s": 13, "media_s": 34}


def test_a_part_under_way_gives_what_has_passed():
    """Seconds around a look in the middle of a part would be lost or counted in both rows."""
    clock = Ticks()
    work = StepProfiler(clock=clock)
    with work.timed("decode"):
        clock.pass_(1)
        assert work.taken() == {"decode_s": 1}
        clock.pass_(2)
    assert work.taken() == {"decode_s": 2}


def test_an_error_inside_a_part_closes_it():
    """A skipped update would go on being timed through all that follows."""
    clock = Ticks()
    work = StepProfiler(clock=clock)

    def fails() -> None:
        with work.timed("backward"):
            clock.pass_(1)
            raise FloatingPointError("inf")

    with pytest.raises(FloatingPointError, match="inf"):
        fails()
    clock.pass_(2)
    assert work.taken() == {"backward_s": 1}


def test_unknown_names_are_refused():
    """A typing error would open a column of its own and leave the right one short."""
    work = StepProfiler()
    with pytest.raises(KeyError, match="patchs"):
        work.add(patchs=1)
    with pytest.raises(KeyError, match="decoding"), work.timed("decoding"):
        pass
    assert work.taken() == {}


@pytest.mark.parametrize(
    ("reported", "name", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", 989),
        ("NVIDIA H100 PCIe", "H100 PCIe", 756),
        ("NVIDIA H200", "H200", 989),
        ("NVIDIA H20", "H20", 148),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB", 312),
        ("NVIDIA A100 80GB PCIe", "A100 80GB", 312),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB", 312),
        ("NVIDIA L40S", "L40S", 362),
        ("NVIDIA L40", "L40", 181),
        ("NVIDIA L4", "L4", 121),
        ("NVIDIA A10G", "A10G", 70),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 165),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", 364),
    ],
)
def test_gpus_are_known_by_what_the_driver_calls_them(reported, name, tflops):
    """An MFU against another card's peak is wrong by its ratio, L4 against L40S threefold."""
    found = profiling.named(reported)
    assert (found.name, found.tflops) == (name, tflops)


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090 Laptop GPU", "Tesla T4", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"])
def test_other_cards_have_no_peak(name):
    """A number that looks like a measurement would be none."""
    assert profiling.named(name) is None


def test_no_mfu_without_a_known_peak():
    """A run on a CPU would report a share of a peak that nobody knows."""
    assert mfu(1e12, 1.0, "cpu") is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_awaited_and_measured():
    """A part's time would be that of starting its kernels, not of running them."""
    work, a = StepProfiler("cuda"), torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    with work.timed("forward"):
        for _ in range(50):
            a @ a
    assert 0.01 < (mfu(50 * 2 * 4096**3, work.taken()["forward_s"], "cuda") or 0.5) < 1.0
