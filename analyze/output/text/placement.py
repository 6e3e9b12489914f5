"""The mesh on its machines as blocks: hosts, violations and the better order."""

from __future__ import annotations

import shlex
from typing import Any

from meshscope.probe.schema.layout import MESH_AXES

from ...explain.placement.cards import Unchecked
from ...explain.placement.estimates import NoPrice
from ...explain.placement.launch import Refusal
from ...explain.placement.violations import CLAIMS, NO_PRICE, ViolationCode, unchecked_text
from ...wording.quantities import percent
from ..document import Block, Lines, Table, Verbatim, facts, section
from .amounts import left_out

BETTER_ORDER = "Better order; use one of these"
_MOST_HOSTS = 32
_MOST_LINES = 64
"""Ranks up to which the rank file is printed; JSON has it for any number."""

_UNKNOWN = {
    "layout": "Placement unknown: the layout is unknown. State it in a topology file.",
    "hosts": "Placement unknown: the host of some ranks is not recorded. State [[host]] in a topology file.",
}


def placement_blocks(result: dict[str, Any]) -> list[Block]:
    """Return the drawing, the violations and what to paste.

    Args:
        result: As ``topology_to_json`` returns it, with ``placement``.
    """
    found = result["placement"]
    if found["hosts"] is None:
        return [Lines([unknown_placement(found)])]
    claims, missing = violation_claims(found), unchecked_claim(found)
    return [
        *section("Mesh on the hosts", hosts_table(result)),
        *section("Violations", facts(claims) if claims else Lines(["None found."])),
        *section(BETTER_ORDER, Verbatim(paste_lines(found["better_order"]))),
        *([Lines([missing])] if missing else []),
    ]


def violation_claims(found: dict[str, Any]) -> list[str]:
    """Return what is wrong and what that costs, a sentence each."""
    claims = [
        f"{one['axis'].upper()}: {CLAIMS[ViolationCode(one['code'])]}. {_price(one)}"
        for one in found["violations"]
    ]
    return claims + [f"{one['claim']}. {_card_price(one)}" for one in found["cards"]]


def unchecked_claim(found: dict[str, Any]) -> str:
    """Return what was not checked; nothing where all was."""
    return unchecked_text([Unchecked(code) for code in found["not_checked"]])


def unknown_placement(found: dict[str, Any]) -> str:
    """Return why nothing is known of the hosts."""
    return _UNKNOWN[found["unknown"]]


def hosts_table(result: dict[str, Any]) -> Table:
    """Return a row a host: its ranks, and which positions of each axis they have."""
    places, hosts = result["ranks"], list(result["placement"]["hosts"].items())
    shown = [axis for axis in MESH_AXES if result["layout"][axis] > 1]
    rows = [
        (host, len(ranks), _spans(ranks), *(_axis(places, ranks, axis) for axis in shown))
        for host, ranks in hosts[:_MOST_HOSTS]
    ]
    headers = ("host", "ranks", "which", *shown)
    return Table(headers, rows, notes=left_out(len(hosts) - len(rows), "hosts"))


def _card_price(one: dict[str, Any]) -> str:
    if one["cost_ns_per_step"] is None:
        return "Cost unknown."
    part = "" if one["cost_frac"] is None else f" ({percent(one['cost_frac'])})"
    return f"Costs at most {one['cost_ns_per_step'] / 1e6:.2f} ms per step{part}."


def _price(one: dict[str, Any]) -> str:
    if one["exposed_ns_per_step"] is None:
        return "Cost unknown: no step was recorded."
    cost = f"Exposed: {one['exposed_ns_per_step'] / 1e6:.2f} ms per step ({percent(one['cost_frac'])})."
    if one["gain_unknown"] is not None:
        return f"{cost} {NO_PRICE[NoPrice(one['gain_unknown'])]}."
    if one["gain_ns_per_step"] is None:
        return f"{cost} No order is predicted to be 1 % faster at the rates of this run."
    gain = f"{one['gain_ns_per_step'] / 1e6:.2f} ms per step ({percent(one['gain_frac'])})"
    own = f"{one['own_gain_ns_per_step'] / 1e6:.2f} ms by this axis"
    return f"{cost} The better order returns {gain}, {own}, predicted by replay."


def paste_lines(better: dict[str, Any] | None) -> list[str]:
    """Return the better order in the words of launchers; nothing without one."""
    if better is None:
        return []
    mesh = better["device_mesh"]
    names = ", ".join(f'"{name}"' for name in mesh)
    sizes = ", ".join(map(str, mesh.values()))
    lines = [
        f"# Order, slowest first: {better['order']}",
        *_megatron_core(better["megatron_order"], better["megatron_refusal"]),
        *_megatron_lm(better["megatron_flag"]),
        "# torch:",
        f"init_device_mesh(device, ({sizes},), mesh_dim_names=({names},))",
        *_experts(better["expert_groups"]),
    ]
    if len(better["rank_file"]) <= _MOST_LINES:
        lines += ["# Or keep the order, and start each rank elsewhere (Open MPI rank file):"]
        lines += better["rank_file"]
        names = " ".join(map(shlex.quote, better["slurm_hostfile"]))
        lines += ["# SLURM, then: SLURM_HOSTFILE=hosts srun --distribution=arbitrary ..."]
        lines += [f"printf '%s\\n' {names} > hosts"]
    else:
        lines += [
            "# Or keep the order, and start each rank elsewhere: rank file of Open MPI and hosts for SLURM",
            f"# of all {len(better['rank_file'])} ranks: --format json, placement.better_order",
        ]
    return lines


_REFUSALS = {
    Refusal.STAGES: "Megatron-core refuses this order: with context or expert parallelism, stages have to vary slowest",
    Refusal.EXPERTS: "Megatron-core would share the experts among other ranks in this order",
    Refusal.EXPERT_TENSORS: "Megatron-core would split experts, if there are any, among other ranks in this order",
}


def _megatron_core(order: str | None, refusal: str | None) -> list[str]:
    """Return how Megatron-core takes the order."""
    if order is None:
        return [f"# {_REFUSALS[Refusal(refusal or Refusal.STAGES)]}"]
    return ["# Megatron-core, initialize_model_parallel:", f'order="{order}"']


def _experts(groups: list[list[int]]) -> list[str]:
    """Return which ranks have to share the experts for the price to hold."""
    if not groups or len(groups) * len(groups[0]) > _MOST_LINES:
        return []
    named = " ".join(",".join(map(str, own)) for own in groups)
    return [f"# with these groups of experts: {named}"]


def _megatron_lm(flag: str | None) -> list[str]:
    """Return how the training scripts of Megatron-LM take the order."""
    if flag is None:
        return ["# Megatron-LM's training scripts have no option for this order"]
    if not flag:
        return ["# Megatron-LM's training scripts: their default, without --use-tp-pp-dp-mapping"]
    return ["# Megatron-LM's training scripts:", flag]


def _axis(places: dict[str, dict[str, int]], ranks: list[int], axis: str) -> str:
    own = [places[str(rank)][axis] for rank in ranks if str(rank) in places]
    return _spans(sorted(set(own))) if own else "unknown"


def _spans(numbers: list[int]) -> str:
    """Return numbers with runs joined: 0-3,8."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
