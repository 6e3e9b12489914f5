"""A balance as a document: the split now, the proposals, and how to set the best."""

from __future__ import annotations

from typing import Any

from ...wording.quantities import percent
from ..document import Block, Heading, Table, Verbatim, section
from .amounts import limits_section, milliseconds, size

_NAMES = {
    "megatron": "Megatron",
    "torchtitan": "torchtitan",
    "deepspeed": "DeepSpeed",
    "meshscope": "meshscope",
}


def balance_document(result: dict[str, Any]) -> list[Block]:
    """Return the splits with time, gain and memory, then the settings of the best."""
    current, proposals = result["current"], result["proposals"]
    best = proposals[0] if proposals else None
    if best is None:
        title = "Balance: no split gains more than the noise"
    else:
        gain = best["gain_frac"]
        word = "shorter" if gain >= 0 else "longer"
        title = f"Balance: {_listed(best['layers'])} makes the step {percent(abs(gain))} {word}"
        if best["layers"] == current["layers"]:
            title = f"Balance: {_listed(best['layers'])} is today's split"
        if best["fits"] is False:
            title += ", but does not fit into memory"
    rows = [["now", *_row(current), "", ""]]
    for one in proposals:
        interval = f"{percent(one['gain_low_frac'])} to {percent(one['gain_high_frac'])}"
        rows.append(["then", *_row(one), percent(one["gain_frac"]), interval])
    headers = ["", "layers by stage", "step ms", "fullest stage", "gain", "interval"]
    certificate = result["certificate"]
    proof = [_proof(certificate)] if certificate is not None and best is not None else []
    settings = _settings(best["settings"]) if best is not None else []
    return [
        Heading(title),
        Table(headers, rows, notes=proof),
        *section("Settings", Verbatim(settings)),
        *limits_section(result["limits"]),
    ]


def _row(one: dict[str, Any]) -> list[str]:
    held = size(one["memory_bytes"]) + (" (over the cap)" if one["fits"] is False else "")
    return [_listed(one["layers"]), milliseconds(one["step_time_ns"]), held]


def _listed(layers: list[int]) -> str:
    return ",".join(map(str, layers))


def _proof(certificate: dict[str, Any]) -> str:
    busiest, bound = certificate["busiest_ns"], certificate["bound_ns"]
    if certificate["is_optimal"]:
        return (
            f"Proven: no split has a less busy stage than {milliseconds(busiest)} ms a microbatch"
        )
    return f"Busiest stage {milliseconds(busiest)} ms a microbatch; bound {milliseconds(bound)} ms"


def _settings(settings: dict[str, str]) -> list[str]:
    lines = []
    for name, text in settings.items():
        lines += [
            f"{_NAMES[name]}: {line}" if not at else f"  {line}"
            for at, line in enumerate(text.splitlines())
        ]
    return lines
