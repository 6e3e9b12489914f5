"""What each stage of a recorded run should hold, by the formulas of ``planning``, beside what was measured.

A capture holds model, mesh and schedule, but seldom what shards and types the trainer uses. What is
not stated is taken from the recorded bytes of weights, gradients and optimizer where one combination
of settings makes them; else the usual setting is assumed, and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.model import ModelDescription
from meshscope.probe.schema.terms import ScheduleKind, SpanKind

from ...account.bubble import microbatches_of, schedule_of
from ...account.memory.by_stage import CATEGORIES
from ...account.mfu.utilization import step_tokens
from ...align.topology.stated_job import ARGUMENTS, MEMORY_SETTINGS
from ...formulas.flops import known_model
from ...formulas.planning.job import PlannedJob, Recompute
from ...formulas.planning.megatron_settings import settings_of_megatron
from ...formulas.planning.memory import StageMemory, stage_memory
from ...formulas.planning.model_file import DTYPE_BYTES
from ...formulas.planning.plan import reserved_bytes
from ...formulas.planning.source import stated_split
from ...formulas.planning.states import rank_parameters, state_terms
from ...formulas.planning.terms import Category
from ...tables.results import MemoryExpectation
from ...tables.trace import Trace
from ...wording.message import Text, message

STATES = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER)
_ALIKE = 0.03
"""Recorded states that differ by more from all settings fit none."""
_USUAL: dict[str, object] = {
    "zero": 1,
    "sequence_parallel": True,
    "recompute": "none",
    "fused_cross_entropy": False,
    "weight_dtype": "bf16",
    "gradient_dtype": "bf16",
    "moment_dtype": "fp32",
}
"""What is assumed where nothing states it: the defaults of ``meshscope plan``."""
_OF_STATES = ("zero", "weight_dtype", "gradient_dtype", "moment_dtype")


class ExpectedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The formulas' account of a run."""

    job: PlannedJob
    stages: tuple[StageMemory, ...]
    assumed: tuple[str, ...]
    """Settings that nothing states, such as ``zero 1``."""
    inferred: tuple[str, ...] = ()
    """Settings that the recorded bytes of states fit."""


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """What is expected, or why nothing is."""

    found: ExpectedMemory | None
    unknown_because: Text = ""

    @property
    def kept(self) -> MemoryExpectation:
        """Return what a diagnosis keeps of it."""
        if self.found is None:
            return MemoryExpectation(unknown_because=self.unknown_because)
        return MemoryExpectation(assumed=self.found.assumed, inferred=self.found.inferred)


def expected_memory(trace: Trace, by_stage: pd.DataFrame) -> Expectation:
    """Return what formulas expect of each stage of a run.

    Args:
        trace: The capture.
        by_stage: Its ``memory_by_stage``, whose bytes by category can tell unstated settings.
    """
    if by_stage.empty:
        return Expectation(found=None, unknown_because=message("why.no_memory_recorded"))
    known = known_model(trace.run).model
    if isinstance(known, ModelDescription) and known.counted:
        known = None  # Its small parameters and the shape of its MLP are not known.
    layout, microbatches = trace.layout, microbatches_of(trace)
    size = _microbatch_size(trace, known, microbatches)
    missing = [
        name
        for name, is_missing in (
            (message("lacks.description"), not isinstance(known, ModelDescription)),
            (message("lacks.mesh"), layout is None),
            (message("lacks.microbatches"), microbatches is None),
            (message("lacks.tokens"), size is None),
        )
        if is_missing
    ]
    if (
        layout is None
        or microbatches is None
        or size is None
        or not isinstance(known, ModelDescription)
    ):
        return Expectation(found=None, unknown_because=message("why.capture_lacks", what=missing))
    if size < 1 or size != int(size):
        return Expectation(found=None, unknown_because=message("why.broken_sequences"))
    try:
        found = _expected(trace, by_stage, known, layout, (microbatches, int(size)))
        return Expectation(found=found)
    except ConfigError as error:
        return Expectation(
            found=None, unknown_because=message("why.refused", where=error.where, what=error.what)
        )


def _microbatch_size(trace: Trace, model: object, microbatches: int | None) -> float | None:
    tokens = step_tokens(trace)[0]
    if not isinstance(model, ModelDescription) or tokens is None or trace.layout is None:
        return None
    return tokens / (model.seq_len * trace.layout.dp * microbatches) if microbatches else None


