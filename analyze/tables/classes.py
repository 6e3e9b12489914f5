"""The classes of the ledger: what an instant of a rank's step can be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.terms import Axis, SpanKind

COMPUTE_CLASSES = ("forward", "backward", "recompute", "optimizer", "compute")
"""``compute`` is device work that no annotation explains."""
UNSEPARATED = "compute_or_communication"
"""Spans of a capture that holds no communication: it may hide in them."""
UNSPLIT = "exposed_sums"
"""Exposed communication of which only sums are known: waiting and transfer of all axes; and that of
which no wire time is known, because its peers are not in the capture or nothing says which they are."""
LEAST_SEPARATED = 0.001
"""Share of the step from which on such time is named, and sums over wires or waits are unknown: as
little as a report shows."""
WAIT_CLASSES = tuple(f"exposed_{axis.value}_wait" for axis in Axis)
WIRE_CLASSES = tuple(f"exposed_{axis.value}_wire" for axis in Axis)
STALLS = ("data_load", "gc", "checkpoint", "offload", "host_blocked", "other")
"""Host time that is a cause of its own: no rank is called slow for it."""
HOST_CLASSES = ("exposed_unknown", "exposed_memcpy", *STALLS)
UNATTRIBUTED = "unattributed"
CLASSES = (
    *COMPUTE_CLASSES,
    UNSEPARATED,
    *WIRE_CLASSES,
    *WAIT_CLASSES,
    UNSPLIT,
    *HOST_CLASSES,
    UNATTRIBUTED,
)
"""All classes of the ledger, in the order of the waterfall."""
REFINED = ("clock", "memory_bound")
"""Classes that samples of the devices take out of computing afterwards (``refinement``)."""

CODE = {name: code for code, name in enumerate(CLASSES)}
"""Position of each class in CLASSES, which stands for it in tables."""
SPAN_CLASS: dict[str, str] = {
    SpanKind.BACKWARD_INPUT.value: "backward",
    SpanKind.BACKWARD_WEIGHT.value: "backward",
    SpanKind.GRAD_CLIP.value: "optimizer",
}
"""Class of the span kinds that are not a class themselves."""


def compute_code(code: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which class codes are compute."""
    return np.isin(code, [CODE[name] for name in COMPUTE_CLASSES])


def code_among(code: npt.NDArray[np.int64], codes: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return which codes of classes are among some; faster than for numbers of any size."""
    table = np.zeros(len(CLASSES), dtype=bool)
    table[list(codes)] = True
    return table[code]


def class_code(name: str) -> int:
    """Return the code of a class."""
    return CODE[name]
