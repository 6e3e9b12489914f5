"""MFU and tokens per second, with everything that they depend on."""

from __future__ import annotations

from .capture.trace import Trace
from .flops import DEFAULT_CONVENTION, flops_per_token, model_shape
from .peaks import datasheet_peak
from .results import Utilization


def utilization(trace: Trace, step_time_ns: float | None) -> Utilization:
    """Return MFU = model FLOPs of a step / (world size x peak x step time).

    Model FLOPs are counted by the default convention (``flops``). HFU is None here: it needs
    to know what was recomputed.

    Args:
        trace: A capture.
        step_time_ns: Mean length of a step; None where its end is not known, as without step marks.
    """
    run = trace.run
    tokens = run.get("tokens_per_step")
    shape = model_shape(run)
    flops = None
    if shape is not None and isinstance(tokens, int):
        flops = flops_per_token(shape, DEFAULT_CONVENTION) * tokens
    peak, source = device_peak(trace)
    unknown = ", ".join(
        name
        for name, missing in (
            ("the model's shape", shape is None),
            ("the tokens of a step", not isinstance(tokens, int)),
            ("the device's peak FLOP/s", peak is None),
            ("the ends of steps", step_time_ns is None),
        )
        if missing
    )
    seconds = (step_time_ns or 0.0) * 1e-9
    world = run.get("world_size")
    mfu = None
    if flops is not None and peak is not None and isinstance(world, int) and seconds > 0:
        mfu = flops / (world * peak * seconds)
    return Utilization(
        mfu=mfu,
        hfu=None,
        flops_per_step=flops,
        flops_convention=DEFAULT_CONVENTION,
        peak_flops=peak,
        peak_source=source,
        tokens_per_s=tokens / seconds if isinstance(tokens, int) and seconds > 0 else None,
        unknown_because=f"{unknown} not in the capture" if mfu is None else "",
    )


def device_peak(trace: Trace) -> tuple[float | None, str]:
    """Return FLOP/s of one device at peak, None if unknown, and where that comes from."""
    stated = trace.run.get("peak_flops")
    if isinstance(stated, float) and stated > 0:
        return stated, str(trace.run.get("peak_source") or "stated by the run")
    known = datasheet_peak(str(trace.run.get("device_name") or ""))
    return known if known is not None else (None, "unknown")
