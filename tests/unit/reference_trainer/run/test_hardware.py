"""The peak of a CPU: measured while a core is free, else unusable."""

import pytest

from meshscope.reference_trainer.run import hardware


def rate(times, monkeypatch):
    """Return the peak where matmuls take some wall and CPU times in turn."""
    given = iter(times)
    monkeypatch.setattr(hardware, "_ATTEMPTS", len(times))
    monkeypatch.setattr(hardware, "_matmul_ns", lambda left, right: next(given))
    return hardware._matmul_flops()


def test_a_matmul_that_waited_for_its_core_is_no_peak(monkeypatch):
    """A peak of half a core would make MFU twice as high, or above 100 %."""
    work = 2 * hardware._WIDTH**3 * 1_000_000_000
    assert rate([(200, 100), (110, 109), (105, 90)], monkeypatch) == work // 110


@pytest.mark.parametrize("times", [[(200, 100)], [(200, 100), (300, 150)]])
def test_with_all_cores_busy_there_is_no_peak(times, monkeypatch):
    """What a busy core does would be called its peak."""
    assert rate(times, monkeypatch) == 0
