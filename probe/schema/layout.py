"""Where a rank sits in the mesh: pure integers, no torch.

>>> layout = ParallelLayout(tp=2, pp=2, dp=2)
>>> layout.coordinates(5)
{'pp': 1, 'dp': 0, 'cp': 0, 'tp': 1}
>>> layout.rank(pp=1, tp=1)
5
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import prod

from .errors import ConfigError
from .message import message
from .terms import Axis

MESH_AXES = ("pp", "dp", "cp", "tp")
"""Axes that multiply to the world size; ``ep`` divides dp x cp and is not one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """The mesh of a job, and which axis varies fastest over the ranks."""

    tp: int = 1
    """Ranks that share one layer's matrices."""
    pp: int = 1
    """Pipeline stages divided by chunks per rank."""
    dp: int = 1
    """Replicas of the model."""
    cp: int = 1
    """Ranks that share one sequence."""
    ep: int = 1
    """Ranks that share the experts; a divisor of dp x cp."""
    vpp: int = 1
    """Chunks (virtual stages) per rank."""
    order: str = "pp-dp-cp-tp"
    """Axes from the slowest to the fastest varying over the ranks."""

    def __post_init__(self) -> None:
        """Validate sizes and order.

        Raises:
            ConfigError: A size is below one, or order is no permutation of the axes.
        """
        for name in (*MESH_AXES, "ep", "vpp"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    message("refused.out_of_range", value=getattr(self, name)),
                    where=f"layout.{name}",
                    remedy=message("advice.set_at_least_1"),
                )
        if sorted(self.order.split("-")) != sorted(MESH_AXES):
            raise ConfigError(
                message("refused.no_order_of_axes", order=self.order, axes="-".join(MESH_AXES)),
                where="layout.order",
                remedy=message("advice.each_axis_once"),
            )

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return self.pp * self.dp * self.cp * self.tp

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the position of a rank on each mesh axis.

        Raises:
            ConfigError: The rank is outside the mesh.
        """
        if not 0 <= rank < self.world_size:
            raise ConfigError(
                message("refused.rank_outside", rank=rank, last=self.world_size - 1), where="layout"
            )
        found: dict[str, int] = {}
        for axis in reversed(self.order.split("-")):
            rank, found[axis] = divmod(rank, getattr(self, axis))
        return {axis: found[axis] for axis in MESH_AXES}

    def stride(self, axis: str) -> int:
        """Return how many ranks lie between neighbours along an axis.

        The position of a rank on it is ``rank // stride % size``, also of many ranks at once.
        """
        order = self.order.split("-")
        return prod(getattr(self, faster) for faster in order[order.index(axis) + 1 :])

    def rank(self, **coordinates: int) -> int:
        """Return the rank at the given coordinates; axes left out are 0."""
        rank = 0
        for axis in self.order.split("-"):
            rank = rank * getattr(self, axis) + coordinates.get(axis, 0)
        return rank

    def groups(self, axis: str) -> Iterator[tuple[int, ...]]:
        """Yield the ranks of every group along one axis, in rank order."""
        stride, size = self.stride(axis), getattr(self, axis)
        for rank in range(self.world_size):
            if rank // stride % size == 0:
                yield tuple(range(rank, rank + size * stride, stride))

    def axis_of(self, ranks: tuple[int, ...]) -> Axis:
        """Return the axis along which these ranks form one group, else ``OTHER``.

        A group of one rank lies along no axis.
        """
        members = set(ranks)
        if len(ranks) < 2 or len(members) < len(ranks):
            return Axis.OTHER
        if min(members) < 0 or max(members) >= self.world_size:
            return Axis.OTHER
        places = [self.coordinates(rank) for rank in members]
        varying = [axis for axis in MESH_AXES if len({place[axis] for place in places}) > 1]
        if len(varying) == 1 and len(members) == getattr(self, varying[0]):
            return Axis(varying[0])
        return Axis.OTHER

    def to_json(self) -> dict[str, int | str]:
        """Return the plain form that the manifest holds."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, int | str]) -> ParallelLayout:
        """Read the manifest form; unknown keys are ignored.

        Raises:
            ConfigError: A value is of another kind, or is out of range.
        """
        known = {name: value[name] for name in cls.__slots__ if name in value}
        for name, found in known.items():
            if type(found) is not (str if name == "order" else int):
                raise ConfigError(
                    message("refused.value_of_field", found=found), where=f"layout.{name}"
                )
        return cls(**known)  # type: ignore[arg-type]
