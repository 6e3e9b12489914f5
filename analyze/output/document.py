"""Reports as data: blocks that a terminal, a text, Markdown and a page each draw in their own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from ..wording.message import Text


class Heading(msgspec.Struct, frozen=True):
    """The title of a section; of the whole report where it is the first block."""

    text: Text


class Lines(msgspec.Struct, frozen=True):
    """Sentences, one below the other."""

    texts: Sequence[Text]


class Item(msgspec.Struct, frozen=True):
    """One entry of a list, with facts below it."""

    text: Text
    facts: Sequence[Text] = ()
    mark: str = ""
    """What stands before it, such as a severity: never part of the sentence."""
    is_strong: bool = False


class Listing(msgspec.Struct, frozen=True):
    """A list; numbered where its items are referred to."""

    items: Sequence[Item]
    first_number: int | None = None


class Table(msgspec.Struct, frozen=True):
    """Rows of cells: the first column to the left, the others to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    bars: Sequence[float] = ()
    """One share of 1 a row, drawn as a bar behind it where there is room; empty for none."""
    notes: Sequence[Text] = ()
    """Sentences that belong below it."""


class Verbatim(msgspec.Struct, frozen=True):
    """Lines whose columns mean something: a map, a command."""

    lines: Sequence[str]


class Figure(msgspec.Struct, frozen=True):
    """A picture, and its numbers for whoever cannot see it: a text shows these alone."""

    picture: str
    """An ``<svg>`` element of ``report.svg``: what it holds of names is escaped."""
    caption: Text
    """What it shows, one sentence."""
    table: Table


class Rule(msgspec.Struct, frozen=True):
    """A border between two parts of a report."""

    text: Text = ""


Block: TypeAlias = Heading | Lines | Listing | Table | Verbatim | Figure | Rule
Document: TypeAlias = Sequence[Block]


def section(title: Text, *blocks: Block) -> list[Block]:
    """Return blocks under a heading; nothing where all of them are empty."""
    body = [block for block in blocks if not is_empty(block)]
    return [Heading(title), *body] if body else []


def is_empty(block: Block) -> bool:
    """Return whether a block shows nothing."""
    match block:
        case Lines(texts):
            return not texts
        case Listing(items):
            return not items
        case Table(rows=rows, notes=notes):
            return not rows and not notes
        case Verbatim(lines):
            return not lines
        case Figure(picture=picture, table=table):
            return not picture and is_empty(table)
        case _:
            return False


def facts(texts: Sequence[Text]) -> Listing:
    """Return sentences as a list of points."""
    return Listing([Item(text) for text in texts])
