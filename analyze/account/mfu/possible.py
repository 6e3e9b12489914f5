"""MFU held against what was measured: HFU, and numbers that cannot be true are refused.

No device computes faster than its peak. An MFU above 100 %, or model FLOPs that take longer at peak
than the devices computed, come from a wrong input; which one is most likely is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from ...formulas.peaks import datasheet_peak
from ...tables.classes import COMPUTE_CLASSES, UNATTRIBUTED, UNSEPARATED
from ...tables.results import Utilization
from ...tables.trace import Trace
from ...wording.message import Message, Text, message

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
