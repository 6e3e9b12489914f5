"""Opening what the user names, with what the user states about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from meshscope.analyze.wording.command_line import command_line
from meshscope.probe.schema.message import message

from .options import DEFAULT_RUNS
from .output import say
from .progress import reading_progress
from .starting import keep_freed_memory, take_tables_from_the_c_library

if TYPE_CHECKING:
    from meshscope.analyze.align.topology.stated import StatedTopology
    from meshscope.analyze.explain.run_account import Account
    from meshscope.analyze.tables.results import Finding
    from meshscope.analyze.tables.trace import Trace

_MOST_WORKERS = 16
"""Each process of the reading pool takes about 170 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a verb works on, and how that was named: the next command is to open the same."""

    trace: Trace
    """The capture, with what is stated about it."""
    stated: StatedTopology | None
    topology_file: Path | None
    runs: Path
    steps: str | None = None

    @property
    def is_run(self) -> bool:
        """Return whether it is a run directory, as all is that could be kept."""
        from meshscope.probe.schema.rundir import is_run_directory

        return is_run_directory(self.trace.path)

    def ends(self) -> tuple[Finding, ...]:
        """Return how a job ended that broke off: who did not arrive, who died, what ended them all."""
        from meshscope.analyze.findings.rules.ended import ends_of

        return ends_of(self.trace)

    def measured(self) -> Account:
        """Return the account of the steps.

        Raises:
            NoStepsError: There are none; of a job that broke off it says how first.
        """
        from meshscope.analyze.findings.measure import NoStepsError, measure

        try:
            return measure(self.trace)
        except NoStepsError as error:
            if not (ends := self.ends()):
                raise
            what = message("refused.ended", claim=ends[0].claim, then=error.what.capitalize())
            advice = command_line("diagnose", self.trace.path)
            raise NoStepsError(
                what, where=error.where, remedy=message("advice.more", advice=advice)
            ) from error

    def next_command(self, verb: str, *options: object) -> str:
        """Return the line that names the next command on the same capture."""
        named: list[object] = [*options]
        if self.topology_file is not None:
            named += ["--topology", self.topology_file]
        if self.steps is not None:
            named += ["--steps", self.steps]
        if not self.is_run and self.runs != DEFAULT_RUNS:
            named += ["--runs", self.runs]
        return next_command(verb, self.trace.path, *named)


def open_trace(
    path: Path,
    topology_file: Path | None = None,
    runs: Path = DEFAULT_RUNS,
    steps: str | None = None,
    *,
    most_rows: int | None = None,
) -> Opened:
    """Open a capture or some of its steps, and apply to it what the topology file states.

    Traces of other tools are ingested into the folder of runs, and read from there the
    next time. What was typed is read first: a slip in it shows before a long read. Of a run that is larger
    than ``most_rows`` records steps are left out.

    Raises:
        MeshscopeError: One of the two cannot be read, they exclude each other, or there are no
            such steps.
        OSError: A file cannot be read.
    """
    from meshscope.analyze.align.topology.file import load_topology
    from meshscope.analyze.align.topology.stated import apply_topology
    from meshscope.analyze.load.ingest import Keeping, open_run
    from meshscope.analyze.load.ingested import is_ingested
    from meshscope.analyze.tables.part import StepRange, of_steps

    stated = None if topology_file is None else load_topology(topology_file)
    chosen = None if steps is None else StepRange.parse(steps)
    if most_rows is None:
        take_tables_from_the_c_library()
    if most_rows is None and is_ingested(path):
        # It is read into its place: what its tables leave is for what is made of them.
        keep_freed_memory()
    with reading_progress(_bytes_of(path)) as on_bytes:
        keeping = Keeping(runs_dir=runs, workers=workers(), on_bytes=on_bytes, most_rows=most_rows)
        trace = open_run(path, keeping, say, chosen)
    if most_rows is None:
        keep_freed_memory()
    if stated is not None:
        trace = apply_topology(trace, stated)
    if chosen is not None:
        trace = of_steps(trace, chosen)
    return Opened(trace=trace, stated=stated, topology_file=topology_file, runs=runs, steps=steps)


def _bytes_of(path: Path) -> int:
    """Return how much there is to be read."""
    from meshscope.analyze.read.source_files import size_of
    from meshscope.probe.reader.rank_parts import bytes_of_run
    from meshscope.probe.schema.rundir import is_run_directory

    return bytes_of_run(path) if is_run_directory(path) else size_of(path)


def workers() -> int:
    """Return how many processes read traces at the same time."""
    from meshscope.analyze.tables.threads import usable_cpus

    return min(usable_cpus(), _MOST_WORKERS)


def next_command(*words: object) -> str:
    """Return the line that names the next command: a verb of meshscope and its arguments."""
    return f"\nNext: {command_line(*words)}"
