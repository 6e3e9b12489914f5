"""One colour for each class of time, in every picture.

Okabe-Ito: its colours stay apart under the common colour blindnesses.
"""

from __future__ import annotations

from collections.abc import Iterable

from .timeline.categories import COLOURS, Category

_USEFUL, _OVERHEAD, _LOST, _WAITED, _OPEN = "#0072B2", "#56B4E9", "#E69F00", "#D55E00", "#8A94A0"
_UNKNOWN = COLOURS[Category.UNKNOWN]
_MEANINGS = {
    _USEFUL: "compute",
    _OVERHEAD: "compute, slower than it could be",
    _LOST: "transfers and host work",
    _WAITED: "waiting for other ranks",
    _UNKNOWN: "device work of unknown kind",
    _OPEN: "idle or not recorded",
}
_COLOUR = {
    "kernel_inefficiency": _OVERHEAD,
    "contention": _OVERHEAD,
    "clock": _OVERHEAD,
    "memory_bound": _OVERHEAD,
    "exposed_unknown": _UNKNOWN,
    "unattributed": _OPEN,
}
HATCHED = frozenset({_WAITED})
"""Colours that are drawn hatched: waiting is distinguished from work on paper and by every eye."""
_COMPUTE = ("useful", "forward", "backward", "recompute", "optimizer", "compute")

MEMORY_COLOURS = {
    "parameters": "#0072B2",
    "gradients": "#009E73",
    "optimizer": "#CC79A7",
    "activations": "#E69F00",
    "logits": "#D55E00",
    "other": "#56B4E9",
    "not separated": "#8A94A0",
}
"""Term and colour; recorded activations hold the logits, ``other`` are buffers."""


def class_colour(name: str) -> str:
    """Return the colour of a class of time."""
    if name in _COMPUTE:
        return _USEFUL
    if name.endswith("_wait"):
        return _WAITED
    return _COLOUR.get(name, _LOST)


def class_meanings(names: Iterable[str]) -> dict[str, str]:
    """Return what each colour of some classes stands for, by colour."""
    present = {class_colour(name) for name in names}
    return {colour: words for colour, words in _MEANINGS.items() if colour in present}
