"""A pass of a microbatch through a stage, and the order in which a rank does its passes."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class PassKind(StrEnum):
    """What a pass computes; the letters are those of torch's pipeline runtime."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHT = "W"


class Pass(NamedTuple):
    """One microbatch through one stage, in one direction."""

    kind: PassKind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


Order = tuple[Pass, ...]
"""The passes of one rank in one step, in program order."""
