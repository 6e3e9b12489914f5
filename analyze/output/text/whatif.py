"""A prediction as a document."""

from __future__ import annotations

from typing import Any

from ...wording.quantities import percent
from ..document import Block, Heading, Lines
from .amounts import limits_section, milliseconds

_ERRORS = {
    "steps_ns": "95 % interval of the mean gain over the steps",
    "simulation_ns": "simulation of the schedule",
    "transfers_ns": "fixed time of transfers",
}


def prediction_document(result: dict[str, Any]) -> list[Block]:
    """Return the step time before and after, the error, and what was assumed."""
    asked = ", ".join(
        ("fix " if change["is_fix"] else "set ")
        + change["name"]
        + (f"={change['value']}" if change["value"] else "")
        for change in result["changes"]
    )
    gain = result["gain_frac"]
    change = f"{percent(abs(gain))} {'shorter' if gain >= 0 else 'longer'}"
    error = result["error_ns"]
    margin = "error not known" if error is None else f"± {milliseconds(error)} ms"
    if error is not None and abs(gain) * result["step_time_ns"] <= error:
        change += ", within its error"
    lines = [
        f"step time now      {milliseconds(result['step_time_ns'])} ms",
        f"step time then     {milliseconds(result['predicted_step_time_ns'])} ms ({margin}), {change}",
    ]
    if result["gain_per_microbatch_frac"] is not None:
        per = result["gain_per_microbatch_frac"]
        lines.append(
            f"time per microbatch, {result['microbatches']} of them: {percent(abs(per))} "
            f"{'less' if per >= 0 else 'more'}"
        )
    parts = [f"{_ERRORS[name]} {milliseconds(ns)} ms" for name, ns in result["error_parts"].items()]
    if error is None:
        lines.append(f"error not known: {result['error_unknown']}")
    else:
        beyond = "; not in it: what is assumed" if result["assumptions"] else ""
        lines.append("error by chance: " + ", ".join(parts) + beyond)
    lines += [f"assumed: {text}" for text in result["assumptions"]]
    return [Heading(f"What if: {asked}"), Lines(lines), *limits_section(result["limits"])]
