"""Changes as a user writes them: ``--fix rank=5``, ``--set microbatches=64``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.terms import Axis, ScheduleKind

PLACES = ("rank", "stage", "host", "group", "link", "axis")
CAUSES = (
    "stragglers",
    "clock_throttle",
    "stage_imbalance",
    "sequence_imbalance",
    "jitter",
    "gc_pause",
    "data_stall",
    "checkpoint_stall",
    "host_stall",
    "slow_link",
)
SETTINGS = ("microbatches", "schedule", "chunks", "layers", "compute")
_FACTOR = re.compile(r"(\d+(?:\.\d+)?)x")


@dataclass(frozen=True, slots=True)
class Change:
    """One change: what is repaired, or what is set to what."""

    name: str
    """A place, a cause, a setting, or ``link.<axis>``."""
    value: str
    """As written; empty for a cause."""
    is_fix: bool

    def factor(self) -> float:
        """Return the speed-up of a value such as ``2x``.

        Raises:
            ConfigError: It is not written so, or not positive.
        """
        match = _FACTOR.fullmatch(self.value)
        if match is None or float(match[1]) <= 0:
            raise _bad(self, "a speed-up such as 2x or 1.1x")
        return float(match[1])

    def whole(self) -> int:
        """Return a whole number.

        Raises:
            ConfigError: It is none, or not positive.
        """
        least = 0 if self.name in PLACES else 1
        if not self.value.isdecimal() or int(self.value) < least:
            raise _bad(self, f"a whole number from {least} on")
        return int(self.value)

    def layers(self) -> list[int]:
        """Return the layers of each stage.

        Raises:
            ConfigError: It is no list of whole numbers.
        """
        parts = self.value.split(",")
        if not all(part.strip().isdecimal() for part in parts):
            raise _bad(self, "layers per stage such as 9,8,8,7")
        return [int(part) for part in parts]

    def schedule(self) -> ScheduleKind:
        """Return the schedule of that name.

        Raises:
            ConfigError: There is none.
        """
        try:
            return ScheduleKind(self.value)
        except ValueError:
            names = ", ".join(kind.value for kind in ScheduleKind if kind.value != "other")
            raise _bad(self, f"one of {names}") from None


def parse_changes(fixes: Sequence[str], settings: Sequence[str]) -> list[Change]:
    """Return the changes that the options name.

    Raises:
        ConfigError: One is not known, or none is given.
    """
    changes = [_fix(text) for text in fixes] + [_setting(text) for text in settings]
    if not changes:
        raise ConfigError(
            "nothing to change",
            where="whatif",
            remedy="Give --fix rank=5, --fix stage=3, --fix gc_pause, --set microbatches=64, "
            "--set schedule=zb-h1, --set layers=9,8,8,7 or --set link.dp=2x",
        )
    return changes


def _fix(text: str) -> Change:
    name, _, value = text.partition("=")
    name, value = name.strip(), value.strip()
    if (name in PLACES and value) or (name in CAUSES and not value):
        return Change(name, value, is_fix=True)
    known = ", ".join([*(f"{place}=…" for place in PLACES), *CAUSES])
    raise ConfigError(f"cannot fix {text!r}", where="--fix", remedy=f"Known: {known}")


def _setting(text: str) -> Change:
    name, _, value = text.partition("=")
    name, value = name.strip(), value.strip()
    axes = [f"link.{axis.value}" for axis in Axis if axis is not Axis.OTHER]
    if value and (name in SETTINGS or name in axes):
        return Change(name, value, is_fix=False)
    known = ", ".join([*(f"{setting}=…" for setting in SETTINGS), *(f"{axis}=2x" for axis in axes)])
    raise ConfigError(f"cannot set {text!r}", where="--set", remedy=f"Known: {known}")


def _bad(change: Change, wanted: str) -> ConfigError:
    option = "--fix" if change.is_fix else "--set"
    return ConfigError(
        f"{change.name}={change.value} is not valid", where=option, remedy=f"Give {wanted}"
    )
