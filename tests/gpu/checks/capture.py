"""What the probe wrote, read with numpy alone: the ring and the manifest of a rank."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshscope import probe
from meshscope.probe.schema.records import SPAN_CODES
from meshscope.probe.schema.ring import RING_NAME, read_ring
from meshscope.probe.schema.terms import SpanKind

from .context import Context


@dataclass
class RankCapture:
    """One rank's newest records by name, and its manifest."""

    records: dict[str, Any]
    manifest: dict[str, Any]

    @property
    def annotations(self) -> dict[str, Any]:
        """Facts that the probe noted."""
        return dict(self.manifest.get("annotations") or {})

    def count(self, name: str) -> int:
        """Return how many records of a name there are."""
        return len(self.records.get(name, ()))

    def errors(self) -> dict[str, int]:
        """Return the counters of the probe's own errors, without that of a missing Arrow."""
        counters = self.manifest.get("counters") or {}
        found = {name: n for name, n in counters.items() if name.endswith("_errors")}
        try:
            import nanoarrow  # noqa: F401
        except ImportError:
            found.pop("writer_errors", None)
        return found

    def device_spans(self, *kinds: SpanKind) -> dict[str, Any]:
        """Return host and device times of the spans that have both, ns, by host start.

        Args:
            kinds: Kinds of spans; all if none is given.
        """
        spans, times = self.records.get("span"), self.records.get("device_time")
        if spans is None or times is None:
            empty = np.zeros(0, dtype=np.int64)
            return dict.fromkeys(("start_ns", "dur_ns", "device_start_ns", "device_dur_ns"), empty)
        if kinds:
            spans = spans[np.isin(spans["kind"], [SPAN_CODES[kind] for kind in kinds])]
        _, left, right = np.intersect1d(spans["slot_seq"], times["event_id"], return_indices=True)
        order = np.argsort(spans["start_ns"][left])
        spans, times = spans[left][order], times[right][order]
        return {
            "start_ns": spans["start_ns"],
            "dur_ns": spans["dur_ns"],
            "device_start_ns": times["start_ns"],
            "device_dur_ns": times["dur_ns"],
        }


def read_rank(run_path: Path, rank: int = 0) -> RankCapture:
    """Read what a rank recorded last.

    Raises:
        OSError: It recorded nothing.
        MeshscopeError: The ring is damaged.
    """
    folder = run_path / f"rank{rank:05d}"
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return RankCapture(read_ring(folder / RING_NAME).records, manifest)


@contextmanager
def recorded(run_path: Path, **settings: Any) -> Iterator[None]:
    """Attach the probe for the body of a ``with`` statement, without a control socket.

    Raises:
        RuntimeError: It could not be attached.
    """
    if probe.attach(run_path, probe.ProbeConfig(**{"control": 0, **settings})) is None:
        raise RuntimeError("the probe could not be attached; see the log")
    try:
        yield
    finally:
        probe.detach()


def no_errors(context: Context, capture: RankCapture) -> None:
    """Expect that the probe counted no error of its own."""
    errors = capture.errors()
    context.expect(not errors, f"errors of the probe were counted: {errors}")
