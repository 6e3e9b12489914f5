"""From a capture to tables, an exact account, and findings.

A name is imported when it is first used: whoever needs one part does not wait for the others.
"""

from typing import TYPE_CHECKING

from meshscope.probe.schema.first_use import at_first_use

if TYPE_CHECKING:
    from .findings.diagnosis import diagnose
    from .load.load import load_trace
    from .tables.results import Bar, Bubble, Cause, Diagnosis, Finding, Utilization
    from .tables.trace import Trace

__all__ = [
    "Bar",
    "Bubble",
    "Cause",
    "Diagnosis",
    "Finding",
    "Trace",
    "Utilization",
    "diagnose",
    "load_trace",
]

if not TYPE_CHECKING:  # A checker would take this for a module that has any name.
    __getattr__, __dir__ = at_first_use(
        globals(),
        dict.fromkeys(__all__, "tables.results")
        | {
            "diagnose": "findings.diagnosis",
            "load_trace": "load.load",
            "Trace": "tables.trace",
        },
    )
