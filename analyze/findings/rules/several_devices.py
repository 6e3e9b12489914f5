"""Processes that use several devices: what each of them did, which no other account separates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from meshscope.probe.schema.terms import FindingKind, Severity

from ...account.kernels.by_device import use_by_device
from ...explain.run_account import Account
from ...tables.results import Finding
from ...wording.message import message

UNEVEN = 0.1
"""Share of the step by which devices that idle unequally are worth a warning."""
_SHOWN = 8
_MOST_RANKS = 4


def several_devices(account: Account) -> Iterator[Finding]:
    """Ranks with several devices: how busy each of them is."""
    uses = use_by_device(account.trace, account.windows)
    by_rank = [(rank, list(own)) for rank, own in groupby(uses, key=lambda one: one.rank)]
    for rank, own in by_rank[:_MOST_RANKS]:
        most, least = own[0], own[-1]
        apart = least.idle_frac - most.idle_frac
        yield Finding(
            kind=FindingKind.MISSING_DATA,
            severity=Severity.WARNING if apart >= UNEVEN else Severity.INFO,
            where={"rank": rank},
            claim=message(
                "several_devices.claim",
                devices=len(own),
                rank=rank,
                least=least.device,
                least_frac=1.0 - least.idle_frac,
                most=most.device,
                most_frac=1.0 - most.idle_frac,
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
                        idle=one.idle_frac,
                    )
                    for one in own[:_SHOWN]
                ),
            ),
            remedy=message("several_devices.remedy"),
            cause="several_devices",
        )
