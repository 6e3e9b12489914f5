"""HolisticTraceAnalysis on our tables: its analyses without its parser."""

from .bridge import open

__all__ = ["open"]
