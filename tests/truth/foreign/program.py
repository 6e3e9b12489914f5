"""What the ranks of a production job do, one item after the other: 1F1B with its tail of reductions.

An item is what a rank launches at once and waits for: a computation, a collective, or a send with the
receive it is batched with. Items that no operation records are in the program too: hidden joins.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

Join = Literal["none", "loss", "replica", "world"]
JOINS: tuple[Join, ...] = ("none", "loss", "replica", "world")
"""Who meets before the tail unrecorded: nobody, the last stages, each replica, everybody."""

FORWARD, BACKWARD = "forward-compute", "backward-compute"
DP_OPERATIONS = ("params-all-gather", "grads-reduce-scatter")
LAYERNORM, EMBEDDING = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
CLIP, OPTIMIZER, COLLECTION = "optimizer-clip-main-grad", "optimizer", "gc"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a job; ``joins`` are the hidden meetings before the tail of each step."""

    pp: int
    dp: int
    microbatches: int
    steps: int
    joins: tuple[Join, ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of a rank's program.

    Attributes:
        operations: Type and position in the step of what is recorded; empty for a hidden join.
        meetings: Who is waited for, as names that the ``stage`` and the replica ``dp`` complete.
        microbatch: The microbatch of a computation, else -1.
    """

    operations: tuple[tuple[str, int], ...]
    meetings: tuple[tuple[Hashable, ...], ...] = ()
    microbatch: int = -1

    @property
    def is_pass(self) -> bool:
        """Return whether it is a forward or backward pass."""
        return self.microbatch >= 0

    @property
    def name(self) -> str:
        """Return the type of its first operation, or ``join``."""
        return self.operations[0][0] if self.operations else "join"


@dataclass(slots=True)
class _Writer:
    """Collects the items of one stage; positions count by type."""

    stage: int
    shape: Shape
    items: list[Item]
    positions: dict[str, int]

    def _next(self, name: str) -> int:
        self.positions[name] = self.positions.get(name, -1) + 1
        return self.positions[name]

    def compute(self, name: str) -> None:
        position = self._next(name)
        self.items.append(Item(((name, position),), microbatch=position))

    def transfers(self, *names: str) -> None:
        """Add sends and receives that begin together; those beyond the pipeline are left out."""
        operations, meetings = [], []
        for name in names:
            way, _, direction = name.partition("-")
            is_up = (way == "forward") == (direction == "send")
            if self.stage == (self.shape.pp - 1 if is_up else 0):
                continue
            position = self._next(name)
            operations.append((name, position))
            meetings.append(("link", way, "dp", self.stage if is_up else self.stage - 1, position))
        if operations:
            self.items.append(Item(tuple(operations), tuple(meetings)))

    def meet(self, name: str, *who: Hashable) -> None:
        operations = ((name, self._next(name)),) if name else ()
        self.items.append(Item(operations, (who,) if who else ()))


def program(shape: Shape, stage: int) -> tuple[Item, ...]:
    """Return the items of a rank of a stage: non-interleaved 1F1B as Megatron-LM runs it."""
    to = _Writer(stage, shape, [], {})
    to.meet("params-all-gather", "gather", stage)
    ahead = min(shape.pp - 1 - stage, shape.microbatches)
    steady = shape.microbatches - ahead
    for _ in range(ahead):
        to.transfers("forward-recv")
        to.compute(FORWARD)
        to.transfers("forward-send")
    if steady:
        to.transfers("forward-recv")
    for i in range(steady):
        to.compute(FORWARD)
        to.transfers("forward-send", "backward-recv")
        to.compute(BACKWARD)
        if i < steady - 1:
            to.transfers("backward-send", "forward-recv")
    for i in range(ahead):
        if steady or i:
            to.transfers("backward-send")
        to.transfers("backward-recv")
        to.compute(BACKWARD)
    _tail(to, shape, stage)
    return tuple(to.items)


def _tail(to: _Writer, shape: Shape, stage: int) -> None:
    """Add what follows the last backward pass."""
    to.meet(COLLECTION)
    to.transfers("backward-send")
    is_last = stage == shape.pp - 1
    if "loss" in shape.joins and is_last:
        to.meet("", "loss")
    if "replica" in shape.joins:
        to.meet("", "replica", "dp")
    if "world" in shape.joins:
        to.meet("", "world")
    to.meet(LAYERNORM)
    if shape.pp > 1 and (is_last or stage == 0):
        to.meet(EMBEDDING, "embedding", "dp")
    to.meet("grads-reduce-scatter", "scatter", stage)
    to.meet(CLIP, "clip")
    to.meet(OPTIMIZER)
