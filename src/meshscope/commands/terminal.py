"""Results as wide as the terminal: long sentences go on below, wide tables in parts.

Only for a person who looks: what goes to a file or another program stays as it is.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

LEAST_WIDTH = 60
"""Narrower than this nothing is easier to read."""
_BULLET = re.compile(r" *(?:- |\d+\. |\* )?")
_BAR = re.compile(r"  (#+)$")
_GUTTER = 2
"""Blank columns between two columns of a table."""
_NO_TABLE = ("  … ", "  * ", "  - ", "   ")
"""Beginnings of lines below a table, or of evidence, that are sentences."""


def terminal_width() -> int | None:
    """Return how many columns a person sees, None where stdout is no terminal."""
    if not sys.stdout.isatty():
        return None
    return max(LEAST_WIDTH, shutil.get_terminal_size().columns)


def fitted(text: str, width: int) -> str:
    """Return a text in lines of a width, as far as names and single columns allow it.

    Args:
        text: A report; its tables are indented by two blanks.
        width: Columns of the terminal.
    """
    lines: list[str] = []
    for is_table, block in groupby(text.split("\n"), key=_is_of_table):
        rows = list(block)
        if max(map(len, rows)) <= width:
            lines += rows
        elif is_table and any(map(_BAR.search, rows)):
            lines += _with_short_bars(rows, width)
        elif is_table and len(rows) > 1:
            lines += _in_parts(rows, width)
        else:
            lines += _wrapped(rows, width)
    return "\n".join(lines)


def _is_of_table(line: str) -> bool:
    return line.startswith("  ") and not line.startswith(_NO_TABLE)


def _wrapped(lines: Iterable[str], width: int) -> Iterator[str]:
    """Yield lines with what is too long going on below, under the first word."""
    for line in lines:
        bullet = _BULLET.match(line)
        indent = " " * (bullet.end() if bullet is not None else 0)
        yield from textwrap.wrap(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]


def _with_short_bars(rows: Sequence[str], width: int) -> Iterator[str]:
    """Yield lines that end in bars, with all bars shorter by the same factor."""
    bars = [found for row in rows if (found := _BAR.search(row))]
    room, longest = width - max(bar.start(1) for bar in bars), max(len(bar[1]) for bar in bars)
    factor = min(1.0, max(0.0, room / longest))
    for row in rows:
        found = _BAR.search(row)
        cut = row if found is None else row[: found.start(1)] + "#" * int(len(found[1]) * factor)
        yield cut.rstrip()


def _in_parts(rows: Sequence[str], width: int) -> list[str]:
    """Return a table as several below each other, each with the first column."""
    columns = _columns(rows)
    if len(columns) < 3:
        return list(_wrapped(rows, width))
    first, *others = columns
    parts: list[list[tuple[int, int]]] = [[]]
    used = first[1]
    for column in others:
        if parts[-1] and used + column[1] - column[0] > width:
            parts.append([])
            used = first[1]
        parts[-1].append(column)
        used += column[1] - column[0]
    lines: list[str] = []
    for part in parts:
        lines += [""] if lines else []
        lines += ["".join(row[low:high] for low, high in (first, *part)).rstrip() for row in rows]
    return lines


def _columns(rows: Sequence[str]) -> list[tuple[int, int]]:
    """Return where each column of a table begins and ends, the gutter before it included."""
    length = max(map(len, rows))
    padded = [row.ljust(length) for row in rows]
    is_blank = [all(row[place] == " " for row in padded) for place in range(length)]
    starts = [0]
    for place in range(_GUTTER + 1, length):
        gutter = is_blank[place - _GUTTER : place]
        if all(gutter) and not is_blank[place]:
            starts.append(place - _GUTTER)
    return list(zip(starts, [*starts[1:], length], strict=True))
