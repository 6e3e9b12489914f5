"""Faults that a synthetic job can have, each with a place and an amount.

Written as ``kind:key=value,key=value``, for example ``slow_rank:rank=5,factor=1.2``.
What a fault does to the job is in ``durations``, ``rows`` and ``record``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from meshscope.probe.schema.errors import ConfigError

from ..wording.message import message

NS_PER_MS = 1e6


class FaultKind(StrEnum):
    """What goes wrong."""

    SLOW_RANK = "slow_rank"
    """Computing of a rank, a host or a tensor-parallel member takes ``factor`` times as long."""
    BLOCKED_RANK = "blocked_rank"
    """Each forward pass of a rank takes ``extra_ms`` more, whatever it computes."""
    SLOW_STAGE = "slow_stage"
    """Passes of one stage take ``factor`` times as long on all its ranks."""
    HEAVY_EMBEDDING = "heavy_embedding"
    """Passes of the first stage take ``extra_ms`` more, an unsplit backward pass twice that."""
    HEAVY_HEAD = "heavy_head"
    """The same on the last stage."""
    SLOW_LINK = "slow_link"
    """Transfers along an axis take ``factor`` times as long and ``extra_ms`` more."""
    GC_PAUSE = "gc_pause"
    """The host stops for ``extra_ms`` in one forward pass of a step, or in each with ``chance``."""
    DATA_STALL = "data_stall"
    """A step begins ``extra_ms`` late, because the data is not there."""
    CHECKPOINT = "checkpoint"
    """A step ends with saving for ``extra_ms``."""
    SEQUENCE = "sequence"
    """Sequences differ in length, so that microbatches differ by the variation ``cv``; the
    work of a whole step stays what it was."""
    CLOCK_DROP = "clock_drop"
    """A device runs hot, at its clock over ``factor``: passes take that many times as long. The
    optimizer, which streams through memory, does not."""
    MISSING_COLLECTIVES = "missing_collectives"
    """Records of collectives of a rank are lost; the job itself is as it was."""
    MISSING_RANK = "missing_rank"
    """Nothing of a rank was captured; the job itself is as it was."""
    CLOCK_SKEW = "clock_skew"
    """The clock of a host is ``offset_ms`` ahead and gains ``drift_ppm``; the job is as it was."""
    HANG = "hang"
    """A rank stops for ever in its forward pass of one microbatch."""


_WHEN = {"first_step", "last_step", "every"}
_TARGET = {"rank", "host", "tp", "pp", "dp"}
_REQUIRED: dict[FaultKind, set[str]] = {
    FaultKind.SLOW_RANK: {"factor"},
    FaultKind.BLOCKED_RANK: {"extra_ms"},
    FaultKind.SLOW_STAGE: {"stage", "factor"},
    FaultKind.HEAVY_EMBEDDING: {"extra_ms"},
    FaultKind.HEAVY_HEAD: {"extra_ms"},
    FaultKind.SLOW_LINK: {"axis"},
    FaultKind.GC_PAUSE: {"extra_ms"},
    FaultKind.DATA_STALL: {"extra_ms"},
    FaultKind.CHECKPOINT: {"extra_ms"},
    FaultKind.SEQUENCE: {"cv"},
    FaultKind.CLOCK_DROP: {"factor"},
    FaultKind.MISSING_COLLECTIVES: {"rank"},
    FaultKind.MISSING_RANK: {"rank"},
    FaultKind.CLOCK_SKEW: {"host"},
    FaultKind.HANG: {"rank"},
}
_OPTIONAL: dict[FaultKind, set[str]] = {
    FaultKind.SLOW_RANK: _TARGET | _WHEN,
    FaultKind.BLOCKED_RANK: _TARGET | _WHEN,
    FaultKind.SLOW_STAGE: _WHEN,
    FaultKind.HEAVY_EMBEDDING: _WHEN,
    FaultKind.HEAVY_HEAD: _WHEN,
    FaultKind.SLOW_LINK: {"rank", "peer", "factor", "extra_ms"} | _WHEN,
    FaultKind.GC_PAUSE: _TARGET | _WHEN | {"microbatch", "chance"},
    FaultKind.DATA_STALL: _TARGET | _WHEN,
    FaultKind.CHECKPOINT: _TARGET | _WHEN,
    FaultKind.SEQUENCE: _WHEN,
    FaultKind.CLOCK_DROP: _TARGET | _WHEN,
    FaultKind.MISSING_COLLECTIVES: {"axis", "chance"} | _WHEN,
    FaultKind.MISSING_RANK: set(),
    FaultKind.CLOCK_SKEW: {"offset_ms", "drift_ppm"},
    FaultKind.HANG: {"microbatch", "first_step"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault; the fields that apply depend on the kind, the others are None.

    Without a target (rank, host, tp, pp, dp) a fault of ranks holds on all of them;
    with several it holds where all of them hold.
    """

    kind: FaultKind
    rank: int | None = None
    """Global rank; for a slow link a member of the group, or one end."""
    peer: int | None = None
    """The other end of a slow pipeline link; both directions are slow."""
    host: int | None = None
    """Number of the machine."""
    tp: int | None = None
    """Position on the tensor-parallel axis."""
    pp: int | None = None
    dp: int | None = None
    stage: int | None = None
    """Stage in model order."""
    axis: str | None = None
    factor: float | None = None
    extra_ms: float | None = None
    cv: float | None = None
    """Standard deviation over mean of the work of microbatches."""
    chance: float | None = None
    """Probability that an item is hit, drawn for each by itself."""
    microbatch: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    every: int | None = None
    """It holds in each n-th step from the first one on."""
    offset_ms: float | None = None
    drift_ppm: float | None = None

    def __post_init__(self) -> None:
        """Check that what is needed is there, and nothing else.

        Raises:
            ConfigError: A key is missing, does not belong to the kind, or has no sense.
        """
        given = {f.name for f in fields(self) if getattr(self, f.name) is not None} - {"kind"}
        required, optional = _REQUIRED[self.kind], _OPTIONAL[self.kind]
        if missing := sorted(required - given):
            raise ConfigError(
                message("refused.must_be_given", names=missing), where=f"fault {self.kind}"
            )
        if unknown := sorted(given - required - optional):
            raise ConfigError(
                message("refused.does_not_apply", names=unknown),
                where=f"fault {self.kind}",
                remedy=message("advice.takes", known=sorted(required | optional)),
            )
        positive = {"factor": self.factor, "every": self.every}
        if wrong := [name for name, value in positive.items() if value is not None and value <= 0]:
            raise ConfigError(
                message("refused.not_above_0", name=wrong[0]), where=f"fault {self.kind}"
            )
        least = {"extra_ms": self.extra_ms, "cv": self.cv, "chance": self.chance}
        if wrong := [name for name, value in least.items() if value is not None and value < 0]:
            raise ConfigError(
                message("refused.negative", name=wrong[0]), where=f"fault {self.kind}"
            )

    @property
    def extra_ns(self) -> int:
        """Return the added time in whole nanoseconds."""
        return round((self.extra_ms or 0.0) * NS_PER_MS)

    def holds_in(self, step: int) -> bool:
        """Return whether the fault is there in a step."""
        first = self.first_step or 0
        last = step if self.last_step is None else self.last_step
        return first <= step <= last and (step - first) % (self.every or 1) == 0

    def text(self) -> str:
        """Return the written form."""
        given = [
            f"{f.name}={getattr(self, f.name)}"
            for f in fields(self)
            if f.name != "kind" and getattr(self, f.name) is not None
        ]
        return f"{self.kind}:{','.join(given)}" if given else str(self.kind)


_WHOLE = frozenset(
    {"rank", "peer", "host", "tp", "pp", "dp", "stage", "microbatch"}
    | {"first_step", "last_step", "every"}
)


def parse_fault(text: str) -> Fault:
    """Read the written form of a fault.

    Raises:
        ConfigError: It is not ``kind:key=value,…`` with a known kind and its keys.
    """
    kind, _, rest = text.partition(":")
    if kind not in set(FaultKind):
        raise ConfigError(
            message("refused.no_kind_of_fault", kind=kind),
            where="fault",
            remedy=message("advice.choose", known=list(FaultKind)),
        )
    values: dict[str, str | int | float] = {}
    known = {f.name for f in fields(Fault)} - {"kind"}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key not in known:
            raise ConfigError(message("refused.no_key", key=key), where=f"fault {kind}")
        try:
            values[key] = value if key == "axis" else _number(key, value)
        except ValueError:
            raise ConfigError(
                message("refused.no_number_of_key", key=key, value=value), where=f"fault {kind}"
            ) from None
    return Fault(kind=FaultKind(kind), **values)  # type: ignore[arg-type]


def _number(key: str, value: str) -> int | float:
    return int(value) if key in _WHOLE else float(value)
