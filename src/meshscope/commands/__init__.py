"""The verbs of the command line, one module each. Heavy imports live inside the functions."""

from .breakdown import breakdown
from .collectives import collectives
from .dashboard import dashboard
from .demo import demo
from .diagnose import diagnose
from .export import export
from .gate import gate
from .ingest import ingest
from .run import run

__all__ = [
    "breakdown",
    "collectives",
    "dashboard",
    "demo",
    "diagnose",
    "export",
    "gate",
    "ingest",
    "run",
]
