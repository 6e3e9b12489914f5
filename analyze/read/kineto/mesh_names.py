"""Ranks of files that are named by their places on a mesh, as inference servers name them.

Servers write ``17-TP-1-PP-0.trace.json`` or ``dp0_pp1_tp1.json``: no name says a rank, all of them together do. A
replica is outermost and the members of a tensor-parallel group are neighbours: rank = tp + TP * (pp + PP * dp).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from ..files import MAX_RANKS, InputFile

_PLACE = re.compile(r"(?<![A-Za-z0-9])(DP|PP|TP)[-_]?(\d{1,6})(?![A-Za-z0-9])", re.IGNORECASE)
_AXES = ("dp", "pp", "tp")


def ranks_by_places(files: Sequence[InputFile]) -> dict[str, int]:
    """Return the rank of each file by its label; empty unless the names make one whole mesh.

    One axis alone is none: whether a name counts ranks then or something else, it does not tell.
    Replicas whose number follows from the place in the tensor-parallel group (attention in data-parallel) are none
    of their own.
    """
    named = [
        {axis.lower(): int(number) for axis, number in _PLACE.findall(file.name)} for file in files
    ]
    if len(files) < 2 or any(len(place) < 2 or place.keys() != named[0].keys() for place in named):
        return {}
    inner = [axis for axis in _AXES[1:] if axis in named[0]]
    for axes in (inner, [axis for axis in _AXES if axis in named[0]]):
        sizes = [1 + max(place[axis] for place in named) for axis in axes]
        places = [tuple(place[axis] for axis in axes) for place in named]
        if prod(sizes) == len(files) < MAX_RANKS and len(set(places)) == len(files):
            return {
                file.label: _rank(place, sizes) for file, place in zip(files, places, strict=True)
            }
    return {}


def _rank(place: Sequence[int], sizes: Sequence[int]) -> int:
    """Return the number of a place of which the last axis varies fastest."""
    rank = 0
    for at, size in zip(place, sizes, strict=True):
        rank = rank * size + at
    return rank
