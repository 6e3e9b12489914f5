"""MFU and tokens per second, with everything that they depend on, held against what was measured.

No device computes faster than its peak. An MFU above 100 %, or model FLOPs that take longer at peak
than the devices computed, come from a wrong input; which one is most likely is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from ...formulas.flops import (
    CONVENTIONS,
    DEFAULT_CONVENTION,
    RanModel,
    conventions_of,
    flops_per_token,
    known_model,
)
from ...formulas.peaks import datasheet_peak
from ...tables.classes import COMPUTE_CLASSES, UNATTRIBUTED, UNSEPARATED
from ...tables.results import Utilization
from ...tables.trace import Trace
from ...wording.limits import Limit
from ...wording.message import Message, Text, message
from .devices import devices_per_rank

STATED = "stated"
"""Convention of FLOPs that the user states: what they count is for him to know."""
_APART = 0.05
"""Stated tokens that differ by more from those that the ranks recorded contradict them."""
_SPARSE = (1.9, 2.1)
"""A stated peak so many times that of the data sheet is the one for sparse matrices."""


def utilization(trace: Trace, step_time_ns: float | None) -> Utilization:
    """Return MFU = model FLOPs of a step / (world size x devices a rank x peak x step time).

    Model FLOPs are counted by all conventions (``probe.schema.model.counts``); ``mfu`` is that
    of the default one, or of what the user states where no formula counts his model. Packed documents count by their real lengths where these were recorded. HFU
    is None here: it needs to know what was recomputed.

    Args:
        trace: A capture.
        step_time_ns: Mean length of a step; None where its end is not known, as without step marks.
    """
    run = trace.run
    known = known_model(run)
    tokens, token_notes = step_tokens(trace)
    model = known.model or known.ran
    # What a rank multiplies in a step counts for each replica; else what a token does, for each token.
    is_of_steps = isinstance(model, RanModel) and model.per_step
    times = _replicas(trace) if is_of_steps else tokens
    flops: dict[str, float] = {}
    if model is not None and times is not None:
        keys = None if is_of_steps else keys_per_token(trace)
        names = conventions_of(model)
        flops = {name: flops_per_token(model, name, keys) * times for name in names}
    stated = run.get("flops_per_token")
    convention = DEFAULT_CONVENTION
    if isinstance(stated, float) and stated > 0:
        convention = STATED
        flops |= {STATED: stated * tokens} if tokens is not None else {}
    has_amount = tokens is not None if convention == STATED else times is not None
    peak, source = device_peak(trace)
    world = run.get("world_size")
    devices = devices_per_rank(trace)
    seconds = (step_time_ns or 0.0) * 1e-9
    missing = (
        (known.unknown_because, model is None and convention != STATED),
        (message("lacks.mesh") if is_of_steps else message("lacks.tokens"), not has_amount),
        (_peak_name(source), peak is None),
        (message("lacks.ends_of_steps"), not seconds > 0),
        (message("lacks.number_of_ranks"), not isinstance(world, int) or world < 1),
    )
    unknown = [name for name, is_missing in missing if is_missing]
    mfu = {}
    if not unknown and peak is not None and isinstance(world, int):
        mfu = {name: value / (world * devices * peak * seconds) for name, value in flops.items()}
    return Utilization(
        mfu=mfu.get(convention),
        hfu=None,
        flops_per_step=flops.get(convention),
        flops_convention=convention,
        peak_flops=peak,
        peak_source=source,
        devices_per_rank=devices,
        tokens_per_s=tokens / seconds if tokens is not None and seconds > 0 else None,
        unknown_because=message("why.capture_lacks", what=unknown) if unknown else "",
        mfu_by_convention=dict.fromkeys(CONVENTIONS) | mfu,
        flops_by_convention=dict.fromkeys(CONVENTIONS) | flops,
        notes=(*known.notes, *token_notes, *_peak_notes(trace, peak)) if not unknown else (),
    )


def step_tokens(trace: Trace) -> tuple[float | None, tuple[Limit, ...]]:
    """Return the tokens of a step over all replicas, as stated, else as the ranks recorded them.

    Returns:
        The tokens, None where neither is known, and what contradicts them.
    """
    stated = trace.run.get("tokens_per_step")
    recorded = _recorded_tokens(trace)
    if isinstance(stated, bool) or not isinstance(stated, int | float) or stated <= 0:
        return recorded, ()
    if recorded is not None and abs(recorded / stated - 1.0) > _APART:
        note = message("doubt.other_tokens", stated=float(stated), recorded=recorded)
        return float(stated), (note,)
    return float(stated), ()


def _recorded_tokens(trace: Trace) -> float | None:
    """Return the mean tokens of a replica times the replicas; None where the mesh is not known.

    Where context parallelism splits sequences, a rank may have recorded its own part alone.
    """
    tokens = trace.frame("step")["tokens"].astype("float64")
    known = tokens[tokens > 0]
    replicas = _replicas(trace)
    if replicas is None or (trace.layout is not None and trace.layout.cp > 1) or known.empty:
        return None
    return float(known.mean()) * replicas


def _replicas(trace: Trace) -> int | None:
    """Return how many replicas of the model train; None where the mesh is not known."""
    if trace.layout is None:
        # One rank is its own mesh.
        return 1 if trace.run.get("world_size") == 1 else None
    return trace.layout.dp


def keys_per_token(trace: Trace) -> float | None:
    """Return the tokens of its own document that a token could attend to, on average.

    ``sum(L^2) / sum(L)`` over the documents of all recorded microbatches; None where none are. What is
    recorded of a microbatch again takes the place of what was before.
    """
    microbatches = trace.frame("microbatch")
    microbatches = microbatches.drop_duplicates(["rank", "step", "microbatch"], keep="last")
    tokens = float(microbatches["tokens"].sum()) if len(microbatches) else 0.0
    return float(microbatches["sum_sq"].sum()) / tokens if tokens > 0 else None


def device_peak(trace: Trace) -> tuple[float | None, str]:
    """Return FLOP/s of one device at peak, None if unknown, and where that comes from."""
    stated = trace.run.get("peak_flops")
    if isinstance(stated, float) and stated > 0:
        return stated, str(trace.run.get("peak_source") or "stated by the run")
    known = datasheet_peak(str(trace.run.get("device_name") or ""))
    return known if known is not None else (None, str(trace.run.get("peak_source") or "unknown"))


def _peak_name(source: str) -> Text:
    """Return what is missing where there is no peak, and why, if that is known."""
    if source == "unknown":
        return message("lacks.peak")
    return message("lacks.peak_because", source=source)


def _peak_notes(trace: Trace, peak: float | None) -> tuple[Limit, ...]:
    device = str(trace.run.get("device_name") or "")
    known = datasheet_peak(device)
    if known is None or peak is None or not _SPARSE[0] <= peak / known[0] <= _SPARSE[1]:
        return ()
    return (message("doubt.sparse_peak", peak=peak, device=device, dense=known[0]),)


LEAST_WORK = "causal"
"""Convention whose FLOPs no kernel can avoid: those of masked scores can be left out."""
_TOLERANCE = 1.02
"""Peaks of data sheets and borders of spans are no more exact."""
_FORWARD = 1 / 3
"""Share of the model's FLOPs that is the forward pass."""
_FAR = 1.5
"""A stated peak that is so many times below the data sheet's is a slip."""


