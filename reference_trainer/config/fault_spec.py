"""One fault as it is asked for, and what is wrong with the request."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.message import Message, message

from ..layout.group_members import groups_of_axis
from .checks import in_range
from .fault_rules import COMMON, MODES, PLACE, RANGES, RULES, FaultRule, kinds_taking

RANDOM_RANK: Literal["random"] = "random"
ALL_RANKS: Literal["all"] = "all"
_PERIOD_MS = 20.0
"""Shorter than a usual pass, so that every pass is hit."""
_COORDINATES = ("tp", "pp", "dp", "cp")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """One fault as it was asked for; see ``docs/trainer-faults.md`` for examples."""

    kind: Literal[
        "slow_rank",
        "slow_link",
        "heavy_stage",
        "sequence_imbalance",
        "gc_pause",
        "data_stall",
        "checkpoint_stall",
        "item_sync",
        "clock_skew",
        "memory_growth",
        "hot_expert",
        "hang",
        "crash",
    ]
    """What goes wrong; ``fault_rules.py`` lists which of the settings below each kind takes."""
    rank: int | Literal["random", "all"] = RANDOM_RANK
    """The faulty rank, or a member of the slow group; ``random`` draws one from the seed and
    tells only the ground truth; ``all`` (data_stall, checkpoint_stall) means every rank."""
    tp: int | None = None
    """The rank by its place in the mesh, in place of ``rank``; axes left out are 0."""
    pp: int | None = None
    """Pipeline coordinate of the rank."""
    dp: int | None = None
    """Data-parallel coordinate of the rank."""
    cp: int | None = None
    """Context-parallel coordinate of the rank."""
    mode: Literal["", "sleep", "compute", "duty", "exit", "kill"] = ""
    """slow_rank: ``sleep`` (default) leaves the core to others, ``compute`` multiplies matrices on
    the rank's device, ``duty`` stops the whole process for a part of each period. crash: ``exit`` (default) or
    ``kill``, by a signal."""
    delay_ms: float = 0.0
    """Extra time in milliseconds: per microbatch (slow_rank), per collective or message
    (slow_link), per forward of the part (heavy_stage), per collection, batch, checkpoint or read
    number (item_sync), per block with a usual microbatch (sequence_imbalance, in place of a pace).
    In mode compute it is CPU time of the thread; on a GPU that of heavy_stage, sequence_imbalance
    and mode compute is time of the device."""
    bytes_per_s: float = 0.0
    """slow_link, checkpoint_stall: bandwidth; payload / bandwidth is added. 0: unlimited."""
    axis: Literal["", "tp", "pp", "dp", "cp", "ep"] = ""
    """slow_link: axis of the slow group."""
    peer: int | None = None
    """slow_link: the other end; only messages between it and ``rank``, and their collectives, are late."""
    first: int = 0
    """slow_link: only so many operations of each step on the axis, from the first on; 0: all."""
    part: Literal["", "layers", "embed", "head"] = ""
    """heavy_stage: what gets heavier; ``embed`` is on the first stage, ``head`` on the last."""
    stage: int | None = None
    """heavy_stage: the stage, by its place in the model, whose ``layers`` get heavier."""
    stopped_frac: float = 0.0
    """slow_rank in mode duty: share of each period in which the process is stopped, 0 to 0.9."""
    period_ms: float = _PERIOD_MS
    """slow_rank in mode duty: length of a period in milliseconds."""
    every: int = 1
    """In one of so many steps, from ``start`` on."""
    megabytes: float = 0.0
    """memory_growth: host memory kept per step, in 10^6 bytes."""
    expert: int = 0
    """hot_expert: the expert that the router of every block prefers."""
    bias: float = 0.0
    """hot_expert: what is added to its score before the softmax; 10 sends it every token."""
    offset_ms: float = 0.0
    """clock_skew: how far the clock of the capture is ahead, in milliseconds."""
    drift_ppm: float = 0.0
    """clock_skew: how much too fast the clock runs, in parts per million."""
    start: int = 0
    """First step with the fault; of hang and crash the only one."""
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
        self._check_settings()
        self._check_ranges()
        self._check_place()
        if self.kind == "slow_rank":
            self._check_slow_rank()
        if self.kind == "slow_link" and not self.axis:
            self._refuse(message("refused.fault_without_axis"), message("advice.axis_of_fault"))
        if self.kind == "heavy_stage":
            self._check_heavy_stage()

    def _check_settings(self) -> None:
        """Refuse what the kind does not take, and a fault without its size."""
        rule = self.rule
        allowed = COMMON | rule.takes | (PLACE if rule.has_rank else frozenset())
        for field in fields(self):
            if field.name not in allowed and getattr(self, field.name) != field.default:
                owners = " and ".join(kinds_taking(field.name))
                self._refuse(
                    message("refused.belongs_to", name=field.name, owners=owners),
                    message("advice.remove_it"),
                )
        if self.mode and self.mode not in MODES[self.kind]:
            self._refuse(
                message("refused.no_mode", mode=self.mode),
                message("advice.choose_from", known=MODES[self.kind]),
            )
        if rule.needs and not any(getattr(self, name) for name in rule.needs):
            others = "".join(f" or {name}" for name in rule.needs[1:])
            self._refuse(
                message("refused.fault_without_size"),
                message(
                    "advice.size_of_fault", name=rule.needs[0], purpose=rule.purpose, others=others
                ),
            )
        if rule.only_once and (self.stop is not None or self.window):
            self._refuse(message("refused.happens_once"), message("advice.step_of_fault"))
        if rule.after_the_run and (self.start or self.stop is not None or self.window):
            self._refuse(message("refused.whole_run"), message("advice.no_steps_of_fault"))

    def _check_ranges(self) -> None:
        for name, (least, most) in RANGES.items():
            if name == "delay_ms":
                most = self.rule.most_delay_ms
            in_range(getattr(self, name), least, most, where=f"{self.where}: {name}")
        if 0 < self.bytes_per_s < 1:
            self._refuse(message("refused.rate_below_1"), message("advice.rate_or_no_limit"))
        if self.stop is not None and self.stop <= self.start:
            self._refuse(
                message("refused.stop_before_start", stop=self.stop, start=self.start),
                message("advice.stop_from", least=self.start + 1),
            )

    def _check_place(self) -> None:
        if self.has_coordinates and self.rank != RANDOM_RANK:
            self._refuse(
                message("refused.rank_and_coordinates"), message("advice.rank_or_coordinates")
            )
        if self.rank == ALL_RANKS and not self.rule.may_hit_all:
            self._refuse(message("refused.not_of_all_ranks"), message("advice.name_one_rank"))

    def _check_slow_rank(self) -> None:
        duty = self.mode == "duty"
        if not duty and self.delay_ms == 0:
            self._refuse(message("refused.no_delay"), message("advice.delay_of_microbatch"))
        if duty == bool(self.delay_ms) or (not duty and self.stopped_frac):
            self._refuse(message("refused.mixes_modes"), message("advice.delay_or_duty"))
        if not duty and self.period_ms != _PERIOD_MS:
            self._refuse(message("refused.no_periods"), message("advice.no_period_or_duty"))

    def _check_heavy_stage(self) -> None:
        if not self.part:
            self._refuse(message("refused.no_part"), message("advice.part_of_stage"))
        if (self.part == "layers") != (self.stage is not None):
            self._refuse(
                message("refused.stage_of_layers_only"), message("advice.stage_with_layers")
            )

    def _refuse(self, what: Message, remedy: Message) -> None:
        raise ConfigError(what, where=self.where, remedy=remedy)

    @property
    def where(self) -> str:
        """Return how messages name this fault."""
        return f"fault {self.kind}"

    @property
    def rule(self) -> FaultRule:
        """Return what this kind of fault takes."""
        return RULES[self.kind]

    @property
    def way(self) -> str:
        """Return the mode, the kind's default where none is given; empty for kinds without."""
        return self.mode or MODES.get(self.kind, ("",))[0]

    @property
    def has_coordinates(self) -> bool:
        """Return whether the rank is given by its place in the mesh."""
        return any(getattr(self, axis) is not None for axis in _COORDINATES)

    def check_steps(self, steps: int) -> None:
        """Refuse a fault that no step of the run has, or no pair of blocks fits.

        Args:
            steps: Optimizer steps of the run.

        Raises:
            ConfigError: It would never be on, or never be compared.
        """
        if self.start >= steps:
            self._refuse(
                message("refused.start_behind_end", start=self.start, steps=steps),
                message("advice.start_or_steps", most=steps - 1, least=self.start + 1),
            )
        on = min(steps, self.stop or steps) - self.start
        if on < 2 * self.window:
            self._refuse(
                message("refused.no_pair_of_blocks", steps=on, window=self.window),
                message("advice.window_or_steps", window=on // 2, steps=2 * self.window)
                if on > 1
                else message("advice.no_window_or_steps", steps=2 * self.window),
            )

    def check_mesh(self, layout: ParallelLayout) -> None:
        """Validate ranks, coordinates, stage and group against the mesh.

        Raises:
            ConfigError: A place is outside the mesh, or the group has one member.
        """
        for rank in (self.rank, self.peer):
            if isinstance(rank, int) and not 0 <= rank < layout.world_size:
                self._refuse(
                    message("refused.rank_outside", rank=rank, last=layout.world_size - 1),
                    message("advice.rank_of_mesh"),
                )
        places = {axis: (getattr(layout, axis), f"layout.{axis}") for axis in _COORDINATES}
        places["stage"] = layout.pp * layout.vpp, "layout.pp x layout.vpp"
        for name, (size, size_name) in places.items():
            place = getattr(self, name)
            if place is not None and not 0 <= place < size:
                self._refuse(
                    message("refused.place_outside", name=name, place=place, last=size - 1),
                    message("advice.below_size", name=size_name),
                )
        if self.axis and len(groups_of_axis(layout, self.axis)[0]) == 1:
            self._refuse(
                message("refused.axis_without_links", axis=self.axis),
                message("advice.axis_with_links", axis=self.axis),
            )
        if self.peer is not None:
            self._check_peer(self.peer, layout)

    def _check_peer(self, peer: int, layout: ParallelLayout) -> None:
        ends = {self.place(layout), peer}
        linked = any(ends <= set(group) for group in groups_of_axis(layout, self.axis))
        if self.rank == RANDOM_RANK and not self.has_coordinates:
            self._refuse(message("refused.peer_of_random_rank"), message("advice.both_ends"))
        if len(ends) < 2 or not linked:
            self._refuse(
                message("refused.no_link", rank=peer, axis=self.axis),
                message("advice.ranks_of_one_group", axis=self.axis),
            )

    def place(self, layout: ParallelLayout) -> int | None:
        """Return the rank that rank or the coordinates name; None where they name none."""
        if self.has_coordinates:
            return layout.rank(**{axis: getattr(self, axis) or 0 for axis in _COORDINATES})
        return self.rank if isinstance(self.rank, int) else None
