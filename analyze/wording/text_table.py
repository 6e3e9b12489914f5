"""Tables of text: aligned columns for a terminal, pipes for Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(
    headers: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1
) -> list[str]:
    """Return the lines of a table: so many first columns to the left, the others to the right.

    >>> text_table(["rank", "ms"], [[0, "1.5"], [12, "20.0"]])
    ['  rank    ms', '  0      1.5', '  12    20.0']
    """
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[place]) for row in (headers, *cells)) for place in range(len(headers))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (headers, *cells)
    ]


def markdown_table(
    headers: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1
) -> list[str]:
    """Return the lines of a table of Markdown; no cell can end its column or its line.

    >>> markdown_table(["group", "ms"], [["a", 1]])
    ['| group | ms |', '| --- | ---: |', '| a | 1 |']
    """
    rule = ["---"] * left + ["---:"] * (len(headers) - left)
    return [f"| {' | '.join(map(_escaped, row))} |" for row in (headers, rule, *rows)]


def _escaped(cell: object) -> str:
    return str(cell).replace("|", "\\|").replace("\n", " ")