def _expected(
    trace: Trace,
    by_stage: pd.DataFrame,
    model: ModelDescription,
    layout: ParallelLayout,
    counts: tuple[int, int],
) -> ExpectedMemory:
    """Return what is expected.

    Raises:
        ConfigError: The settings do not fit together.
    """
    stated = stated_settings(trace.run)
    seen = {} if "recompute" in stated else _recompute_seen(trace)
    job = PlannedJob(
        model=model,
        layout=layout,
        schedule=_schedule(trace, layout),
        layers_per_stage=stated_split(stated, model.num_layers, layout),
        microbatches=counts[0],
        microbatch_size=counts[1],
        **_fields(_USUAL | seen | stated, layout),
    )
    open_ = [name for name in _USUAL if name not in stated and name not in seen]
    fitted = _fitted(job, by_stage, [name for name in _OF_STATES if name in open_])
    if fitted is not None:
        job = fitted
        open_ = [name for name in open_ if name not in _OF_STATES]
    if layout.tp == 1 and "sequence_parallel" in open_:
        open_.remove("sequence_parallel")
    if layout.dp * layout.cp == 1 and "zero" in open_:
        open_.remove("zero")
    return ExpectedMemory(
        job=job,
        stages=stage_memory(job),
        assumed=tuple(f"{name} {_word(_USUAL[name])}" for name in open_),
        inferred=tuple(_state_words(job)) if fitted is not None else (),
    )