def possible_utilization(use: Utilization, trace: Trace, by_step: pd.DataFrame) -> Utilization:
    """Return MFU with HFU where recomputation was seen; unknown where it cannot be true.

    Args:
        use: MFU as the inputs give it.
        trace: The capture.
        by_step: The ledger, one row a rank and step.
    """
    if use.mfu is None:
        return use
    least = use.mfu_by_convention.get(LEAST_WORK) or use.mfu
    computing = computing_frac(trace, by_step)
    if least > 1.0:
        return _refused(use, trace, message("mfu.beyond_peak", ratio=least))
    if computing is not None and least > _TOLERANCE * computing:
        why = message("mfu.beyond_computing", share=least, computing=computing)
        return _refused(use, trace, why)
    possible = {
        name: value if value is not None and value <= 1.0 else None
        for name, value in use.mfu_by_convention.items()
    }
    mfu, unknown = (use.mfu, "") if use.mfu <= 1.0 else (None, _masked(use, least))
    return replace(
        use,
        mfu=mfu,
        hfu=_hfu(mfu, by_step),
        mfu_by_convention=possible,
        unknown_because=unknown,
    )


def computing_frac(trace: Trace, by_step: pd.DataFrame) -> float | None:
    """Return the share of the step in which devices computed; None where only hosts were timed."""
    device = str(trace.run.get("device_name") or "")
    spans = trace.frame("span")
    timed = (
        device.startswith("CPU")
        or trace.row_count("kernel") > 0
        or (len(spans) > 0 and bool(spans["device_dur_ns"].notna().any()))
    )
    total = float(by_step["step_ns"].sum())
    if not timed or trace.kernel_steps is not None or not total or by_step[UNSEPARATED].any():
        return None
    # Between spans a host may compute unseen; between kernels no device does.
    unseen = [] if trace.row_count("kernel") else [UNATTRIBUTED]
    known = by_step[[*COMPUTE_CLASSES, "exposed_unknown", *unseen]]
    return float(known.to_numpy().sum()) / total


