"""Changes as a user writes them: ``--fix rank=5``, ``--set microbatches=64``."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.terms import Axis, ScheduleKind

from ...formulas.schedules import SCHEDULES
from ...wording.message import Message, message

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
    "unrecorded_delay",
    "slow_link",
)
TRANSFERS = tuple(
    f"{kind}.{axis.value}"
    for kind in ("dtype", "bucket", "hierarchy")
    for axis in Axis
    if axis is not Axis.OTHER
)
"""Changes of the transfers of an axis: element type, gradient buckets, sums in two levels."""
SETTINGS = ("microbatches", "schedule", "chunks", "layers", "compute")
_FACTOR = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)x")
_WHOLE = re.compile(r"[0-9]{1,9}")
MOST_FACTOR = 1000.0
"""A speed-up beyond it, or its inverse, is a slip of the pen."""


class Change(msgspec.Struct, frozen=True):
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
        if match is None or not 1 / MOST_FACTOR <= float(match[1]) <= MOST_FACTOR:
            raise _bad(self, message("advice.speed_up", most=f"{MOST_FACTOR:.0f}x"))
        return float(match[1])

    def whole(self) -> int:
        """Return a whole number.

        Raises:
            ConfigError: It is none, or not positive.
        """
        least = 0 if self.name in PLACES else 1
        if not _WHOLE.fullmatch(self.value) or int(self.value) < least:
            raise _bad(self, message("advice.whole_number", least=least))
        return int(self.value)

    def layers(self) -> tuple[list[int] | None, list[int]]:
        """Return the layers of each stage now, if they are stated, and those wanted.

        Raises:
            ConfigError: They are no lists of whole numbers.
        """
        now, arrow, then = self.value.rpartition("->")
        return (self._list(now) if arrow else None), self._list(then)

    def _list(self, text: str) -> list[int]:
        parts = [part.strip() for part in text.split(",")]
        if not all(map(_WHOLE.fullmatch, parts)):
            raise _bad(self, message("advice.layers_by_stage"))
        return [int(part) for part in parts]

    def schedule(self) -> ScheduleKind:
        """Return the schedule of that name.

        Raises:
            ConfigError: There is none.
        """
        if self.value not in SCHEDULES:
            raise _bad(self, message("advice.one_of", known=list(SCHEDULES)))
        return ScheduleKind(self.value)


def parse_changes(fixes: Sequence[str], settings: Sequence[str]) -> list[Change]:
    """Return the changes that the options name.

    Raises:
        ConfigError: One is not known or given twice, or none is given.
    """
    changes = [_fix(text) for text in fixes] + [_setting(text) for text in settings]
    if not changes:
        raise ConfigError(
            message("refused.no_change"), where="whatif", remedy=message("advice.change")
        )
    seen: set[tuple[str, str]] = set()
    for change in changes:
        key = (change.name, change.value if change.is_fix else "set")
        if key in seen:
            raise ConfigError(
                message("refused.given_twice", name=change.name),
                where="--fix" if change.is_fix else "--set",
                remedy=message("advice.give_once"),
            )
        seen.add(key)
    return changes


def _fix(text: str) -> Change:
    name, _, value = text.partition("=")
    name, value = name.strip(), value.strip()
    if name in ("rank", "stage") and _WHOLE.fullmatch(value):
        value = str(int(value))
    if (name in PLACES and value) or (name in CAUSES and not value):
        return Change(name, value, is_fix=True)
    known = [*(f"{place}=…" for place in PLACES), *CAUSES]
    raise ConfigError(
        message("refused.fix", text=text),
        where="--fix",
        remedy=message("advice.known", known=known),
    )


def _setting(text: str) -> Change:
    name, _, value = text.partition("=")
    name, value = name.strip(), value.strip()
    axes = [f"link.{axis.value}" for axis in Axis if axis is not Axis.OTHER]
    if value and (name in SETTINGS or name in axes or name in TRANSFERS):
        return Change(name, value, is_fix=False)
    of_transfers = ("dtype.dp=bf16", "bucket.dp=25MB", "hierarchy.dp=on")
    known = [*(f"{name}=…" for name in SETTINGS), *(f"{axis}=2x" for axis in axes), *of_transfers]
    raise ConfigError(
        message("refused.setting", text=text),
        where="--set",
        remedy=message("advice.known", known=known),
    )


def _bad(change: Change, wanted: Message) -> ConfigError:
    option = "--fix" if change.is_fix else "--set"
    return ConfigError(
        message("refused.value", name=change.name, value=change.value), where=option, remedy=wanted
    )
