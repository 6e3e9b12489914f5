"""Which layers each pipeline stage should have: exact search, priced by the replay."""

from .proposals import Balance, Priced, balance

__all__ = ["Balance", "Priced", "balance"]
