"""Where the operations of an NDTimeline job lie: the parquet file behind a path."""

from __future__ import annotations

from glob import has_magic
from pathlib import Path

from meshscope.probe.schema.errors import MeshscopeError, TraceFormatError
from meshscope.probe.schema.manifest import MANIFEST_NAME, read_json
from meshscope.probe.schema.rundir import is_run_directory

from ...load.ingested import is_ingested
from ...read.detect import classify
from ...read.formats import NDTIMELINE
from ...read.input_paths import find_files
from ...read.source_files import content_key, source_files
from ...wording.message import message

_NEEDED = message("advice.published_metrics")


def find_job(path: Path) -> Path:
    """Return the trace file of the job that a file, a folder, a glob or an ingested run stands for.

    The tables of an ingested run have rounded times, so its source is read again; its
    content must be what was ingested.

    Raises:
        TraceFormatError: There is no job, there are several, or the source has changed.
    """
    if not path.exists() and not has_magic(str(path)):
        raise TraceFormatError(
            message("refused.no_such_path"), where=str(path), remedy=message("advice.path")
        )
    if is_run_directory(path):
        return find_job(_source(path))
    files = find_files(path)
    jobs = [file for file in files if classify(file) == NDTIMELINE]
    if not jobs:
        raise TraceFormatError(
            message("refused.no_ndtimeline_job"), where=str(path), remedy=_NEEDED
        )
    if len(jobs) > 1:
        raise TraceFormatError(
            message("refused.holds_jobs", jobs=len(jobs), files=[file.name for file in jobs[:4]]),
            where=str(path),
            remedy=message("advice.one_parquet_file"),
        )
    return jobs[0].path


def _source(run: Path) -> Path:
    """Return what an ingested run was made from."""
    if not is_ingested(run):
        raise TraceFormatError(
            message("refused.not_ndtimeline_job"), where=str(run), remedy=_NEEDED
        )
    section = read_json(run / MANIFEST_NAME)["ingested"]
    if section.get("origin") != "ndtimeline":
        raise TraceFormatError(
            message("refused.made_from_other", origin=section.get("origin")),
            where=str(run),
            remedy=_NEEDED,
        )
    source = Path(str(section.get("source")))
    try:
        is_same = content_key(source_files([source]))[0] == section.get("content_key")
    except (MeshscopeError, OSError):
        is_same = False
    if not is_same:
        raise TraceFormatError(
            message("refused.source_gone", source=source),
            where=str(run),
            remedy=message("advice.file_of_job"),
        )
    return source
