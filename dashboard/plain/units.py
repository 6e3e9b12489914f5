"""Numbers for readers: the only place that turns ns, bytes and fractions into words."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime

import pandas as pd

UNKNOWN = "not known"

# Below a tenth of a per cent one decimal would read as nothing.
_SMALL_FRAC = 0.001

_TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_BYTE_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
_COUNT_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def duration(ns: float | None) -> str:
    """Return a duration in the unit that leaves one to three digits before the point.

    >>> duration(2_214_448_000)
    '2.21 s'
    """
    if ns is None or not math.isfinite(ns):
        return UNKNOWN
    for size, unit in _TIME_UNITS:
        if abs(ns) >= size:
            return f"{_digits(ns / size)} {unit}"
    return f"{_digits(ns)} ns"


def is_unknown(value: object) -> bool:
    """Return whether a cell of a table holds nothing: None, NaN or a missing value of pandas."""
    # Only what is missing, and NaN, differs from itself or is no truth value.
    return value is None or value is pd.NA or value is pd.NaT or value != value


def percent(frac: float | None, places: int = 1) -> str:
    """Return a fraction as a percentage.

    >>> percent(0.1234), percent(0.0002)
    ('12.3 %', '0.02 %')
    """
    if frac is None or not math.isfinite(frac):
        return UNKNOWN
    if 0 < abs(frac) < _SMALL_FRAC:
        places = max(places, 2)
    # Adding zero turns the negative zero of a rounded small loss into zero.
    return f"{round(100 * frac, places) + 0.0:.{places}f} %"


def signed_percent(frac: float) -> str:
    """Return a change as a percentage with its sign.

    >>> signed_percent(0.021), signed_percent(-0.3)
    ('+2.1 %', '-30.0 %')
    """
    return f"{100 * frac:+.1f} %"


def clock_time(epoch_ns: int) -> str:
    """Return a time since the epoch as date and time in UTC.

    >>> clock_time(0)
    '1970-01-01 00:00:00'
    """
    return datetime.fromtimestamp(epoch_ns / 1e9, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")


def size(count: float | None) -> str:
    """Return bytes in binary units."""
    if count is None or not math.isfinite(count):
        return UNKNOWN
    for unit_size, unit in _BYTE_UNITS:
        if abs(count) >= unit_size:
            return f"{_digits(count / unit_size)} {unit}"
    return "0 B"


def rate(value: float | None, unit: str) -> str:
    """Return a count, or a count per second, with a decimal prefix."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for unit_size, prefix in _COUNT_UNITS:
        if abs(value) >= unit_size:
            return f"{_digits(value / unit_size)} {prefix}{unit}"
    return f"{_digits(value)} {unit}"


def axis_unit(values: Iterable[float | None], unit: str) -> tuple[float, str]:
    """Return by what to divide counts for an axis, and the unit there: that of the largest.

    >>> axis_unit([2e6, None], "B/s")
    (1000000.0, 'MB/s')
    """
    known = [abs(value) for value in values if value is not None and math.isfinite(value)]
    largest = max(known, default=0.0)
    for size, prefix in _COUNT_UNITS:
        if largest >= size:
            return size, f"{prefix}{unit}"
    return 1.0, unit


def _digits(value: float) -> str:
    """Return three significant digits, never in exponent form."""
    magnitude = abs(value)
    places = 2 if magnitude < 10 else 1 if magnitude < 100 else 0
    # Adding zero turns the negative zero of a small negative number into zero.
    text = f"{round(value, places) + 0.0:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
