"""The fingerprint: what has to be equal in two runs for their times to be compared."""

from __future__ import annotations

from collections.abc import Sequence

from meshscope.probe.schema.errors import ConfigError

from ..wording.message import message
from .facts import Baseline
from .loaded import LoadedRun
from .results import Check, Reason

BATCH = frozenset({"tokens_per_step", "microbatches"})
"""Of these, a different number of passes is the change that is looked for."""
COUNTED = frozenset({"microbatches"})
"""Of these alone, counts tell what changed: a difference does not forbid the comparison."""


def different(
    baseline: Baseline, runs: Sequence[LoadedRun], allowed: frozenset[str]
) -> dict[str, tuple[object, object]]:
    """Return what differs of the setup: name, baseline and candidate; unknown on a side is no difference."""
    found: dict[str, tuple[object, object]] = {}
    for run in runs:
        for name, before in baseline.setup.items():
            after = run.setup.get(name)
            if name in allowed or before is None or after is None:
                continue
            if before != after:
                found.setdefault(name, (before, after))
    return found


def require_one_job(runs: Sequence[LoadedRun]) -> None:
    """Refuse runs of unlike jobs as one baseline, and runs that broke off.

    Raises:
        ConfigError: Some part of the setup differs between two of them, or one broke off.
    """
    for run in runs:
        if run.ended:
            raise ConfigError(
                message("refused.broke_off", end=run.ended),
                where=run.name,
                remedy=message("advice.leave_out"),
            )
    for run in runs[1:]:
        for name, before in runs[0].setup.items():
            after = run.setup.get(name)
            if None not in (before, after) and before != after:
                raise ConfigError(
                    message(
                        "refused.other_setup",
                        name=name,
                        own=str(after),
                        other=str(before),
                        run=runs[0].name,
                    ),
                    where=run.name,
                    remedy=message("advice.one_setup"),
                )


def hides_work(setup: dict[str, tuple[object, object]], check: Check) -> bool:
    """Return whether a count says by itself why the batch of a step differs: more or fewer passes."""
    is_pass = check.metric.startswith("count.passes.")
    return (
        bool(setup)
        and set(setup) <= BATCH
        and is_pass
        and check.reason in (Reason.MORE, Reason.FEWER)
    )
