"""Numbers in sentences."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.wording.quantities import (
    QuantityFormatter,
    duration,
    number,
    percent,
    rate,
    size,
    steps,
    times,
)

_UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9, "h": 3600e9, "days": 86400e9}


def _filled(sentence, **values):
    return QuantityFormatter().vformat(sentence, (), values)


@pytest.mark.parametrize(
    ("sentence", "values", "wanted"),
    [
        ("{x:percent}", {"x": 0.1484}, "14.8 %"),
        ("{x:percent}", {"x": -0.0004}, "0.0 %"),
        ("{x:+percent}", {"x": 0.031}, "+3.1 %"),
        ("{x:+percent}", {"x": -0.031}, "-3.1 %"),
        ("{x:time}", {"x": 999_700}, "1.00 ms"),
        ("{x:time}", {"x": 9_700_000}, "9.70 ms"),
        ("{x:time}", {"x": 9_999_000}, "10.0 ms"),
        ("{x:+time}", {"x": 6_961_000}, "+6.96 ms"),
        ("{x:time}", {"x": 123_456_000_000}, "123 s"),
        ("{x:time}", {"x": 5_400_000_000_000}, "1.50 h"),
        ("{x:clock}", {"x": 1_410_000_000}, "1410 MHz"),
        ("{x:bytes}", {"x": 1536}, "1.50 KiB"),
        ("{x:rate}", {"x": 400e9}, "400 GB/s"),
        ("{x:times}", {"x": 1.318}, "1.32 x"),
        ("{x:count rank}", {"x": 1}, "1 rank"),
        ("{x:count microbatch}", {"x": 1024}, "1,024 microbatches"),
        ("{x:number}", {"x": 16384}, "16,384"),
        ("{x:ranks}", {"x": 3}, "rank 3"),
        ("{x:ranks}", {"x": [3, 5]}, "ranks 3 and 5"),
        ("{x:Ranks}", {"x": [3]}, "Rank 3"),
        ("{x:steps}", {"x": [(5, 12), (17, 20)]}, "steps 5-12 and 17-20"),
        ("{x:list}", {"x": ["a", "b", "c"]}, "a, b and c"),
        ("{x:axis}", {"x": "tp"}, "TP"),
        ("{x:class}", {"x": "exposed_memcpy"}, "exposed memory copies"),
        ("{x:mib}", {"x": 64 << 20}, "64 MiB"),
        ("{x:mb}", {"x": 1_234_567_890}, "1,235 MB"),
        ("{x:+ms3}", {"x": 512_000_000}, "+512.000"),
        ("{x:change2}", {"x": -0.00001}, "0.00 %"),
        ("{x:ms}", {"x": 1_234_567_890}, "1234.57 ms"),
        ("{x:gb}", {"x": 1_250_000_000}, "1.2 GB"),
        ("{x!r:cut}", {"x": "a" * 99}, "'" + "a" * 59),
        ("{x:name}", {"x": "a\n\x1b[31m" + "b" * 999}, "a \\x1b[31m" + "b" * 109 + "…"),
        ("{x}", {"x": "rank{0}"}, "rank{0}"),
    ],
)
def test_forms(sentence, values, wanted):
    """The same quantity would read differently in two sentences."""
    assert _filled(sentence, **values) == wanted


@pytest.mark.parametrize("make", [percent, duration, size, rate, times, number])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_known_is_said(make, value):
    """A sentence would say ``nan ms``."""
    assert make(value) == "unknown"


def test_a_form_that_does_not_exist_is_an_error():
    """A mistyped form would be dropped, and bytes be shown as a bare number."""
    with pytest.raises(ValueError, match="no form is called 'byte'"):
        _filled("{x:byte}", x=3)


@given(st.floats(min_value=1.0, max_value=1e16))
def test_a_time_is_what_it_says(time_ns):
    """A rounded time would be off by more than half of its last digit, or have a wrong unit."""
    text, unit = duration(time_ns).split()
    assert float(text) * _UNITS[unit] == pytest.approx(time_ns, rel=5.1e-3)
    assert 1 <= float(text) < 1000


@given(st.floats(min_value=-1.0, max_value=1.0))
def test_no_share_is_a_negative_zero(share):
    """A report would say ``-0.0 %``."""
    assert not percent(share).startswith("-0.0 ")


def test_no_steps_are_several():
    """One step would be called ``steps 7-7``."""
    assert steps([7, 7]) == "step 7"
