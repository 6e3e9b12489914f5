"""The layer split that makes a step shortest, priced as ``whatif --set layers`` prices it.

The present passes give what a layer costs and what embedding and head add. The exact search proposes
splits, the simulated pipeline prices them: ends that differ change fill and drain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshscope.probe.schema.errors import ConfigError

from ...formulas.flops import known_model
from ...tables.arrays import FloatArray
from ...wording.limits import Limit
from ...wording.message import message
from ..run_account import Account
from ..whatif.layers import layer_cost
from ..whatif.pipeline import SimulatedSteps
from ..whatif.predict import LEAST_MISS, half_width
from ..whatif.redesign import PresentPipeline, present_pipeline
from .present_split import layer_weights, present_split, weights_of_stages
from .stage_memory import memory_of_stages
from .stage_split import ChunkCosts, StageLoads, least_busy_chunks, least_busy_split

GROWN = 0.05
"""A stage that gets more layers than it was measured with may cost so much more than in proportion
(eight A100: stages of five layers took 1.5 to 4 % more than 5/4 of those of four; one per cent is for chance)."""
_SLACKS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""How much busier the busiest stage of a candidate may be than the least possible."""
_MOST_SIMULATED = 8
"""Steps simulated for each candidate; the best is simulated in full."""
_HEADROOM = 0.95
"""Share of a device's memory that a proposal may fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A split with its step time; gains as shares of the measured step."""

    layers: tuple[int, ...]
    step_time_ns: float
    gain_frac: float
    gain_low_frac: float
    gain_high_frac: float
    memory_by_stage_bytes: tuple[float, ...] | None
    cap_bytes: float | None = None
    """What a stage may hold; None: unknown."""

    @property
    def fits(self) -> bool | None:
        """Return whether every stage is under the cap, None where memory or cap is unknown."""
        if self.memory_by_stage_bytes is None or self.cap_bytes is None:
            return None
        return max(self.memory_by_stage_bytes) <= self.cap_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The present split, and the proposals, best first; none where nothing gains above the noise."""

    current: Priced
    proposals: tuple[Priced, ...]
    chunks: int
    """Chunks of a rank."""
    ranks: int
    busiest_ns: float | None
    """Load of the busiest stage or rank of the best split; None for a split by hand."""
    bound_ns: float | None
    """No split has a less busy one."""
    limits: tuple[Limit, ...]


def balance(
    account: Account,
    now: Sequence[int] | None = None,
    tried: Sequence[int] | None = None,
    cap_bytes: float | None = None,
) -> Balance:
    """Return the best splits of a run's layers, or the price of one.

    Args:
        account: The measured run.
        now: Layers of the stages as they are; None: as their costs and the model tell.
        tried: The only split to price.
        cap_bytes: Memory of a device; None: what the capture says.

    Raises:
        ConfigError: The present split is not known, a split does not fit, or nothing fits under the cap.
    """
    present = present_pipeline(account)
    pricing = _Pricing(account, present, present_split(account, present, now), cap_bytes)
    if tried is not None:
        return pricing.result([pricing.priced(pricing.checked(tried, "--try"))])
    return pricing.searched()


class _Pricing:
    """One run, and what other splits of it would cost."""

    def __init__(
        self,
        account: Account,
        present: PresentPipeline,
        now: tuple[int, ...],
        cap_bytes: float | None,
    ) -> None:
        self._account, self._present, self._now = account, present, now
        self._measured_ns = account.windows.step_time_ns
        pipeline = present.pipeline
        costs_ns = present.centre_ns.sum(axis=0)
        model = known_model(account.trace.run).model
        self._weights, how = layer_weights(model, costs_ns, now)
        self._memory = memory_of_stages(account, pipeline, now)
        self._cap_bytes = cap_bytes
        if cap_bytes is None and self._memory is not None and self._memory.capacity_bytes:
            # What is held now fits, whatever the headroom.
            held = max(self._memory.of_split(now))
            self._cap_bytes = max(_HEADROOM * self._memory.capacity_bytes, held)
        self._before: dict[int, SimulatedSteps] = {}
        self.limits: list[Limit] = [] if how is None else [how]
        if self._memory is None:
            if cap_bytes is not None:
                raise ConfigError(
                    message("refused.memory_cap_without_peak"),
                    where="--memory",
                    remedy=message("advice.without_memory_cap"),
                )
            self.limits.append(message("unknown.memory_of_splits"))
        elif self._memory.present_bytes is not None:
            self.limits.append(message("doubt.memory_of_splits"))

    def checked(self, split: Sequence[int], where: str) -> tuple[int, ...]:
        """Return a split that fits the model, or say why it does not."""
        # A chunk between others may be empty; a stage that is all of its rank may not.
        inner = split[1:-1] if self._present.pipeline.chunks == 1 else ()
        if (
            len(split) != len(self._now)
            or sum(split) != sum(self._now)
            or min([1, *inner]) < 1
            or min(split) < 0
        ):
            raise ConfigError(
                message("refused.split_of_run", split=",".join(map(str, split))),
                where=where,
                remedy=message(
                    "advice.layers_between_ends", layers=sum(self._now), stages=len(self._now)
                ),
            )
        return tuple(split)

    def priced(self, split: tuple[int, ...], most_steps: int | None = None) -> Priced:
        """Return what a split costs, with the interval of its gain."""
        low, centre, high = (self._gain(split, grown, most_steps) for grown in (GROWN, 0.0, -GROWN))
        margin = self._margin(split, centre)
        gains = (low[0], centre[0], high[0])
        is_same = split == self._now
        return Priced(
            layers=split,
            step_time_ns=self._measured_ns * (1.0 - centre[0]),
            gain_frac=0.0 if is_same else centre[0],
            gain_low_frac=-margin if is_same else min(gains) - margin,
            gain_high_frac=margin if is_same else max(gains) + margin,
            memory_by_stage_bytes=None if self._memory is None else self._memory.of_split(split),
            cap_bytes=self._cap_bytes,
        )

    def _gain(
        self, split: tuple[int, ...], grown: float, most_steps: int | None
    ) -> tuple[float, FloatArray]:
        """Return the gain of a split, and that of each step about it.

        Args:
            split: The layers.
            grown: Work of added layers beyond their share, and work that removed ones leave behind.
            most_steps: How many steps to simulate at most.
        """
        now, then = (weights_of_stages(self._weights, one) for one in (self._now, split))
        after = self._present.with_layers(now, then, grown)
        steps = min(self._present.pipeline.affordable_steps(), after.affordable_steps())
        steps = min(steps, most_steps or steps)
        if steps not in self._before:
            self._before[steps] = self._present.pipeline.simulated(steps)
        before, found = self._before[steps], after.simulated(steps)
        ratio = found.mean_ns / before.mean_ns
        spread = (ratio * before.length_ns - found.length_ns) / before.mean_ns
        return 1.0 - ratio, np.asarray(spread)

    def _margin(self, split: tuple[int, ...], found: tuple[float, FloatArray]) -> float:
        """Return the half width by chance and by the simulation, as a share of the step."""
        gain, spread = found
        steps = len(spread)
        before = self._before[steps]
        missed = max(abs(before.mean_ns / self._measured_ns - 1.0), LEAST_MISS)
        chance = half_width(spread)
        parts = (missed * (1.0 - gain), 0.0 if np.isnan(chance) else chance)
        return float(np.hypot(*parts))

    def result(
        self,
        proposals: list[Priced],
        busiest_ns: float | None = None,
        bound_ns: float | None = None,
    ) -> Balance:
        """Return the answer for these proposals."""
        pipeline = self._present.pipeline
        for one in proposals:
            if one.fits is False and one.memory_by_stage_bytes is not None:
                held = one.memory_by_stage_bytes
                stage, cap = int(np.argmax(held)), one.cap_bytes or 0.0
                self.limits.insert(
                    0,
                    message(
                        "doubt.split_does_not_fit",
                        layers=",".join(map(str, one.layers)),
                        stage=stage,
                        needed_bytes=float(max(held)),
                        cap_bytes=cap,
                    ),
                )
        return Balance(
            current=replace(self.priced(self._now), step_time_ns=self._measured_ns),
            proposals=tuple(proposals),
            chunks=pipeline.chunks,
            ranks=pipeline.ranks,
            busiest_ns=busiest_ns,
            bound_ns=bound_ns,
            limits=(*self.limits, *self._account.limits),
        )

    def searched(self) -> Balance:
        """Return the best of the candidates, where it gains more than the noise."""
        candidates, busiest, bound = (
            self._by_chunks() if self._present.pipeline.chunks > 1 else self._by_stages()
        )
        candidates = [split for split in dict.fromkeys(candidates) if split != self._now]
        priced = [self.priced(split, _MOST_SIMULATED) for split in candidates]
        priced.sort(key=lambda one: one.step_time_ns)
        best = [self.priced(one.layers) for one in priced[:3]]
        best.sort(key=lambda one: one.step_time_ns)
        sure = [one for one in best if one.gain_low_frac > 0]
        if not sure:
            self.limits.insert(0, message("doubt.no_split_gains"))
        return self.result(sure, busiest, bound)

    def _by_stages(self) -> tuple[list[tuple[int, ...]], float, float]:
        loads = self._loads()
        best = least_busy_split(loads, self._now)
        if best is None:
            raise self._nothing_fits(loads)
        least = float(loads.of_split(best).max())
        found = [
            split
            for slack in _SLACKS
            if (split := least_busy_split(loads, self._now, least * (1.0 + slack) + 1.0))
        ]
        return [best, *found], least, least

    def _loads(self) -> StageLoads:
        """Return the costs of the search: a layer is worth the same on every stage."""
        costs, layers = self._present.centre_ns, weights_of_stages(self._weights, self._now)
        each = float(layer_cost(costs, layers).sum())
        extra = np.maximum(costs.sum(axis=0) - each * layers, 0.0)
        memory = self._memory
        has_cap = memory is not None and self._cap_bytes is not None
        return StageLoads(
            layer_ns=each * self._weights,
            extra_ns=extra,
            layer_bytes=np.tile(memory.layer_bytes[:, None], (1, sum(self._now)))
            if memory is not None and has_cap
            else None,
            extra_bytes=memory.extra_bytes if memory is not None and has_cap else None,
            cap_bytes=self._cap_bytes if self._cap_bytes is not None else float("inf"),
        )

    def _nothing_fits(self, loads: StageLoads) -> ConfigError:
        """Return the error of a cap under which no split fits, with the least that one needs."""
        assert loads.layer_bytes is not None
        assert loads.extra_bytes is not None
        by_memory = replace(loads, cap_bytes=float("inf"))
        low, high = 0.0, float(loads.layer_bytes.sum(axis=1).max() + loads.extra_bytes.max())
        for _ in range(40):
            middle = (low + high) / 2
            fits = least_busy_split(replace(by_memory, cap_bytes=middle), self._now) is not None
            low, high = (low, middle) if fits else (middle, high)
        return _too_small(loads.cap_bytes, high)

    def _by_chunks(self) -> tuple[list[tuple[int, ...]], float, float]:
        costs, layers = self._present.centre_ns, np.array(self._now, np.float64)
        if np.ptp(self._weights) > 0:
            self.limits.append(message("assumed.chunks_alike"))
        each = float(layer_cost(costs, layers).sum())
        beyond = np.maximum(costs.sum(axis=0) - each * layers, 0.0)
        memory, cap = self._memory, self._cap_bytes
        has_cap = memory is not None and cap is not None
        found = least_busy_chunks(
            ChunkCosts(
                layer_ns=each,
                extra_ns=beyond,
                holders=self._present.holders,
                layer_bytes=memory.layer_bytes if memory is not None and has_cap else None,
                spare_bytes=cap - memory.extra_bytes
                if memory is not None and cap is not None
                else None,
            ),
            self._now,
        )
        if found is None:
            assert memory is not None
            assert cap is not None
            raise _too_small(cap, memory.least_bytes(sum(self._now)))
        return list(found.candidates), found.largest_ns, found.bound_ns


def _too_small(cap_bytes: float, least_bytes: float) -> ConfigError:
    """Return the error of a cap under which no split fits."""
    return ConfigError(
        message("refused.no_split_under_cap", cap_bytes=cap_bytes, least_bytes=least_bytes),
        where="--memory",
        remedy=message("advice.less_memory"),
    )
