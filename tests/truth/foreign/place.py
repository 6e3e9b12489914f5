"""Where inputs that are not ours lie: beside the checkout, or where the environment says."""

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]


def shared_folder() -> Path | None:
    """Return the folder of cases, traces and tables; None where it is absent."""
    folder = Path(os.environ.get("MESHSCOPE_FOREIGN") or PROJECT.parent / "shared")
    return folder if folder.is_dir() else None


def record() -> Path | None:
    """Return the published record of a production job; None where it is absent."""
    shared = shared_folder()
    traces = os.environ.get("MESHSCOPE_TRACES") or (shared and shared / "traces")
    path = Path(traces, "straggler_analysis", "trace-ST.parquet") if traces else None
    return path if path and path.is_file() else None
