"""Aligned columns and sizes in text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_GB = 1e9


def gigabytes(size_bytes: float) -> str:
    """Return GB with three significant digits for small sizes, one decimal for large ones.

    >>> gigabytes(5.43e9), gigabytes(3.2e6)
    ('5.4', '0.0032')
    """
    size = size_bytes / _GB
    return f"{size:,.1f}" if size >= 1 else f"{size:.3g}"


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return aligned lines; numbers stand right, words left."""
    columns = list(zip(*rows, strict=True))
    aligned = []
    for column in columns:
        width = max(map(len, column))
        right = all(cell[:1].isdigit() and " " not in cell for cell in column[1:])
        aligned.append([cell.rjust(width) if right else cell.ljust(width) for cell in column])
    return ["  ".join(cells).rstrip() for cells in zip(*aligned, strict=True)]