def _hfu(mfu: float | None, by_step: pd.DataFrame) -> float | None:
    """Return MFU plus what is computed again: its time over that of the forward passes.

    A forward pass is a third of the FLOPs (Korthikanti et al. 2022, arXiv 2205.05198): HFU is
    4/3 of MFU where all of it is computed again.
    """
    again, forward = float(by_step["recompute"].sum()), float(by_step["forward"].sum())
    if mfu is None or again <= 0 or forward <= 0:
        return None
    return mfu * (1.0 + _FORWARD * min(1.0, again / forward))


def _masked(use: Utilization, least: float) -> Text:
    return message(
        "mfu.masked",
        mfu=use.mfu or 0.0,
        convention=use.flops_convention,
        least=LEAST_WORK,
        least_mfu=least,
    )


def _refused(use: Utilization, trace: Trace, why: Message) -> Utilization:
    return replace(
        use,
        mfu=None,
        hfu=None,
        mfu_by_convention=dict.fromkeys(use.mfu_by_convention),
        unknown_because=message("mfu.impossible", why=why, likely=_likely(use, trace)),
    )


def _likely(use: Utilization, trace: Trace) -> Message:
    """Return which input is most likely wrong, and what it is."""
    run, peak = trace.run, use.peak_flops or 0.0
    known = datasheet_peak(str(run.get("device_name") or ""))
    if known is not None and peak * _FAR < known[0]:
        return message("mfu.wrong_peak", peak=peak, source=use.peak_source, dense=known[0])
    if use.notes:
        return message("mfu.wrong_input", note=use.notes[0])
    if "measured" in use.peak_source or str(run.get("device_name") or "").startswith("CPU"):
        return message("mfu.low_peak", peak=peak, source=use.peak_source)
    return _inputs(use, run)


def _inputs(use: Utilization, run: Mapping[str, object]) -> Message:
    tokens = run.get("tokens_per_step")
    world = run.get("world_size")
    model: Text = ""
    if isinstance(tokens, int) and tokens > 0 and use.flops_per_step:
        model = message("mfu.check_model", flops=use.flops_per_step / tokens)
    return message(
        "mfu.check",
        tokens=float(tokens) if isinstance(tokens, int) else float("nan"),
        model=model,
        ranks=world,
        peak=use.peak_flops or 0.0,
        source=use.peak_source,
    )
