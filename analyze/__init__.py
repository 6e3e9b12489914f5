"""From a capture to tables, an exact account, and findings.

A name is imported when it is first used: whoever needs one part does not wait for the others.
"""

from typing import TYPE_CHECKING

from meshscope.probe.schema.first_use import at_first_use

if TYPE_CHECKING:
    from .capture.trace import Trace
    from .diagnosis import diagnose
    from .opening.load import load_trace
    from .results import Bar, Bubble, Cause, Diagnosis, Finding, Utilization

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
        dict.fromkeys(__all__, "results")
        | {"diagnose": "diagnosis", "load_trace": "opening.load", "Trace": "capture.trace"},
    )
