"""Documents as plain text and as Markdown; both are safe to show.

Names of files, groups, kernels and hosts come from the input. They may hold what a terminal obeys, line ends, or
tags, links and pictures that a viewer of Markdown would show, or fetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshscope.probe.schema.printable import printable

from ..wording.message import Text
from ..wording.text_table import markdown_table, text_table
from .document import Block, Document, Figure, Heading, Item, Lines, Listing, Rule, Table, Verbatim

BAR_WIDTH = 32
_INDENT = "  "


def to_plain(document: Document) -> str:
    r"""Return a document as text of fixed width.

    >>> to_plain([Heading("Ranks"), Table(["rank", "ms"], [[0, "1.5"], [12, "20.0"]])])
    'Ranks\n  rank    ms\n  0      1.5\n  12    20.0'
    """
    lines: list[str] = []
    before: Block | None = None
    in_section = False
    for block in document:
        apart = isinstance(block, Heading | Rule) or not isinstance(before, Heading | None)
        if before is not None and apart and lines[-1]:
            lines.append("")
        in_section |= isinstance(block, Heading)
        lines += _plain_block(block, _INDENT if in_section else "")
        before = block
    return "\n".join(line.rstrip() for line in lines)


def to_markdown(document: Document) -> str:
    r"""Return a document as Markdown, in which no tag, link or picture of a name begins.

    >>> to_markdown([Heading("group a\x1b[2J"), Lines(["<script>", "![x](http://e/x.png)"])])
    '# group a\\x1b[2J\n\n&lt;script>  \n![x]\\(http://e/x.png)'
    """
    lines: list[str] = []
    for number, block in enumerate(document):
        lines += [""] if lines else []
        lines += _markdown_block(block, "#" if number == 0 else "##")
    return "\n".join(lines)


def _plain_block(block: Block, indent: str) -> Iterator[str]:
    match block:
        case Heading(text):
            yield _shown(text)
        case Lines(texts):
            yield from (f"{indent}{_shown(text)}" for text in texts)
        case Listing():
            yield from _plain_items(block)
        case Table(notes=notes):
            yield from plain_table(block)
            yield from (f"{_INDENT}{_shown(note)}" for note in notes)
        case Verbatim(lines):
            yield from (f"{indent}{printable(line)}" for line in lines)
        case Figure(caption=caption, table=table):
            yield f"{indent}{_shown(caption)}"
            yield from _plain_block(table, indent)
        case Rule(text):
            yield f"{'-' * 16} {_shown(text)} {'-' * 16}"


def _plain_items(block: Listing) -> Iterator[str]:
    for number, item in enumerate(block.items, start=block.first_number or 0):
        lead = "- " if block.first_number is None else f"{number}. "
        yield f"{lead}{_marked(item)}{_shown(item.text)}"
        yield from (f"{_INDENT} - {_shown(fact)}" for fact in item.facts)


def plain_table(table: Table, width: int = BAR_WIDTH) -> list[str]:
    """Return the lines of a table, with bars of at most a width behind its rows."""
    lines = text_table(table.columns, _cells(table)) if table.rows else []
    longest = max(map(len, lines), default=0)
    for place, share in enumerate(table.bars, start=1):
        fill = "#" * max(0, min(width, round(share * width)))
        lines[place] = f"{lines[place]:<{longest}}  {fill}".rstrip()
    return lines


def _markdown_block(block: Block, mark: str) -> Iterator[str]:
    match block:
        case Heading(text):
            yield f"{mark} {_inert(_shown(text))}"
        case Lines(texts):
            # A line of its own, not one paragraph.
            yield from _each_on_its_line([_inert(_shown(text)) for text in texts])
        case Listing():
            yield from _markdown_items(block)
        case Table(columns, rows, notes=notes):
            if rows:
                yield from map(_inert, markdown_table(columns, _cells(block)))
            yield from [""] if rows and notes else []
            yield from _each_on_its_line([_inert(_shown(note)) for note in notes])
        case Verbatim(lines):
            yield from ("```", *(printable(line).replace("```", "'''") for line in lines), "```")
        case Figure(caption=caption, table=table):
            yield from (_inert(_shown(caption)), "", *_markdown_block(table, mark))
        case Rule():
            yield "---"


def _markdown_items(block: Listing) -> Iterator[str]:
    for number, item in enumerate(block.items, start=block.first_number or 0):
        lead = "- " if block.first_number is None else f"{number}. "
        text = _inert(_shown(item.text))
        yield f"{lead}{_inert(_marked(item))}{f'**{text}**' if item.is_strong else text}"
        yield from (f"{_INDENT} - {_inert(_shown(fact))}" for fact in item.facts)


def _each_on_its_line(lines: Sequence[str]) -> Iterable[str]:
    """Return lines of which each but the last ends in what breaks a line in Markdown."""
    return [*(f"{line}  " if line else line for line in lines[:-1]), *lines[-1:]]


def _cells(table: Table) -> list[list[str]]:
    return [[printable(str(cell)) for cell in row] for row in table.rows]


def _marked(item: Item) -> str:
    return f"{item.mark} " if item.mark else ""


def _shown(text: Text) -> str:
    return printable(str(text))


def _inert(line: str) -> str:
    """Return a line of Markdown in which no tag or link begins."""
    return line.replace("<", "&lt;").replace("](", "]\\(")
