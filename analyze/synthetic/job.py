"""What a synthetic job is: mesh, schedule, costs, jitter and faults."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

from ..wording.message import message
from .faults import Fault, FaultKind

INNER_AXES = ("cp", "ep", "tp")
"""Axes that synchronise inside a pass, in the order of their collectives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Durations of the undisturbed job, ns."""

    layer_forward_ns: int = 1_000_000
    layer_backward_input_ns: int = 1_000_000
    layer_backward_weight_ns: int = 1_000_000
    embedding_ns: int = 0
    """Added to each pass of the first stage; an unsplit backward pass counts as two."""
    head_ns: int = 0
    """The same on the last stage."""
    optimizer_ns: int = 2_000_000
    data_load_ns: int = 0
    """Of each rank at the start of a step."""
    tp_ns: int = 100_000
    """Wire time of one collective of the axis."""
    cp_ns: int = 100_000
    ep_ns: int = 100_000
    pp_ns: int = 100_000
    """Wire time of one message between stages."""
    dp_ns: int = 1_000_000
    """Wire time of all gradient buckets of a step together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticJob:
    """One job; equal jobs give equal captures, to the nanosecond."""

    layout: ParallelLayout
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B
    microbatches: int = 8
    steps: int = 3
    layers: tuple[int, ...] = ()
    """Layers of each stage in model order; two each when empty."""
    costs: Costs = Costs()
    segments: int = 1
    """Pieces of a pass, each followed by one collective of every inner axis (cp, ep, tp). A
    real layer has several: this aggregates them, and so bounds the number of events."""
    dp_buckets: int = 1
    overlap_dp: bool = False
    """True: buckets are reduced during the last backward pass of the step."""
    jitter_cv: float = 0.0
    """Log-normal variation of every piece of work, independent between ranks."""
    wire_cv: float = 0.0
    """Log-normal variation of every collective and message."""
    seed: int = 0
    ranks_per_host: int = 8
    tokens_per_microbatch: int = 4096
    tell_sequences: bool = False
    """Whether the training tells the lengths of the sequences of each microbatch."""
    sample_interval_ns: int = 0
    """How often a node agent samples the devices; 0: there is no agent."""
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        """Check sizes and that every fault has its place in the job.

        Raises:
            ConfigError: A number is out of range, or the parts do not fit each other.
        """
        least = {"microbatches": 1, "steps": 1, "segments": 1, "dp_buckets": 1, "ranks_per_host": 1}
        least |= {"sample_interval_ns": 0}
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise ConfigError(
                    message("refused.below_least", least=minimum), where=f"job.{name}"
                )
        if self.jitter_cv < 0 or self.wire_cv < 0:
            raise ConfigError(message("refused.negative_variation"), where="job.jitter_cv")
        if min(asdict(self.costs).values()) < 0:
            raise ConfigError(message("refused.negative_duration"), where="job.costs")
        if self.layers and len(self.layers) != self.stages:
            raise ConfigError(
                message("refused.stages_of_job", count=len(self.layers), stages=self.stages),
                where="job.layers",
            )
        if self.layout.dp % self.layout.ep:
            raise ConfigError(
                message("refused.ep_over_dp", ep=self.layout.ep, dp=self.layout.dp),
                where="job.layout",
                remedy=message("advice.experts_along_dp"),
            )
        for fault in self.faults:
            self._check_place(fault)

    @property
    def stages(self) -> int:
        """Return the stages of the model."""
        return self.layout.pp * self.layout.vpp

    @property
    def hosts(self) -> int:
        """Return the number of machines."""
        return -(-self.layout.world_size // self.ranks_per_host)

    def without(self, *faults: Fault) -> SyntheticJob:
        """Return the same job without some of its faults."""
        return replace(self, faults=tuple(f for f in self.faults if f not in faults))

    def of_kind(self, *kinds: FaultKind, step: int | None = None) -> list[Fault]:
        """Return the faults of the given kinds, those of one step if it is given."""
        return [f for f in self.faults if f.kind in kinds and (step is None or f.holds_in(step))]

    def key(self) -> str:
        """Return the hash of everything that decides the capture."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, object]:
        """Return the plain form, with faults in their written form."""
        plain = asdict(replace(self, faults=()))
        return {**plain, "faults": [fault.text() for fault in self.faults]}

    def _check_place(self, fault: Fault) -> None:
        limits = {
            "rank": self.layout.world_size,
            "peer": self.layout.world_size,
            "host": self.hosts,
            "tp": self.layout.tp,
            "pp": self.layout.pp,
            "dp": self.layout.dp,
            "stage": self.stages,
            "microbatch": self.microbatches,
        }
        for name, limit in limits.items():
            value = getattr(fault, name)
            if value is not None and not 0 <= value < limit:
                raise ConfigError(
                    message("refused.outside_range", name=name, last=limit - 1),
                    where=f"fault {fault.kind}",
                )
        if fault.axis is not None and fault.axis not in ("tp", "pp", "dp", "cp", "ep"):
            raise ConfigError(
                message("refused.not_an_axis", axis=fault.axis), where=f"fault {fault.kind}"
            )
