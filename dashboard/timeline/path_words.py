"""What a critical path consists of, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from meshscope.analyze.wording.words import class_label

from ..plain import units
from .paths import StepPath

_MOST_CLASSES = 4
_MOST_RANKS = 4
_MIN_FRAC = 0.005
"""A class below half a per cent would read as 0 %."""
_MOST_OF_IT = 0.5
"""The classes named first make up half of the path: a caption of more is not read."""


def path_sentence(shown: StepPath) -> str:
    """Return the classes and the ranks that most of a critical path belongs to, and its length.

    For example "Critical path: 57 % backward, 28 % forward, 13 % TP transfers, 2 % other;
    ranks 1, 0, 4 hold 74 % of it. Its 131 pieces sum to 591 ms, from 80.6 ms to 672 ms."
    """
    path = shown.path
    if path.pieces.empty:
        return "No part of the critical path lies in this step."
    total_ns = shown.total_ns()
    classes = _classes(path.by("class"), total_ns)
    ranks = _ranks(path.by("rank"), total_ns)
    return (
        f"Critical path: {classes}; {ranks}. Its {len(path.pieces):,} pieces sum to "
        f"{units.duration(total_ns)}, from {units.duration(path.start_ns)} to "
        f"{units.duration(path.end_ns)}."
    )


def _classes(by_class: pd.DataFrame, total_ns: int) -> str:
    shares = by_class.set_index("class")["dur_ns"].head(_MOST_CLASSES) / total_ns
    shares = shares[shares >= _MIN_FRAC]
    fracs = [float(share) for share in shares]
    names = [_class_words(str(name)) for name in shares.index]
    percents = _whole_percents([*fracs, max(1.0 - sum(fracs), 0.0)])
    parts = zip(percents, [*names, "other"], strict=True)
    return ", ".join(f"{percent} % {name}" for percent, name in parts if percent)


def _whole_percents(fracs: Sequence[float]) -> list[int]:
    """Return shares that sum to 1 as whole per cents that sum to 100.

    Those with the largest remainders are rounded up.
    """
    percents = [int(100 * frac) for frac in fracs]
    by_remainder = sorted(range(len(fracs)), key=lambda at: percents[at] - 100 * fracs[at])
    for at in by_remainder[: 100 - sum(percents)]:
        percents[at] += 1
    return percents


def _class_words(name: str) -> str:
    """Return shorter words than the figures have: on the path every transfer is on the wire."""
    if name.startswith("exposed_") and name.endswith("_wire"):
        axis = name.removeprefix("exposed_").removesuffix("_wire")
        return f"{axis if axis == 'other' else axis.upper()} transfers"
    return class_label(name)


def _ranks(by_rank: pd.DataFrame, total_ns: int) -> str:
    """Return the fewest ranks that hold most of the path, or the first few of them."""
    share = by_rank["dur_ns"].head(_MOST_RANKS).cumsum().to_numpy() / total_ns
    enough = min(int(np.searchsorted(share, _MOST_OF_IT, side="right")), len(share) - 1)
    ranks = [str(rank) for rank in by_rank["rank"].head(enough + 1)]
    held = float(share[enough])
    words = f"rank {ranks[0]} holds" if len(ranks) == 1 else f"ranks {', '.join(ranks)} hold"
    amount = units.percent(held, places=0) if held < 1 - _MIN_FRAC else "all"
    return f"{words} {amount} of it"
