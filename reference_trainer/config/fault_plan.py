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

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.message import message

from .checks import typed
from .fault_spec import ALL_RANKS, FaultSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedFault:
    """A fault whose rank and seed are known to every rank."""

    spec: FaultSpec
    """What was asked for."""
    rank: int | None
    """The faulty rank, or a member of the slow group; None: every rank, or no rank in
    particular."""
    seed: int
    """Seed of the block order."""

    @property
    def delay_ns(self) -> int:
        """Return the delay in nanoseconds."""
        return round(self.spec.delay_ms * 1e6)

    def hits(self, rank: int) -> bool:
        """Return whether the fault is on this rank, or on all."""
        return self.rank is None or self.rank == rank

    def active(self, step: int) -> bool:
        """Return whether the fault is on in a step; the same on every rank."""
        spec = self.spec
        if (
            spec.rule.after_the_run
            or step < spec.start
            or (spec.stop is not None and step >= spec.stop)
        ):
            return False
        if spec.rule.only_once:
            return step == spec.start
        if (step - spec.start) % spec.every:
            return False
        if spec.window == 0:
            return True
        pair, second = divmod((step - spec.start) // spec.window, 2)
        on_in_second = random.Random(f"{self.seed} order of pair {pair}").random() < 0.5
        return bool(second) == on_in_second

    def transfer_ns(self, size_bytes: int) -> int:
        """Return latency + size / bandwidth of a slow link or storage, in nanoseconds.

        The two-parameter model of a transfer (Hockney 1994, Parallel Computing 20, pages 389 to 398).
        """
        rate = self.spec.bytes_per_s
        return self.delay_ns + (round(size_bytes / rate * 1e9) if rate else 0)


def resolve(spec: FaultSpec, layout: ParallelLayout, seed: int) -> ResolvedFault:
    """Draw what the request left open.

    Args:
        spec: The request.
        layout: The mesh whose ranks are chosen from.
        seed: The request's seed, or one that all ranks have agreed on.
    """
    rank = spec.place(layout)
    if rank is None and spec.rule.has_rank and spec.rank != ALL_RANKS:
        rank = random.Random(f"{seed} rank").randrange(layout.world_size)
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
                message("refused.no_fault_setting", setting=setting),
                where=f"--fault {text}",
                remedy=message("advice.fault_settings"),
            )
        if name.strip() in values:
            raise ConfigError(
                message("refused.given_twice", name=name.strip()),
                where=f"--fault {text}",
                remedy=message("advice.remove_one"),
            )
        values[name.strip()] = value.strip()
    known = {field.name for field in fields(FaultSpec)}
    if unknown := sorted(values.keys() - known):
        raise ConfigError(
            message("refused.unknown_setting", name=unknown[0]),
            where=f"--fault {text}",
            remedy=message("advice.known_settings", known=sorted(known - {"kind"})),
        )
    return typed(values, FaultSpec, where=f"--fault {text}", strict=False)
