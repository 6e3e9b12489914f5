"""What a stretch of time on the timeline is: categories, their names and their colours."""

from enum import IntEnum

from meshscope.probe.schema.terms import Axis, SpanKind


class Category(IntEnum):
    """One colour of the timeline; the value is the palette index of a tile."""

    IDLE = 0
    FORWARD = 1
    BACKWARD = 2
    RECOMPUTE = 3
    OPTIMIZER = 4
    COMM_TP = 5
    COMM_PP = 6
    COMM_DP = 7
    COMM_OTHER = 8
    HOST = 9
    COMPUTE = 10
    UNKNOWN = 11


LABELS: dict[Category, str] = {
    Category.IDLE: "idle or not recorded",
    Category.FORWARD: "forward",
    Category.BACKWARD: "backward",
    Category.RECOMPUTE: "recompute",
    Category.OPTIMIZER: "optimizer",
    Category.COMM_TP: "exposed TP communication",
    Category.COMM_PP: "exposed PP communication",
    Category.COMM_DP: "exposed DP communication",
    Category.COMM_OTHER: "exposed other communication",
    Category.HOST: "host and other",
    Category.COMPUTE: "device compute",
    Category.UNKNOWN: "unknown device work",
}

# Okabe-Ito, whose eight colours stay apart under the common colour blindnesses, greys, and a
# brown that stays apart from all of them. Device compute may look like forward: spans of compute
# are not drawn beside kernels.
COLOURS: dict[Category, str] = {
    Category.IDLE: "#F1F3F5",
    Category.FORWARD: "#0072B2",
    Category.BACKWARD: "#009E73",
    Category.RECOMPUTE: "#56B4E9",
    Category.OPTIMIZER: "#CC79A7",
    Category.COMM_TP: "#E69F00",
    Category.COMM_PP: "#D55E00",
    Category.COMM_DP: "#F0E442",
    Category.COMM_OTHER: "#4D4D4D",
    Category.HOST: "#ADB5BD",
    Category.COMPUTE: "#3B6FB6",
    Category.UNKNOWN: "#7F3B08",
}

OF_SPAN: dict[str, Category] = {
    SpanKind.FORWARD: Category.FORWARD,
    SpanKind.BACKWARD: Category.BACKWARD,
    SpanKind.BACKWARD_INPUT: Category.BACKWARD,
    SpanKind.BACKWARD_WEIGHT: Category.BACKWARD,
    SpanKind.RECOMPUTE: Category.RECOMPUTE,
    SpanKind.OPTIMIZER: Category.OPTIMIZER,
    SpanKind.GRAD_CLIP: Category.OPTIMIZER,
}
"""Span kinds that have a colour of their own; every other one is ``HOST``."""

OF_AXIS: dict[str, Category] = {
    Axis.TP: Category.COMM_TP,
    Axis.PP: Category.COMM_PP,
    Axis.DP: Category.COMM_DP,
}
"""Axes that have a colour of their own; every other one is ``COMM_OTHER``."""

COMMUNICATION = frozenset({*OF_AXIS.values(), Category.COMM_OTHER})
"""Categories of slices in which a rank waits or transfers."""


def palette() -> bytes:
    """Return the colours as RGB triples, indexed by category."""
    return b"".join(bytes.fromhex(COLOURS[category][1:]) for category in Category)
