"""The verbs of the command line, one module each. Heavy imports live inside the functions."""

from .agent import agent
from .arm import arm
from .attach import attach
from .balance import balance
from .breakdown import breakdown
from .collectives import collectives
from .compact import compact
from .compare import compare
from .critical_path import critical_path
from .dashboard import dashboard
from .demo import demo
from .diagnose import diagnose
from .doctor import doctor
from .export import export
from .gate import gate, gate_baseline
from .gate_ab import gate_ab
from .gate_noise import gate_calibrate, gate_history, gate_selftest
from .ingest import ingest
from .kernels import kernels
from .plan import plan
from .report import report
from .run import run
from .stragglers import stragglers
from .summarize import summarize
from .topology import topology
from .watch import watch
from .whatif import whatif

__all__ = [
    "agent",
    "arm",
    "attach",
    "balance",
    "breakdown",
    "collectives",
    "compact",
    "compare",
    "critical_path",
    "dashboard",
    "demo",
    "diagnose",
    "doctor",
    "export",
    "gate",
    "gate_ab",
    "gate_baseline",
    "gate_calibrate",
    "gate_history",
    "gate_selftest",
    "ingest",
    "kernels",
    "plan",
    "report",
    "run",
    "stragglers",
    "summarize",
    "topology",
    "watch",
    "whatif",
]