def stated_settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides memory and layers, by our names: Megatron's arguments, topology file over them.

    Raises:
        ConfigError: What is stated contradicts itself.
    """
    arguments, settings = run.get(ARGUMENTS), run.get(MEMORY_SETTINGS)
    found = settings_of_megatron(arguments)[0] if isinstance(arguments, Mapping) else {}
    return found | (dict(settings) if isinstance(settings, Mapping) else {})


def _recompute_seen(trace: Trace) -> dict[str, object]:
    """Return that the backward computes everything again, where passes show it."""
    kinds = trace.frame("span")["kind"].astype(str)
    return {"recompute": "full"} if (kinds == SpanKind.RECOMPUTE).any() else {}


def _schedule(trace: Trace, layout: ParallelLayout) -> ScheduleKind:
    name = schedule_of(trace)
    if layout.pp < 2 or name is None:
        return ScheduleKind.INTERLEAVED if layout.vpp > 1 else ScheduleKind.ONE_F_ONE_B
    return ScheduleKind(name)


def _fields(values: Mapping[str, Any], layout: ParallelLayout) -> dict[str, Any]:
    """Return the settings as fields of a planned job."""
    switches = ("fused_cross_entropy", "fused_attention", "gradient_fusion", "hidden_dropout")
    weight = DTYPE_BYTES[values["weight_dtype"]]
    return {
        "zero": int(values["zero"]),
        "expert_tp": int(values.get("etp") or 0),
        "sequence_parallel": bool(values["sequence_parallel"]) and layout.tp > 1,
        "recompute": Recompute(values["recompute"]),
        "weight_bytes": weight,
        "master_bytes": 0 if weight == 4 else 4,
        "gradient_bytes": DTYPE_BYTES[values["gradient_dtype"]],
        "moment_bytes": DTYPE_BYTES[values["moment_dtype"]],
        **{name: bool(values[name]) for name in switches if name in values},
    }


def _fitted(job: PlannedJob, by_stage: pd.DataFrame, names: list[str]) -> PlannedJob | None:
    """Return the job with the unstated settings that the recorded states fit; None where none do."""
    rows = by_stage[by_stage["stage"].between(0, job.layout.pp - 1)]
    columns = [f"{category}_bytes" for category in STATES]
    measured = rows[columns].astype("Float64").to_numpy(np.float64, na_value=np.nan)
    if not names or not len(measured) or np.isnan(measured).any() or (measured <= 0).any():
        return None
    parameters = [rank_parameters(job, int(stage)) for stage in rows["stage"]]
    best, least = None, _ALIKE
    for candidate in _candidates(job, names):
        expected = np.array(
            [
                [
                    sum(
                        one.size_bytes
                        for one in state_terms(candidate, own)
                        if one.category is kind
                    )
                    for kind in STATES
                ]
                for own in parameters
            ]
        )
        off = float(np.abs(expected / measured - 1.0).max())
        if off < least:
            best, least = candidate, off
    return best


def _candidates(job: PlannedJob, names: list[str]) -> Iterator[PlannedJob]:
    zeros = (0, 1, 2, 3) if "zero" in names and job.replicas > 1 else (job.zero,)
    weights = (2, 4) if "weight_dtype" in names else (job.weight_bytes,)
    gradients = (2, 4) if "gradient_dtype" in names else (job.gradient_bytes,)
    moments = (4, 2) if "moment_dtype" in names else (job.moment_bytes,)
    for zero, weight, gradient, moment in product(zeros, weights, gradients, moments):
        for master in (0,) if weight == 4 else (4, 0):
            yield replace(
                job,
                zero=zero,
                weight_bytes=weight,
                gradient_bytes=gradient,
                moment_bytes=moment,
                master_bytes=master,
            )


def _state_words(job: PlannedJob) -> Iterator[str]:
    """Yield bytes of a parameter on a rank; shards and types are not separable where they agree."""
    own = rank_parameters(job, 0)
    terms = list(state_terms(job, own))
    for kind in STATES:
        size = sum(one.size_bytes for one in terms if one.category is kind)
        yield f"{kind} {size / own.total:.3g} bytes for each of a rank's parameters"


def _word(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


_TERMS: dict[str, tuple[Category, ...]] = {
    "parameters": (Category.PARAMETERS,),
    "gradients": (Category.GRADIENTS,),
    "optimizer": (Category.OPTIMIZER,),
    "activations": (Category.ACTIVATIONS, Category.LOGITS),
    "other": (Category.BUFFERS,),
}
"""Recorded categories, and those of the formulas that they hold."""
_OF_MOMENT = ("activations", "other")
"""Categories that are comparable only where they were read at the peak."""
_SAME_MOMENT = 0.97
"""Least share of the peak that was allocated when the categories were read."""
EXPECTED_COLUMNS = (
    *("expected_bytes", "expected_reserved_bytes", "expected_reserved_low_bytes"),
    *("expected_reserved_high_bytes", "difference_bytes", "in_flight", "expected_logits_bytes"),
    *(f"expected_{name}_bytes" for name in CATEGORIES),
    *(f"{name}_difference_bytes" for name in CATEGORIES),
)


def with_expected(by_stage: pd.DataFrame, expected: ExpectedMemory | None) -> pd.DataFrame:
    """Return the table with the columns ``EXPECTED_COLUMNS``, null where they are not known.

    A difference is measured - expected: of the settled steps where they are known, else of the peak
    since start, which holds the first step too.
    """
    if expected is None:
        unknown = pd.array([pd.NA] * len(by_stage), dtype="Float64")
        return by_stage.assign(**dict.fromkeys(EXPECTED_COLUMNS, unknown))
    of_stage = {one.stage: one for one in expected.stages}
    values = pd.DataFrame(
        [
            _row(of_stage[stage]) if stage in of_stage else dict.fromkeys(EXPECTED_COLUMNS)
            for stage in by_stage["stage"].tolist()
        ],
        columns=list(EXPECTED_COLUMNS),
        index=by_stage.index,
    ).astype("Float64")
    found = by_stage.join(values)
    held = found["steady_bytes"].astype("Float64").fillna(found["peak_bytes"].astype("Float64"))
    found["difference_bytes"] = held - found["expected_bytes"]
    is_peak = (found["at_fullest_bytes"].astype("Float64") >= _SAME_MOMENT * held).fillna(
        value=False
    )
    for name in CATEGORIES:
        off = found[f"{name}_bytes"].astype("Float64") - found[f"expected_{name}_bytes"]
        found[f"{name}_difference_bytes"] = off.where(is_peak) if name in _OF_MOMENT else off
    return found


def _row(stage: StageMemory) -> dict[str, float]:
    low, middle, high = reserved_bytes(stage.allocated_bytes)
    return {
        "expected_bytes": np.rint(stage.allocated_bytes),
        "expected_reserved_bytes": np.rint(middle),
        "expected_reserved_low_bytes": np.rint(low),
        "expected_reserved_high_bytes": np.rint(high),
        "in_flight": stage.in_flight,
        "expected_logits_bytes": np.rint(stage.total(Category.LOGITS)),
        **{
            f"expected_{name}_bytes": np.rint(sum(stage.total(one) for one in categories))
            for name, categories in _TERMS.items()
        },
    }
