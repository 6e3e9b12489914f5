"""What lists of single operations lack, because the capture does not hold it of every step."""

from __future__ import annotations

from meshscope.probe.schema.terms import StepDetail

from ..tables.trace import Trace
from ..wording.limits import Limit
from ..wording.message import message

_LACKING = (StepDetail.STEPS, StepDetail.STAGES, StepDetail.SUMS)


def not_one_by_one(trace: Trace) -> tuple[Limit, ...]:
    """Return of how many steps the operations are not listed, and what is known of them."""
    steps = trace.frame("step")
    held = steps["detail"].astype(object)
    # A step of which one rank holds less cannot be matched on all of them.
    lacking = steps[held.isin([detail.value for detail in _LACKING])].assign(detail=held)
    if lacking.empty:
        return ()
    total = steps["step"].nunique()
    limits: list[Limit] = []
    summed = lacking.loc[lacking["detail"] == StepDetail.SUMS.value, "step"].nunique()
    if summed:
        sums = trace.frame("communication_sum")
        limits.append(
            message(
                "unknown.sums_not_listed",
                summed=int(summed),
                steps=int(total),
                operations=int(sums["count"].sum()),
                size=int(sums["size_bytes"].sum()),
            )
        )
    bare = lacking.loc[lacking["detail"] != StepDetail.SUMS.value, "step"].nunique()
    if bare:
        if trace.is_whole:
            limits.append(message("missing.level_was_lower", bare=int(bare), steps=int(total)))
        else:
            limits.append(message("missing.not_read", bare=int(bare), steps=int(total)))
    return tuple(limits)
