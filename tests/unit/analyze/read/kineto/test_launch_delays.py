"""Device work before its launch, or minutes after it: a clock is off, and that is said."""

import pytest
from tests.kineto_files import launched, step, write
from tests.texts import texts

from meshscope.analyze.read import import_trace


def said(tmp_path, delays):
    """Return what is said of launches whose kernels begin so many microseconds later."""
    events = [step(0, 0, 200_000)]
    for place, delay in enumerate(delays):
        at = 10_000 + place * 1000
        events += launched("gemm", at, at + delay, 100, place + 1)
    return " ".join(texts(import_trace(write(tmp_path / "rank0.json", events)).limits))


def test_work_before_its_launch_is_doubted(tmp_path):
    """Fails when idle time is explained from a device whose clock is behind by more and more."""
    text = said(tmp_path, [-50 * (place + 1) for place in range(100)])
    assert "100 of 100 device events begin before their launch, by up to 5.00 ms" in text


def test_work_that_is_all_minutes_late_is_doubted(tmp_path):
    """Fails when a device whose clock is five hours off is believed."""
    assert "all 100 device events begin 5.00 h or more after" in said(
        tmp_path, [18e9 + 5000 * place for place in range(100)]
    )


@pytest.mark.parametrize(
    "delays",
    [[10] * 100, [-5] * 100, [-5000] * 5 + [10] * 95, [30e6] * 100, [10] + [90e6] * 99],
    ids=["usual", "matched roughly", "some rows", "long queue", "a wait"],
)
def test_what_queues_and_clocks_do_is_not(tmp_path, delays):
    """Fails when a long queue, or clocks matched to some microseconds, are doubted."""
    assert "The clock of the device is off" not in said(tmp_path, delays)
