"""Results as wide as the terminal: long sentences go on below, wide tables in parts, severities in colour.

Only for a person who looks: what goes to a file or another program stays as it is.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import groupby
from typing import TYPE_CHECKING

from meshscope.probe.schema.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from meshscope.analyze.output.document import Block, Document, Listing, Table

LEAST_WIDTH = 60
"""Narrower than this nothing is easier to read."""
_BULLET = re.compile(r" *(?:- |\d+\. |\* )?")
_BAR = re.compile(r"  (#+)$")
_BAR_WIDTH = 32
_COLOURS = {"[critical": "bold red", "[warning": "yellow"}
"""Of a severity, up to its bracket."""
_GUTTER = 2
"""Blank columns between two columns of a table."""
_NO_TABLE = ("  … ", "  * ", "  - ", "   ")
"""Beginnings of lines below a table, or of evidence, that are sentences."""


def terminal_width() -> int | None:
    """Return how many columns a person sees, None where stdout is no terminal."""
    if not sys.stdout.isatty():
        return None
    return max(LEAST_WIDTH, shutil.get_terminal_size().columns)


def on_terminal(document: Document, width: int) -> str:
    """Return a document drawn for a terminal; colours only where the person wants them (``NO_COLOR``).

    Args:
        document: The report.
        width: Columns of the terminal.
    """
    from rich.console import Console

    from meshscope.analyze.output.document import Heading

    drawn = StringIO()
    console = Console(
        file=drawn, width=width, force_terminal=True, highlight=False, legacy_windows=False
    )
    before: Block | None = None
    for block in document:
        if before is not None and not isinstance(before, Heading):
            console.print()
        before = block
        for part in _drawn(block, width):
            console.print(part, soft_wrap=False)
    return "\n".join(line.rstrip() for line in drawn.getvalue().rstrip("\n").split("\n"))


def _drawn(block: Block, width: int) -> Iterator[RenderableType]:
    """Yield what a block looks like; names from the input are text, never markup."""
    from rich.text import Text as Drawn

    from meshscope.analyze.output.document import (
        Figure,
        Heading,
        Lines,
        Listing,
        Rule,
        Table,
        Verbatim,
    )

    match block:
        case Heading(text):
            yield Drawn(printable(str(text)), style="bold")
        case Lines(texts):
            yield from (Drawn(printable(str(text))) for text in texts)
        case Listing():
            yield _list(block)
        case Table(notes=notes):
            yield from _table_in_parts(block, width)
            yield from (Drawn(f"  {printable(str(note))}") for note in notes)
        case Verbatim(lines):
            yield from (Drawn(printable(line), no_wrap=True, overflow="ignore") for line in lines)
        case Figure(caption=caption, table=table):
            yield Drawn(printable(str(caption)))
            yield from _drawn(table, width)
        case Rule(text):
            yield Drawn(f"{'-' * 16} {printable(str(text))} {'-' * 16}", style="dim")


def _list(block: Listing) -> RenderableType:
    """Return a list whose long sentences go on under their first word."""
    from rich.table import Table as Grid
    from rich.text import Text as Drawn

    rows = Grid.grid(padding=(0, 1, 0, 0))
    rows.add_column(no_wrap=True)
    rows.add_column()
    for number, item in enumerate(block.items, start=block.first_number or 0):
        lead = "-" if block.first_number is None else f"{number}."
        text = Drawn()
        if item.mark:
            text.append(f"{printable(item.mark)} ", style=_COLOURS.get(item.mark.split("]")[0], ""))
        text.append(printable(str(item.text)), style="bold" if item.is_strong else "")
        rows.add_row(lead, text)
        for fact in item.facts:
            below = Grid.grid(padding=(0, 1, 0, 0))
            below.add_row("-", Drawn(printable(str(fact))))
            rows.add_row("", below)
    return rows


def _table_in_parts(table: Table, width: int) -> Iterator[RenderableType]:
    """Yield a table, or several below each other, each with the first column, where it is too wide."""
    from rich.text import Text as Drawn

    from meshscope.analyze.output.render import plain_table

    lines = plain_table(table, max(0, _BAR_WIDTH))
    if not lines:
        return
    if max(map(len, lines)) > width:
        lines = list(_with_short_bars(lines, width)) if table.bars else _in_parts(lines, width)
    for place, line in enumerate(lines):
        yield Drawn(line, style="dim" if place == 0 else "", no_wrap=True, overflow="ignore")


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
