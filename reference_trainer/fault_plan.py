"""Which fault is asked for, and in which steps it is on: pure functions of seeds.

A fault with ``window = W`` cuts the steps from ``start`` on into pairs of
blocks of W steps; in each pair one block has the fault and the other has not,
in an order drawn from the seed. With W = 2 a run may look like this::

    step    0 1 2 3  4 5 6 7  8 9 10 11
    fault   - - x x  x x - -  - - x  x

Both halves of a pair see the same drift of the machine, so the mean difference
of their step times is the true cost of the fault (a paired A/B test inside one
run). ``window = 0`` keeps the fault on from ``start`` to ``stop``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Literal

import msgspec

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout

RANDOM_RANK: Literal["random"] = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """One fault as it was asked for; see ``docs/trainer.md`` for examples."""

    kind: Literal["slow_rank", "slow_link"]
    """``slow_rank`` adds time to every forward of a rank's stage; ``slow_link`` delays the
    collectives of one process group."""
    rank: int | Literal["random"] = RANDOM_RANK
    """The slow rank, or a member of the slow group; ``random`` draws one from the seed and tells
    only the ground truth."""
    mode: Literal["sleep", "compute"] = "sleep"
    """slow_rank: ``sleep`` leaves the core to others, ``compute`` burns CPU in matmuls."""
    delay_ms: float = 0.0
    """Extra time per microbatch (slow_rank) or latency per collective (slow_link), in
    milliseconds. In mode compute it is CPU time of the thread."""
    bytes_per_s: float = 0.0
    """slow_link: bandwidth; a collective takes its payload / bandwidth longer. 0: unlimited."""
    axis: Literal["", "tp", "dp"] = ""
    """slow_link: axis of the slow group."""
    start: int = 0
    """First step with the fault."""
    stop: int | None = None
    """First step after the fault; none: the end of the run."""
    window: int = 0
    """Steps per on or off block; 0: always on."""
    seed: int | None = None
    """Seed of the random rank and of the block order; none: entropy of the operating system."""

    def __post_init__(self) -> None:
        """Validate what can be known without the mesh.

        Raises:
            ConfigError: A value is out of range or does not belong to the kind.
        """
        if self.window < 0 or self.start < 0:
            raise ConfigError("window and start must not be negative", where=self.where)
        if self.stop is not None and self.stop <= self.start:
            raise ConfigError(
                f"stop = {self.stop} is not after start = {self.start}", where=self.where
            )
        if self.delay_ms < 0 or self.bytes_per_s < 0:
            raise ConfigError("delay_ms and bytes_per_s must not be negative", where=self.where)
        if self.kind == "slow_rank":
            self._check_slow_rank()
        else:
            self._check_slow_link()

    def _check_slow_rank(self) -> None:
        if self.delay_ms == 0:
            raise ConfigError(
                "has no delay", where=self.where, remedy="Set delay_ms to the time per microbatch"
            )
        if self.axis or self.bytes_per_s:
            raise ConfigError(
                "axis and bytes_per_s belong to slow_link",
                where=self.where,
                remedy="Remove them, or use slow_link",
            )

    def _check_slow_link(self) -> None:
        if not self.axis:
            raise ConfigError(
                "needs the axis of the slow group",
                where=self.where,
                remedy="Set axis=tp or axis=dp; sends and receives of axis pp are issued by "
                "torch's pipeline runtime and cannot be delayed here",
            )
        if self.delay_ms == 0 and self.bytes_per_s == 0:
            raise ConfigError(
                "neither delays nor limits", where=self.where, remedy="Set delay_ms or bytes_per_s"
            )
        if self.mode != "sleep":
            raise ConfigError("mode belongs to slow_rank", where=self.where, remedy="Remove it")

    @property
    def where(self) -> str:
        """Return how messages name this fault."""
        return f"fault {self.kind}"

    @property
    def works_on_cuda(self) -> bool:
        """Return whether the fault slows a rank whose compute is on a GPU."""
        return self.kind == "slow_rank" and self.mode == "sleep"

    def check_mesh(self, layout: ParallelLayout) -> None:
        """Validate the rank and the group against the mesh.

        Raises:
            ConfigError: The rank is outside the mesh, or the group has one member.
        """
        if isinstance(self.rank, int) and not 0 <= self.rank < layout.world_size:
            raise ConfigError(
                f"rank {self.rank} is outside 0..{layout.world_size - 1}",
                where=self.where,
                remedy="Name a rank of the mesh, or rank=random",
            )
        if self.axis and getattr(layout, self.axis) == 1:
            raise ConfigError(
                f"axis {self.axis} has one rank per group, so nothing goes over its links",
                where=self.where,
                remedy=f"Set layout.{self.axis} to 2 or more, or choose another axis",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedFault:
    """A fault whose rank and seed are known to every rank."""

    spec: FaultSpec
    """What was asked for."""
    rank: int
    """The slow rank, or a member of the slow group."""
    seed: int
    """Seed of the block order."""

    @property
    def delay_ns(self) -> int:
        """Return the delay in nanoseconds."""
        return round(self.spec.delay_ms * 1e6)

    def active(self, step: int) -> bool:
        """Return whether the fault is on in a step; the same on every rank."""
        spec = self.spec
        if step < spec.start or (spec.stop is not None and step >= spec.stop):
            return False
        if spec.window == 0:
            return True
        pair, second = divmod((step - spec.start) // spec.window, 2)
        on_in_second = random.Random(f"{self.seed} order of pair {pair}").random() < 0.5
        return bool(second) == on_in_second

    def wire_delay_ns(self, size_bytes: int) -> int:
        """Return latency + size / bandwidth of a slow link, in nanoseconds."""
        rate = self.spec.bytes_per_s
        return self.delay_ns + (round(size_bytes / rate * 1e9) if rate else 0)


def resolve(spec: FaultSpec, world_size: int, seed: int) -> ResolvedFault:
    """Draw what the request left open.

    Args:
        spec: The request.
        world_size: Ranks to choose from.
        seed: The request's seed, or one that all ranks have agreed on.
    """
    drawn = random.Random(f"{seed} rank").randrange(world_size)
    rank = drawn if spec.rank == RANDOM_RANK else spec.rank
    return ResolvedFault(spec=spec, rank=rank, seed=seed)


def parse_fault(text: str) -> FaultSpec:
    """Read the command line form ``kind:key=value,key=value``.

    >>> parse_fault("slow_rank:rank=5,mode=sleep,delay_ms=40").delay_ms
    40.0

    Raises:
        ConfigError: The text has another form, or a value does not fit.
    """
    kind, _, settings = text.partition(":")
    values: dict[str, str] = {"kind": kind.strip()}
    for setting in filter(None, settings.split(",")):
        name, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(
                f"{setting!r} is not of the form key=value",
                where=f"--fault {text}",
                remedy="Write kind:key=value,key=value",
            )
        values[name.strip()] = value.strip()
    known = {field.name for field in fields(FaultSpec)}
    if unknown := sorted(values.keys() - known):
        raise ConfigError(
            f"unknown setting {unknown[0]!r}",
            where=f"--fault {text}",
            remedy=f"Known settings: {', '.join(sorted(known - {'kind'}))}",
        )
    try:
        return msgspec.convert(values, FaultSpec, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error), where=f"--fault {text}") from error
