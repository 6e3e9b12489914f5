"""Results as wide as the terminal: long sentences go on below, wide tables in parts, severities in colour.

Only for a person who looks: what goes to a file or another program stays as it is.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from meshscope.probe.schema.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from meshscope.analyze.output.document import Block, Document, Listing, Table

LEAST_WIDTH = 60
"""Narrower than this nothing is easier to read."""
_BAR_WIDTH = 32
_HANGING: Any = {"subsequent_indent": "    ", "break_long_words": False, "break_on_hyphens": False}
"""How a line that is too long goes on: under its first word."""
_COLOURS = {"[critical": "bold red", "[warning": "yellow"}
"""Of a severity, up to its bracket."""
_GUTTER = 2
"""Blank columns between two columns of a table."""


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

    for number, part in enumerate(_parts(table, width)):
        if number:
            yield Drawn("")
        for place, line in enumerate(_lines(part, width)):
            yield Drawn(line, style="dim" if place == 0 else "", no_wrap=True, overflow="ignore")


def _lines(table: Table, width: int) -> list[str]:
    """Return the lines of a table; bars are shorter, and lines that are too long go on below."""
    from meshscope.analyze.output.render import plain_table

    bare = plain_table(table, 0)
    room = width - max(map(len, bare), default=0) - _GUTTER
    lines = plain_table(table, max(0, min(_BAR_WIDTH, room)))
    if max(map(len, lines), default=0) <= width:
        return lines
    return [part for line in lines for part in textwrap.wrap(line, width, **_HANGING)]


def _parts(table: Table, width: int) -> Iterator[Table]:
    """Yield as many columns at a time as fit, each time behind the first one."""
    from meshscope.analyze.output.render import plain_table

    if table.bars or not table.rows:
        yield table
        return
    shown = [0]
    for column in range(1, len(table.columns)):
        if len(shown) > 1:
            lines = plain_table(_of_columns(table, [*shown, column]))
            if max(map(len, lines)) > width:
                yield _of_columns(table, shown)
                shown = [0]
        shown.append(column)
    yield _of_columns(table, shown)


def _of_columns(table: Table, columns: Sequence[int]) -> Table:
    from meshscope.analyze.output.document import Table as Part

    rows = [[row[at] for at in columns] for row in table.rows]
    return Part([table.columns[at] for at in columns], rows)
