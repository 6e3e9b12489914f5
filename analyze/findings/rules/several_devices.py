"""Processes that use several devices, which wait for each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshscope.probe.schema.terms import FindingKind, Severity

from ...explain.run_account import Account
from ...tables.results import DeviceUse, Finding
from ...wording.message import Message, message
from .grading import MIN_COST

UNEVEN = 0.1
"""Share of the step that devices idle beside others on average, from which on it is worth a warning."""
_SHOWN = 8
_MOST_RANKS = 4


def several_devices(account: Account) -> Iterator[Finding]:
    """Ranks whose devices idle while another one of them works.

    The cost is unknown: whether the work can be spread is not recorded.
    """
    for rank in list(dict.fromkeys(use.rank for use in account.uses))[:_MOST_RANKS]:
        own = [use for use in account.uses if use.rank == rank]
        beside = float(np.mean([use.beside_frac for use in own]))
        if beside < MIN_COST:
            continue
        yield Finding(
            kind=FindingKind.DEVICE_IMBALANCE,
            severity=Severity.WARNING if beside >= UNEVEN else Severity.INFO,
            where={"rank": rank},
            claim=message(
                "several_devices.claim",
                devices=len(own),
                rank=rank,
                beside=beside,
                most=own[0].device,
                most_frac=own[0].busy_frac,
                least=own[-1].device,
                least_frac=own[-1].busy_frac,
            ),
            cost_frac=None,
            removal_gain_frac=None,
            confidence=0.9,
            evidence=(
                message("several_devices.as_one"),
                *(
                    message(
                        "several_devices.use",
                        device=one.device,
                        compute=one.compute_frac,
                        communication=one.communication_frac,
                        beside=one.beside_frac,
                        idle=one.idle_frac,
                    )
                    for one in own[:_SHOWN]
                ),
                *(said for one in own[:_SHOWN] if (said := _why_idle(one)) is not None),
            ),
            remedy=message("several_devices.remedy"),
        )


def _why_idle(use: DeviceUse) -> Message | None:
    """Return why a device idled, beside others or with them, the largest cause first; None if unknown."""
    known = sorted((use.idle_causes_frac or {}).items(), key=lambda pair: -pair[1])
    causes = [
        message("idle.small_cause", cause=cause, share=share)
        for cause, share in known
        if share >= MIN_COST
    ]
    if not causes:
        return None
    return message("several_devices.why_idle", device=use.device, causes=causes)
