"""From a capture to tables, an exact account, and findings."""

from .diagnose import diagnose
from .load import load_trace
from .results import Bar, Bubble, Cause, Diagnosis, Finding, Utilization
from .trace import Trace

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
