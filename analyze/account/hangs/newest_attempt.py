"""What the newest attempt of a job issued: what broke off in one before was taken up again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ...tables.trace import Trace


def rows_of_newest_attempt(trace: Trace, name: str) -> pd.DataFrame:
    """Return the operations of the newest attempt in a table, each once; all of a job of one attempt.

    Args:
        trace: The capture.
        name: ``collective`` or ``p2p``.
    """
    frame = trace.frame(name)
    if trace.row_count("attempt") > 1:
        # Not by the step: that in which an attempt broke off has the number of the first of the next one.
        begun_ns = trace.frame("recording").groupby("rank")["start_ns"].min()
        frame = frame[~(frame["issue_ns"] < frame["rank"].map(begun_ns))]
    frame = frame.drop_duplicates(["rank", "event_id"], keep="last")
    names = [column for column in ("group_id", "kind", "direction") if column in frame]
    return frame.astype(dict.fromkeys(names, str))


def newest_attempt(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return where the newest attempt of the job begins on a rank; {} where there was one only.

    Its ``recorded`` is false where the rank recorded in earlier ones only.
    """
    found = manifest.get("newest_attempt")
    return found if isinstance(found, dict) else {}
