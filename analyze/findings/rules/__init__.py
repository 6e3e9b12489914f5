"""The rules: from the account of a run to things to act on.

Each rule is a function from the account to findings; ``RULES`` is the whole
list. A rule states its thresholds, its evidence in measured figures, and a
remedy; it never invents a cost that the replay did not give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...explain.run_account import Account
from ...tables.results import Finding
from .capture import missing, missing_device_activity
from .clocks import clock_skew, corrected_clocks
from .data import unequal_data
from .device_errors import device_errors
from .devices import clock_throttle
from .differing import differing_operations
from .ended import ends
from .experts import popular_experts
from .host import host_stalls, unrecorded_delays
from .host_only_trace import host_only_findings
from .idle import idle_devices
from .jitter import jitter
from .link_rates import slow_rates
from .links import exposed_communication, slow_links
from .memory import memory
from .memory_copies import memory_copies
from .memory_growth import memory_growth
from .other_ranks import other_slow_ranks
from .pauses import pauses
from .placement import topology_violations
from .ports import network_ports
from .recomputation import recomputation
from .several_devices import several_devices
from .slow_ports import slow_ports
from .stages import bubble, stage_imbalances
from .starved import crowded_hosts
from .stragglers import straggler_ranks
from .unrecorded_time import unrecorded_time
from .volumes import unexpected_volumes
from .wires import uneven_wires

RULES: tuple[Callable[[Account], Iterator[Finding]], ...] = (
    ends,
    crowded_hosts,
    device_errors,
    differing_operations,
    clock_skew,
    corrected_clocks,
    straggler_ranks,
    other_slow_ranks,
    popular_experts,
    clock_throttle,
    stage_imbalances,
    unequal_data,
    recomputation,
    bubble,
    exposed_communication,
    topology_violations,
    unexpected_volumes,
    network_ports,
    slow_links,
    slow_rates,
    slow_ports,
    uneven_wires,
    host_stalls,
    pauses,
    jitter,
    unrecorded_delays,
    unrecorded_time,
    idle_devices,
    memory_copies,
    memory,
    memory_growth,
    missing,
    missing_device_activity,
    several_devices,
    host_only_findings,
)
