"""Annotations, else Python functions, that mean a span of a known kind: the optimizer, data, checkpoints."""

from __future__ import annotations

import re

import numpy as np

from meshscope.probe.schema.terms import SpanKind

from ..note_names import DATA_NAMES
from .event_columns import Events, IntArray, RoledEvents

_SPANS = (
    (SpanKind.OPTIMIZER, (re.compile(r"Optimizer\.step#"),)),
    (
        SpanKind.DATA_LOAD,
        (
            re.compile(r"enumerate\(DataLoader\)"),
            re.compile(rf"(?:#+ |\w+\.)?{DATA_NAMES}(?: #+)?$", re.IGNORECASE),
        ),
    ),
    (
        SpanKind.CHECKPOINT,
        (
            re.compile(
                r"(?:save[ _-]?checkpoint|checkpoint[ _-]?sav(?:e|ing))(?:$|[ _-]?\d)",
                re.IGNORECASE,
            ),
        ),
    ),
)
"""Annotations of each kind; where a file has the first, the next are around or inside of it."""
_FUNCTIONS = {
    SpanKind.DATA_LOAD: re.compile(
        r"(?:[A-Z]:)?[^:]*(?:data[_-]?(?:load|set|pipe|iter)|prefetch|nvidia/dali|webdataset|ray/data"
        r"|streaming/base)[^:]*\.py\(\d+\): (?:__next__|__iter__|_?next|_next_data|(?:_?get_)?next_batch|get_batch)$",
        re.IGNORECASE,
    ),
    SpanKind.CHECKPOINT: re.compile(
        r".*torch[\\/]serialization\.py\(\d+\): save$"
        r"|.*torch[\\/]distributed[\\/]checkpoint[\\/]state_dict_saver\.py\(\d+\): (?:async_)?save$"
        r"|.*\.py\(\d+\): _?save_checkpoint$"
    ),
}
"""Python functions of the same kinds: the iterators of loaders, and what writes checkpoints."""


def recognised_spans(roles: RoledEvents) -> list[tuple[SpanKind, Events]]:
    """Return the annotations that mean a span kind; where there are none of data or checkpoints, the functions.

    The optimizer is device work: its device-side annotation is preferred to the
    host-side one, which covers the launches only.
    """
    found = []
    for kind, patterns in _SPANS:
        codes = next(filter(None, map(roles.names_like, patterns)), {})
        on_device = roles.device_note.named(codes if kind == SpanKind.OPTIMIZER else ())
        events = on_device if len(on_device) else roles.host_note.named(codes)
        found.append((kind, events if len(events) else _functions(roles, kind)))
    return found


def _functions(roles: RoledEvents, kind: SpanKind) -> Events:
    """Return the functions of a kind that a thread of the training program was in, without those inside others.

    A function of a background thread stops nobody.
    """
    pattern = _FUNCTIONS.get(kind)
    is_known = pattern is not None and len(roles.python)
    own = roles.python.named(roles.names_like(pattern) if pattern and is_known else ())
    if not len(own):
        return own
    own = own.at(np.flatnonzero(np.isin(own.thread, _working_threads(roles))))
    own = own.at(np.lexsort((-own.dur, own.start, own.thread)))
    kept = np.ones(len(own), dtype=bool)
    for thread in np.unique(own.thread).tolist():
        rows = np.flatnonzero(own.thread == thread)
        reached = np.maximum.accumulate(own.time.end[rows])
        kept[rows[1:]] = own.start[rows[1:]] >= reached[:-1]
    return own.at(np.flatnonzero(kept))


def _working_threads(roles: RoledEvents) -> IntArray:
    """Return the threads that launch device work; of a file without it, those with operators."""
    parts = [np.unique(part.thread) for part in roles.launch.parts() if len(part)]
    if not parts:
        parts = [np.unique(part.thread) for part in roles.operator.parts() if len(part)]
    return np.unique(np.concatenate(parts)) if parts else np.unique(roles.python.thread)
