"""What lists of single operations lack, because the capture does not hold it of every step."""

from __future__ import annotations

from meshscope.probe.schema.terms import StepDetail

from ..tables.trace import Trace
from ..wording.words import counted

_LACKING = (StepDetail.STEPS, StepDetail.STAGES, StepDetail.SUMS)


def not_one_by_one(trace: Trace) -> tuple[str, ...]:
    """Return of how many steps the operations are not listed, and what is known of them."""
    steps = trace.frame("step")
    held = steps["detail"].astype(object)
    # A step of which one rank holds less cannot be matched on all of them.
    lacking = steps[held.isin([detail.value for detail in _LACKING])].assign(detail=held)
    if lacking.empty:
        return ()
    total = steps["step"].nunique()
    limits = []
    summed = lacking.loc[lacking["detail"] == StepDetail.SUMS.value, "step"].nunique()
    if summed:
        sums = trace.frame("communication_sum")
        amount = (
            f"{int(sums['count'].sum())} operations of {int(sums['size_bytes'].sum()) / 1e9:.3g} GB"
        )
        limits.append(
            f"of {summed} of {counted(total, 'step')} the capture holds sums of communication only "
            f"({amount}, all ranks together): their operations are not in this list, and nobody's "
            "waiting in them is"
        )
    bare = lacking.loc[lacking["detail"] != StepDetail.SUMS.value, "step"].nunique()
    if bare:
        limits.append(
            f"of {bare} of {counted(total, 'step')} no communication was "
            + (
                "recorded: the level was lower"
                if trace.is_whole
                else "recorded, or read for want of room"
            )
        )
    return tuple(limits)
