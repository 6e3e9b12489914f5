"""Copies of one file in a folder: a file and its compressed form, or one that was copied by hand, are one recording.

Two files of one rank and time that differ are two recordings, and are refused elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from filecmp import cmp

from ...wording.limits import Limit
from ...wording.message import message
from .rank import RankFile


def without_copies(files: Sequence[RankFile]) -> tuple[list[RankFile], list[Limit]]:
    """Return the files without those that hold the same as another one, and a sentence for each of them."""
    by_rank: dict[int, list[RankFile]] = defaultdict(list)
    limits: list[Limit] = []
    kept: list[RankFile] = []
    for file in sorted(files, key=lambda file: (len(file.label), file.label)):
        same = next((one for one in by_rank[file.rank] if _are_same(one, file)), None)
        if same is None:
            by_rank[file.rank].append(file)
            kept.append(file)
            continue
        limits.append(message("scope.copy_of_file", file=file.label, other=same.label))
        for table in file.stored.values():
            table.unlink(missing_ok=True)
    chosen = {id(file) for file in kept}
    return [file for file in files if id(file) in chosen], limits


def _are_same(one: RankFile, other: RankFile) -> bool:
    """Return whether two files of a rank gave the same rows in every table."""
    return (
        one.stored.keys() == other.stored.keys()
        and one.tables.keys() == other.tables.keys()
        and all(table.equals(other.tables[name]) for name, table in one.tables.items())
        and all(cmp(path, other.stored[name], shallow=False) for name, path in one.stored.items())
    )
