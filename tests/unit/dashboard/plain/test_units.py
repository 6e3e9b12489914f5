"""Numbers as readers see them."""

import math

import pytest

from meshscope.dashboard.plain import units


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (2_214_448_000, "2.21 s"),
        (94_611_000, "94.6 ms"),
        (120_000_000, "120 ms"),
        (1_500, "1.5 µs"),
        (-49, "-49 ns"),
        (0, "0 ns"),
        (None, units.UNKNOWN),
        (math.nan, units.UNKNOWN),
    ],
)
def test_duration(ns, words):
    """Fails when a time is shown in a wrong unit, or an unknown one as a number."""
    assert units.duration(ns) == words


@pytest.mark.parametrize(
    ("frac", "words"),
    [
        (0.1234, "12.3 %"),
        (0.0002, "0.02 %"),
        (-0.0000001, "0.00 %"),
        (0.0, "0.0 %"),
        (None, units.UNKNOWN),
        (math.inf, units.UNKNOWN),
    ],
)
def test_percent(frac, words):
    """Fails when a small share reads as nothing, or a zero as negative."""
    assert units.percent(frac) == words


def test_sizes_and_rates():
    """Fails when binary and decimal prefixes are mixed up."""
    assert units.size(3 * 2**30) == "3 GiB"
    assert units.size(0) == "0 B"
    assert units.rate(101_000_000_000, "FLOP/s") == "101 GFLOP/s"
    assert units.rate(676.2, "tok/s") == "676 tok/s"
    assert units.size(None) == units.rate(None, "x") == units.UNKNOWN
