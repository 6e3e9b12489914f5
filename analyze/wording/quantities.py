"""Numbers, times, sizes and places in sentences: one form for each, the same everywhere.

In a sentence of the catalogue the form stands after the colon::

    {share:percent}  14.8 %          {excess:+percent}  +3.1 %      {ratio:times}  1.32 x
    {mfu:percent2}   42.12 %
    {excess_ns:time} 6.96 ms         {delta_ns:+time}   +6.96 ms    {size:bytes}   1.50 GiB
    {rate:rate}      12.4 GB/s       {n:count rank}     3 ranks     {n:number}     1,024
    {clock_hz:clock} 1410 MHz
    {ranks:ranks}    ranks 3 and 5   {ranks:Ranks}      Ranks 3 and 5, where a sentence begins
    {text:capitalised}    Any text, where a sentence begins; so are Steps and Words
    {ways:choice}    a, b or c
    {items:list}     a, b and c      {steps:steps}      steps 5-12
    {axis:axis}      TP              {name:class}       exposed memory copies
    {where:place}    rank 3, stage 1 {kind:words}       straggler rank
    {kind:operations} all-reduces    {kind:Operations} All-reduces
    {items:series}   a; b            {items:sentences}  A. B
    {share:percent0} 15 %            {drift:ppm}     12.5 ppm
    {value:short}    1.234e+15       {peak:tflops}   989 TFLOP/s
    {names:all}      a, b, c         every one, however many
    {pairs:few}      0-1, 1-2, 2-3 … only the first three
    {axes:product}   tp x dp        {status:exit}   exit code 1
    {most:mib}       64 MiB          a limit, in whole MiB
    {free:gb}        12.4 GB         {size:gb2}      12.43 GB
    {size:mb}        1,234 MB        {size:mb1}      1,234.5 MB
    {gain_ns:ms}     12.34 ms, also beside shorter and longer times
    {after_ns:ms3}   512.000, for two times before one unit
    {change:change2} +2.40 %, without a sign where it is 0.00 %
    {text!r:cut}     its first 60 characters
    {kernel:name}    the name of something in a program: on one line, its first 120 characters
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import isfinite
from typing import Any

from meshscope.probe.schema.printable import MOST_LISTED, listed, printable
from meshscope.probe.schema.sentences import FORMS, SentenceFormatter, number

from .words import (
    axis_label,
    capitalised,
    class_label,
    counted,
    exit_words,
    joined,
    operations_label,
    place_words,
    rank_words,
)

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_LONG_TIMES = ((86_400e9, "days"), (3_600e9, "h"), (60e9, "min"))
LONG_NS = 600_000_000_000
"""From here on a time in seconds has to be worked out by its reader."""
_SIZES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "bytes"))
_RATES = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))
_NAME_LENGTH = 120
_DIGITS = 3
"""More would not repeat between two runs of one job."""


def percent(share: float, places: int = 1) -> str:
    """Return a share, never a negative zero.

    >>> percent(0.1484), percent(-0.0002), percent(0.4212, 2), percent(float("nan"))
    ('14.8 %', '0.0 %', '42.12 %', 'unknown')
    """
    if not isfinite(share):
        return "unknown"
    return f"{_unsigned_zero(round(100 * share, places)):.{places}f} %"


def percent_change(share: float, places: int = 1) -> str:
    """Return a change as a share with its sign.

    >>> percent_change(0.021), percent_change(-0.0351, 2)
    ('+2.1 %', '-3.51 %')
    """
    return f"{100 * share:+.{places}f} %" if isfinite(share) else "unknown"


def duration(time_ns: float) -> str:
    """Return a time in the unit in which it is at least 1, with three digits; up to ten minutes in seconds.

    >>> duration(6_961_000), duration(44_700_000), duration(371_000), duration(0), duration(9e12)
    ('6.96 ms', '44.7 ms', '371 us', '0 ns', '2.50 h')
    """
    return _in_units(time_ns, _LONG_TIMES if abs(time_ns) >= LONG_NS else _TIMES)


def size(size_bytes: float) -> str:
    """Return a number of bytes in the unit in which it is at least 1.

    >>> size(1_610_612_736), size(12)
    ('1.50 GiB', '12 bytes')
    """
    return _in_units(size_bytes, _SIZES)


def rate(bytes_per_s: float) -> str:
    """Return a bandwidth.

    >>> rate(12.4e9)
    '12.4 GB/s'
    """
    return _in_units(bytes_per_s, _RATES)


def clock(frequency_hz: float) -> str:
    """Return the clock of a device, in MHz as its tools do.

    >>> clock(1.41e9)
    '1410 MHz'
    """
    return f"{frequency_hz / 1e6:.0f} MHz" if isfinite(frequency_hz) else "unknown"


def times(ratio: float) -> str:
    """Return a ratio.

    >>> times(1.318)
    '1.32 x'
    """
    return f"{ratio:.2f} x" if isfinite(ratio) else "unknown"


def steps(ranges: Sequence[Any]) -> str:
    """Return steps: a first and a last one, or several such pairs.

    >>> steps([5, 12]), steps([7, 7]), steps([(5, 12), (17, 20)])
    ('steps 5-12', 'step 7', 'steps 5-12 and 17-20')
    """
    pairs = [ranges] if ranges and not isinstance(ranges[0], Sequence) else list(ranges)
    words = [f"{low}" if low == high else f"{low}-{high}" for low, high in pairs]
    is_one = len(pairs) == 1 and pairs[0][0] == pairs[0][1]
    shown = listed(words) if len(words) > MOST_LISTED else joined(words)
    return f"{'step' if is_one else 'steps'} {shown}"


def names(items: Iterable[Any], word: str = "and") -> str:
    """Return items as a list in a sentence, of many the first ones.

    >>> names(["a", "b", "c"]), names(["a", "b"], "or")
    ('a, b and c', 'a or b')
    """
    shown = [str(item) for item in items]
    return listed(shown) if len(shown) > MOST_LISTED else joined(shown, word)


def _sentences(items: Iterable[Any]) -> str:
    """Return sentences one behind the other, each but the last with its full stop."""
    return ". ".join(str(item).removesuffix(".") for item in items)


def _few(items: Iterable[Any]) -> str:
    return listed(map(str, items), most=3)


def _product(items: Iterable[Any]) -> str:
    return " x ".join(map(str, items))


def _tflops(rate_flops: float) -> str:
    return f"{rate_flops / 1e12:,.0f} TFLOP/s"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes >> 20:,} MiB"


def _gb(size_bytes: float, places: int = 1) -> str:
    return f"{size_bytes / 1e9:.{places}f} GB"


def _mb(size_bytes: float, places: int = 0) -> str:
    return f"{size_bytes / 1e6:,.{places}f} MB"


def _ms(time_ns: float) -> str:
    return f"{time_ns / 1e6:.2f} ms"


def _ms3(time_ns: float) -> str:
    return f"{time_ns / 1e6:.3f}"


def _change2(share: float) -> str:
    text = percent_change(share, 2)
    return "0.00 %" if text in ("+0.00 %", "-0.00 %") else text


def _ranks(value: Any) -> str:
    return rank_words([value] if isinstance(value, int) else list(value))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _capital_words(name: str) -> str:
    return capitalised(_words(name))


def _capital_operations(kind: str) -> str:
    return capitalised(operations_label(kind))


def _capital_text(text: object) -> str:
    return capitalised(str(text))


def _capital_ranks(value: Any) -> str:
    return capitalised(_ranks(value))


def _capital_steps(ranges: Sequence[Any]) -> str:
    return capitalised(steps(ranges))


def _ppm(share: float) -> str:
    return f"{1e6 * share:.1f} ppm"


def _in_units(value: float, units: Sequence[tuple[float, str]]) -> str:
    if not isfinite(value):
        return "unknown"
    for scale, unit in units:
        # As rounded, so that 999.7 us is 1.00 ms.
        if abs(float(f"{value / scale:.{_DIGITS}g}")) >= 1:
            is_whole = scale == 1.0 and float(value).is_integer()
            return f"{value:.0f} {unit}" if is_whole else f"{_digits(value / scale)} {unit}"
    scale, unit = units[-1]
    return f"{_unsigned_zero(round(value / scale)):.0f} {unit}"


def _digits(value: float) -> str:
    """Return a number of at least 1 with three digits, or all of those before the point."""
    before = len(str(int(abs(float(f"{value:.{_DIGITS}g}")))))
    return f"{value:.{max(_DIGITS - before, 0)}f}"


def _unsigned_zero(value: float) -> float:
    return value or 0.0


def _name(text: object) -> str:
    """Return what a program calls something: kernels of templates and notes of frameworks take thousands of characters."""
    line = printable(" ".join(str(text).split()))
    return line if len(line) <= _NAME_LENGTH else line[: _NAME_LENGTH - 1] + "…"


_FORMS: dict[str, Callable[[Any], str]] = {
    **FORMS,
    "name": _name,
    "percent": percent,
    "percent2": partial(percent, places=2),
    "time": duration,
    "bytes": size,
    "rate": rate,
    "times": times,
    "clock": clock,
    "steps": steps,
    "list": names,
    "few": _few,
    "product": _product,
    "exit": exit_words,
    "choice": partial(names, word="or"),
    "ranks": _ranks,
    "Steps": _capital_steps,
    "ppm": _ppm,
    "Ranks": _capital_ranks,
    "axis": axis_label,
    "class": class_label,
    "place": place_words,
    "operations": operations_label,
    "Operations": _capital_operations,
    "words": _words,
    "Words": _capital_words,
    "capitalised": _capital_text,
    "tflops": _tflops,
    "sentences": _sentences,
    "mib": _mib,
    "gb": _gb,
    "gb2": partial(_gb, places=2),
    "mb": _mb,
    "mb1": partial(_mb, places=1),
    "ms": _ms,
    "ms3": _ms3,
    "change2": _change2,
    "percent0": partial(percent, places=0),
}


class QuantityFormatter(SentenceFormatter):
    """Fills the braces of a sentence by the forms of this module."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a value in its form.

        Raises:
            ValueError: There is no such form.
        """
        form, _, noun = format_spec.partition(" ")
        if form == "count":
            return counted(int(value), noun).replace(str(int(value)), number(int(value)), 1)
        sign = form.startswith("+")
        if (make := _FORMS.get(form.removeprefix("+"))) is not None:
            text = make(value)
            return f"+{text}" if sign and text[0].isdigit() and value > 0 else text
        return super().format_field(value, format_spec)
