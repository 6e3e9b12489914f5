"""The JSON form of where the ranks run and which axes lie badly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...explain.placement.cards import CardViolation, Unchecked, card_violations, unchecked
from ...explain.placement.estimates import NoPrice
from ...explain.placement.launch import (
    Refusal,
    expert_groups,
    host_list,
    may_have_experts,
    megatron_flag,
    megatron_order,
    mesh_shape,
    rank_file,
)
from ...explain.placement.members import expert_places
from ...explain.placement.violations import (
    Placement,
    Violation,
    ViolationCode,
    card_text,
    crossing_codes,
    hosts_of,
    placement,
)
from ...explain.run_account import Account
from ...findings.diagnosis import account_or_end
from ...findings.measure import NoStepsError
from ...tables.trace import Trace


def measured(trace: Trace) -> Account | None:
    """Return the account of a run; None without steps."""
    try:
        found = account_or_end(trace)
    except NoStepsError:
        return None
    return found if isinstance(found, Account) else None


def placement_to_json(
    trace: Trace, account_of: Callable[[Trace], Account | None] = measured
) -> dict[str, Any]:
    """Return hosts, violations with their price, and the better order in the words of launchers.

    Args:
        trace: The capture.
        account_of: Measures the run; asked only where an axis lies badly, all else follows from the mesh.
    """
    hosts, unknown = hosts_of(trace)
    missing = [code.value for code in unchecked(trace)]
    empty: dict[str, Any] = {"hosts": None, "violations": [], "cards": [], "better_order": None}
    if hosts is None or trace.layout is None:
        return {**empty, "unknown": unknown, "priced": False, "not_checked": missing}
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host, []).append(rank)
    codes = crossing_codes(trace.layout, hosts, expert_places(trace))
    cards = card_violations(trace, None)
    account = account_of(trace) if codes or cards else None
    found = (
        Placement(hosts=hosts, unknown=None, cards=cards) if account is None else placement(account)
    )
    step_ns = None if account is None else account.windows.mean_ns
    rows = [_violation(one, found.no_price, step_ns) for one in found.violations]
    if found.no_price is NoPrice.PORT_SPEED:
        missing.append(Unchecked.ORDERS.value)
    if codes and account is None:
        # Pipeline neighbours on one host are a fault only where another order is faster.
        rows = [
            {**_NO_PRICE, "code": code.value, "axis": axis.value}
            for code, axis in codes
            if code is not ViolationCode.PIPELINE_INSIDE
        ]
    order = next((one.order for one in found.violations if one.order is not None), None)
    return {
        "hosts": by_host,
        "unknown": None,
        "priced": account is not None or not codes,
        "violations": rows,
        "cards": [_card(one, step_ns) for one in found.cards],
        "better_order": None if order is None else _remedy(trace, hosts, order),
        "not_checked": missing,
    }


_NO_PRICE = dict.fromkeys(
    (
        "left_bytes_per_step",
        "exposed_ns_per_step",
        "cost_frac",
        "gain_ns_per_step",
        "gain_frac",
        "gain_unknown",
        "own_gain_ns_per_step",
    )
)


def _violation(found: Violation, no_price: NoPrice | None, step_ns: float | None) -> dict[str, Any]:
    is_unknown = found.gain_ns is None and no_price is not None
    step = step_ns or float("nan")
    return {
        "code": found.code.value,
        "axis": found.axis.value,
        "left_bytes_per_step": found.left_bytes,
        "exposed_ns_per_step": found.exposed_ns,
        "cost_frac": found.exposed_ns / step,
        "gain_ns_per_step": found.gain_ns,
        "gain_frac": None if found.gain_ns is None else found.gain_ns / step,
        "gain_unknown": no_price.value if no_price is not None and is_unknown else None,
        "own_gain_ns_per_step": found.own_gain_ns,
    }


def _card(found: CardViolation, step_ns: float | None) -> dict[str, Any]:
    has_cost = found.cost_ns is not None and step_ns
    return {
        "code": found.code.value,
        "host": found.host,
        "port": found.port,
        "ranks": list(found.ranks),
        "axis": None if found.axis is None else found.axis.value,
        "bytes_per_s": found.bytes_per_s,
        "others_bytes_per_s": found.others_bytes_per_s,
        "cost_ns_per_step": found.cost_ns,
        "cost_frac": (found.cost_ns or 0.0) / (step_ns or 1.0) if has_cost else None,
        "claim": str(card_text(found)),
    }


def _remedy(trace: Trace, hosts: tuple[str, ...], order: str) -> dict[str, Any]:
    if trace.layout is None:
        return {}
    layout, experts = trace.layout, expert_places(trace)
    by_rank = host_list(layout, hosts, order)
    megatron = megatron_order(layout, order, experts, has_experts=may_have_experts(trace))
    is_refused = isinstance(megatron, Refusal)
    return {
        "order": order,
        "megatron_order": None if is_refused else megatron,
        "megatron_refusal": megatron.value if isinstance(megatron, Refusal) else None,
        "megatron_flag": megatron_flag(layout, order, experts),
        "device_mesh": mesh_shape(layout, order),
        "expert_groups": expert_groups(layout, order, experts),
        "slurm_hostfile": by_rank,
        "rank_file": rank_file(by_rank),
    }
