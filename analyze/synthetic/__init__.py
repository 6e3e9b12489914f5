"""Synthetic jobs with known answers: captures of any layout, schedule and faults."""

from ..tables.capabilities import SYNTHETIC
from ..tables.trace import Trace
from .faults import Fault, FaultKind, parse_fault
from .job import Costs, SyntheticJob
from .record import record
from .run_directory import write_run
from .simulate import Simulation, make_simulation
from .truth import FaultTruth, Truth, truth_of

__all__ = [
    "SYNTHETIC",
    "Costs",
    "Fault",
    "FaultKind",
    "FaultTruth",
    "Simulation",
    "SyntheticJob",
    "Truth",
    "generate",
    "make_simulation",
    "parse_fault",
    "record",
    "truth_of",
    "write_run",
]


def generate(job: SyntheticJob) -> tuple[Trace, Truth]:
    """Return the capture of a job and the costs of its faults.

    Raises:
        ConfigError: The schedule does not fit the layout.
    """
    return record(make_simulation(job)), truth_of(job)
