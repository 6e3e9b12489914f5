"""What a check is given, and how it tells what it found."""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SAME = 1e-5
"""Relative difference of losses that is no difference."""


class NotHere(Exception):  # noqa: N818 - a reason to skip, not an error
    """A check cannot be made on this machine; the message says why."""


@dataclass
class Context:
    """The device to check, places to write to, and what was found so far.

    Every figure is on disk as soon as it is known, so a check that crashes or hangs
    still tells what it had found by then.
    """

    device: str
    """``cuda`` or ``cpu``."""
    out: Path
    """What is kept."""
    work: Path
    """Scratch, private to this check."""
    seconds: float
    """What the check should take at most."""
    figures: dict[str, Any] = field(default_factory=dict)
    """By name; the name ends in the unit."""
    problems: list[str] = field(default_factory=list)
    """What is not as it has to be."""
    skipped: str = ""

    def figure(self, name: str, value: Any) -> Any:
        """Note a figure and return it."""
        self.figures[name] = value
        self.save()
        return value

    def expect(self, holds: bool, otherwise: str) -> None:
        """Note a problem unless something holds; the check goes on."""
        if not holds:
            self.problems.append(otherwise)
            self.save()

    def need_cuda(self) -> None:
        """Skip on another device.

        Raises:
            NotHere: The device is no GPU.
        """
        if self.device != "cuda":
            raise NotHere("needs a GPU")

    def need_packages(self, *names: str) -> None:
        """Skip where a package is missing.

        Raises:
            NotHere: It is; the message says which.
        """
        missing = [name for name in names if not _is_there(name)]
        if missing:
            raise NotHere(f"needs {', '.join(missing)}")

    def save(self) -> None:
        """Write everything that was found so far."""
        found = {"figures": self.figures, "problems": self.problems, "skipped": self.skipped}
        draft = self.work / "result.draft"
        draft.write_text(json.dumps(found, default=str), encoding="utf-8")
        os.replace(draft, self.work / "result.json")


def _is_there(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def same_losses(context: Context, name: str, bare: list[float], watched: list[float]) -> None:
    """Expect the losses of two runs to agree; a device may add floats in another order."""
    worst = max(abs(a - b) / max(abs(a), 1e-12) for a, b in zip(bare, watched, strict=True))
    context.figure(f"{name}_loss_difference_rel", worst)
    context.expect(worst <= _SAME, f"{name}: losses with the probe differ by {worst:.2g}")


def microseconds(times_ns: list[int]) -> dict[str, float]:
    """Return the least, the median and the 99th percentile of times, in us."""
    ordered = sorted(times_ns)
    last = len(ordered) - 1
    picks = {"min": 0, "median": last // 2, "p99": round(0.99 * last)}
    return {name: round(ordered[place] / 1e3, 3) for name, place in picks.items()}
