"""What files about memory are reduced to: a few moments, with the bytes by category, told from stacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from ...wording.limits import Limit

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "other")
"""Categories of the memory table, without their ending ``_bytes``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The allocator of one device at one time; None is not known."""

    time_ns: int
    allocated_bytes: int
    reserved_bytes: int | None = None
    peak_bytes: int | None = None
    """Highest allocated until then."""
    by_category: Mapping[str, int] | None = None
    """Bytes by category; what is missing to the allocated bytes was allocated without a stack."""
    capacity_bytes: int | None = None
    """What the device has for this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One allocation that failed for want of memory."""

    time_ns: int
    size_bytes: int
    free_bytes: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    place: str | None
    """Functions that asked, innermost first."""


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """What one file gave."""

    moments: list[Moment]
    """Begin, peak and end, as far as they differ and are known."""
    notes: list[Limit] = field(default_factory=list)
    """What is missing or assumed."""
    failures: list[Failure] = field(default_factory=list)


IntArray = npt.NDArray[np.int64]

UNKNOWN = len(CATEGORIES)
"""Category of what has no stack."""
_OTHER = CATEGORIES.index("other")
_SILENT = -1
"""Category of a frame that does not tell."""
_FRAMES_SHOWN = 3
_MOST_TEXT = 400
_BY_FRAME: tuple[tuple[str, Callable[[str, str], bool]], ...] = (
    ("optimizer", lambda name, file: "/optim/" in file and name != "zero_grad"),
    (
        "gradients",
        lambda name, file: (
            name in ("_engine_run_backward", "run_backward")
            or "torch::autograd::Engine" in name
            or (name == "backward" and "/autograd/" in file)
        ),
    ),
    (
        "parameters",
        lambda name, file: (
            name in ("reset_parameters", "load_state_dict", "_apply")
            or (name == "__init__" and "/nn/modules/" in file)
        ),
    ),
    (
        "activations",
        lambda name, file: name in ("forward", "_call_impl", "_wrapped_call_impl"),
    ),
)
"""What allocated a block, by the innermost frame of its stack that tells."""


def frames_of(entry: Mapping[str, Any]) -> list[Any]:
    """Return the stack of an allocation, innermost first; older snapshots keep it in a list."""
    frames = entry.get("frames")
    if frames is None:
        history = as_list(entry.get("history"))
        frames = history[0].get("frames") if history and isinstance(history[0], dict) else None
    return as_list(frames)


def categories(stacks: Sequence[Sequence[Any]]) -> IntArray:
    """Return what each allocation is for, by the innermost frame that tells.

    Args:
        stacks: The frames of each allocation, innermost first.

    Returns:
        Places in ``CATEGORIES``; ``UNKNOWN`` for one without a stack.
    """
    depth = np.fromiter(map(len, stacks), np.int64, len(stacks))
    found = np.where(depth > 0, _OTHER, UNKNOWN)
    # Allocations share their frames: what one tells is asked once.
    frames = list(chain.from_iterable(stacks))
    different = dict(zip(map(id, frames), frames, strict=True))
    numbers = {place: _number(frame) for place, frame in different.items()}
    by_frame = np.fromiter(map(numbers.__getitem__, map(id, frames)), np.int64, len(frames))
    owner = np.repeat(np.arange(len(stacks)), depth)
    tells = np.flatnonzero(by_frame != _SILENT)
    owners, first = np.unique(owner[tells], return_index=True)
    found[owners] = by_frame[tells[first]]
    return found


def place(frames: Sequence[Any]) -> str | None:
    """Return the innermost functions of a program, with file and line."""
    texts = [
        f"{frame.get('name', '?')} ({frame.get('filename', '?')}:{frame.get('line', '?')})"
        for frame in frames[:_FRAMES_SHOWN]
        if isinstance(frame, dict)
    ]
    return " < ".join(texts)[:_MOST_TEXT] or None


def as_list(value: Any) -> list[Any]:
    """Return a value that should be a list; empty if it is none."""
    return list(value) if isinstance(value, list | tuple) else []


def _number(frame: Any) -> int:
    if not isinstance(frame, dict):
        return _SILENT
    return _of_frame(str(frame.get("name", "")), str(frame.get("filename", "")))


@lru_cache(maxsize=1 << 16)
def _of_frame(name: str, filename: str) -> int:
    """Return the category that one frame tells; a job has few different ones."""
    file = filename.replace("\\", "/")
    for category, tells in _BY_FRAME:
        if tells(name, file):
            return CATEGORIES.index(category)
    return _SILENT
