"""What the category of a profiler event says about it, and what is done with the others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import numpy as np
import numpy.typing as npt

from ..kernel_names import ANNOTATION_NAME, CATEGORY_OF_EVENT, OPERATOR_NAME
from .events import AnyEvent, EventContent

LAUNCH = frozenset(
    f"{device}_{interface}"
    for device in ("cuda", "hip", "xpu", "privateuse1", "mtia", "hpu", "glow", "musa")
    for interface in ("runtime", "driver")
) | {"runtime"}
DRIVER = frozenset(name for name in LAUNCH if name.endswith("_driver"))
OPERATOR = frozenset({"cpu_op", "operator"})
HOST_NOTE, DEVICE_NOTE, PYTHON = "user_annotation", "gpu_user_annotation", "python_function"
OVERHEAD = "overhead"
LONG_PYTHON_US = 1000.0
"""Python functions shorter than this are not read: there are as many as all other events."""
USED = (
    frozenset(CATEGORY_OF_EVENT)
    | LAUNCH
    | OPERATOR
    | {
        HOST_NOTE,
        DEVICE_NOTE,
        PYTHON,
        OVERHEAD,
    }
)
UNUSED = frozenset(
    [
        "",
        "cpu_instant_event",
        "external_correlation",
        "cuda_event",
        "ac2g",
        "fwdbwd",
        "async_cpu_to_gpu",
        "async_gpu",
        "trace",
        "mtia_insight",
        "cuda_profiler_range",
    ]
)
"""Categories whose complete events say nothing that is used; every other one is counted."""

ASCEND = "ascend_"
"""Begins the categories that we give to device rows of the Ascend profiler."""
ASCEND_CALL = "privateuse1_runtime"
"""Category of calls of the Ascend profiler, of which the queue and the library have a process each."""
_STEP, _HCCL = "ProfilerStep#", "hcom_"
_OLD_OPERATOR = "operator"

IntArray = npt.NDArray[np.int64]


def category_of(event: AnyEvent) -> str:
    """Return the category of a complete event that names none, empty where nothing tells.

    The Ascend profiler gives its device rows a task type instead, and rows of its collective library neither.
    """
    content = cast(EventContent, event)
    if content.name.startswith(_STEP):
        return HOST_NOTE
    if content.name.startswith(_HCCL):
        return f"{ASCEND}communication"
    args = content.args
    task = "" if args is None or args.task_type is None else str(args.task_type).upper()
    if not task:
        return ""
    if re.search(r"WAIT|RECORD|NOTIFY|EVENT", task):
        return f"{ASCEND}sync"
    return f"{ASCEND}memcpy" if re.search(r"MEMCPY|DMA", task) else f"{ASCEND}kernel"


def one_of(listed: str) -> str:
    """Return the one that says most of several categories with commas between, as the trace format allows.

    >>> one_of("toplevel,Kernel"), one_of("a,b"), one_of("cpu_op")
    ('Kernel', 'a', 'cpu_op')
    """
    names = [name.strip() for name in listed.split(",")]
    known = [name for name in names if name.lower() in USED]
    # Whatever is traced of Python has that category, too.
    return min(known, key=lambda name: name.lower() == PYTHON, default=names[0])


class UnknownCategories:
    """Counts the events of categories that are not known."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()
        self._on_device: Counter[str] = Counter()

    def __contains__(self, category: str) -> bool:
        return category in self._count

    def names(self) -> set[str]:
        """Return the categories in lower case."""
        return {name.lower() for name in self._count}

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return how many events each has, and how many of them ran on a device."""
        return {name: (count, self._on_device[name]) for name, count in self._count.items()}

    def of_device(self, category: str, events: Sequence[AnyEvent], places: IntArray) -> IntArray:
        """Count the events of a category; return the places of those that ran on a device.

        A stream, or a device with a correlation, is what only work on a device has.
        """
        found = []
        for place in places.tolist():
            args = cast(EventContent, events[place]).args
            if args is not None and (
                args.stream is not None
                or (args.device is not None and args.correlation is not None)
            ):
                found.append(place)
        self._count[category] += len(places)
        self._on_device[category] += len(found)
        return np.array(found, dtype=np.int64)


class NoteNames:
    """Says which operators are annotations, by their names.

    The first profilers (category ``Operator``) know no annotations: there whatever has not the name
    of an operator is one. Later ones write those of the framework as operators at times.
    """

    def __init__(self) -> None:
        self._is_note: dict[tuple[str, int], bool] = {}

    def among(
        self, category: str, name: IntArray, rows: Sequence[EventContent]
    ) -> npt.NDArray[np.bool_]:
        """Return which operators of a category are annotations.

        Args:
            category: The category of all of them.
            name: The code of each name.
            rows: The events.
        """
        codes, first, place = np.unique(name, return_index=True, return_inverse=True)
        for code, row in zip(codes.tolist(), first.tolist(), strict=True):
            if (category, code) not in self._is_note:
                text = rows[row].name
                is_old = category.lower() == _OLD_OPERATOR and not OPERATOR_NAME.search(text)
                self._is_note[category, code] = is_old or bool(ANNOTATION_NAME.match(text))
        known = np.array([self._is_note[category, code] for code in codes.tolist()], dtype=bool)
        found: npt.NDArray[np.bool_] = known[place.reshape(-1)]
        return found


def long_python(events: Sequence[AnyEvent], places: IntArray) -> IntArray:
    """Return the places of the Python functions that last as long as one must to be kept."""
    kept = []
    for place in places.tolist():
        with suppress(ValueError):
            dur = bytes(cast(EventContent, events[place]).dur).strip(b'"')
            if float(dur) >= LONG_PYTHON_US:
                kept.append(place)
    return np.array(kept, dtype=np.int64)
