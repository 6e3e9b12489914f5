"""The history of a job as CSV: one row a run, as ``otava analyze`` and spreadsheets read it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from .facts import RunFacts

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NS_PER_S = 10**9
# A spreadsheet would run a cell that begins with one of these.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def history_csv(runs: Sequence[RunFacts], began_unix_ns: Sequence[int | None]) -> str:
    """Return ``time,run,step_p50_ns,step_p99_ns`` and one column a class of time; ns per step.

    Args:
        runs: The runs in the order of time.
        began_unix_ns: When each began. Where one is not known, or they are not in order, times stand for
            the order: one day a run from 1970-01-01 on.
    """
    classes = sorted({name for run in runs for name in run.classes_ns})
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    names = [f"{name}_ns" for name in classes]
    writer.writerow(["time", "run", "step_p50_ns", "step_p99_ns", *names])
    for time, run in zip(_times(began_unix_ns), runs, strict=True):
        parts = [run.classes_ns.get(name, 0.0) for name in classes]
        writer.writerow([time, _inert(run.name), run.p50_ns, run.p99_ns, *parts])
    return out.getvalue()


def _times(began_unix_ns: Sequence[int | None]) -> list[str]:
    known = [began for began in began_unix_ns if began is not None]
    if len(known) == len(began_unix_ns) and known == sorted(set(known)):
        moments = [_EPOCH + timedelta(seconds=began // _NS_PER_S) for began in known]
    else:
        moments = [_EPOCH + timedelta(days=at) for at in range(len(began_unix_ns))]
    return [moment.isoformat() for moment in moments]


def _inert(name: str) -> str:
    return f"'{name}" if name.startswith(_FORMULA) else name
