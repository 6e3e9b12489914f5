"""A synthetic job as a run directory, with its truth beside the tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.manifest import write_json

from ..align.clocks.alignment import align
from ..load.ingested import find_ingested, write_ingested
from ..tables.table_folder import drafted
from ..tables.trace import Trace
from ..wording.message import message
from .faults import FaultKind
from .job import SyntheticJob
from .truth import Truth

TRUTH_NAME = "truth.json"
JOB_NAME = "synthetic.json"


def write_run(job: SyntheticJob, trace: Trace, truth: Truth | None, runs_dir: Path) -> Path:
    """Write the tables, the job and its truth; return the path of the run.

    Clocks that are off are aligned, as in every capture that is read. The manifest names
    ``synthetic`` as the origin, and the limits say that nothing was measured.

    Raises:
        ConfigError: The job was written there before.
        OSError: It cannot be written.
    """
    with drafted_job(job, truth, runs_dir) as draft:
        seen = align(trace) if job.of_kind(FaultKind.CLOCK_SKEW) else trace
        return write_ingested(seen, draft, job.key(), name=trace.origin, source_bytes=0)


@contextmanager
def drafted_job(job: SyntheticJob, truth: Truth | None, runs_dir: Path) -> Iterator[Path]:
    """Give a hidden folder for the run of a job, with the job and its truth in it.

    Raises:
        ConfigError: The job was written there before.
        OSError: It cannot be written.
    """
    known = find_ingested(runs_dir, job.key())
    if known is not None:
        raise ConfigError(
            message("refused.written_before"),
            where=str(known),
            remedy=message("advice.use_or_remove"),
        )
    with drafted(runs_dir) as draft:
        write_json(draft / JOB_NAME, job.to_json())
        if truth is not None:
            write_json(draft / TRUTH_NAME, truth.to_json())
        yield draft
