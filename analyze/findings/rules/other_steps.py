"""What the other steps say of a rank that is slow now and then.

They ran on the same machines, so that the difference shows what its slow steps are longer, whatever
the replay takes to depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...align.steps.paired_steps import Longer, longer_steps
from ...explain.causes import ranks_of
from ...explain.causes.gain_interval import CERTAIN
from ...explain.run_account import Account
from ...tables.results import Cause
from ...wording.message import Message, message
from .late_outside_passes import late_outside_passes
from .slow_steps import verdict_on


def with_other_steps(account: Account) -> Account:
    """Return the account with intervals of removal gains that hold what the other steps say.

    Where a repair is said to return more than the slow steps are longer, or less, something changes
    with the rank that the replay knows nothing of, or something else differs between the two kinds of
    steps. Which of them, nothing tells: the interval reaches as far as the steps show.
    """
    attribution = account.attribution
    if attribution is None:
        return account
    causes = tuple(_widened(account, cause) for cause in attribution.causes)
    return replace(account, attribution=replace(attribution, causes=causes))


def against_other_steps(account: Account, rank: int) -> Iterator[Message]:
    """Say what the steps of a rank that is slow now and then show by themselves."""
    longer = _longer(account, rank)
    if longer is None or longer.longer_ns <= 0:
        return
    step_ns = account.windows.step_time_ns
    yield message(
        "straggler_rank.slow_steps_longer",
        steps=longer.steps,
        longer_ns=longer.longer_ns,
        others=longer.others,
        error_ns=longer.error_ns,
    )
    share = longer.of_mean_step() / step_ns
    error = longer.of_mean_step(1.0) / step_ns - share
    yield message("straggler_rank.slow_steps_share", share=share, error=error)
    if longer.bad_steps:
        low, high = (ns / step_ns for ns in longer.range_of_mean_step())
        ends = {"low": max(low, 0.0), "high": high}
        yield message("straggler_rank.slow_steps_range", bad=longer.bad_steps, **ends)


def _widened(account: Account, cause: Cause) -> Cause:
    interval = cause.removal_gain_interval
    if cause.kind != "straggler_rank" or interval is None:
        return cause
    longer = _longer(account, ranks_of(cause)[0])
    if longer is None:
        return cause
    step_ns = account.windows.step_time_ns
    least, most = (max(0.0, ns / step_ns) for ns in longer.range_of_mean_step(CERTAIN))
    low, high = interval
    return replace(cause, removal_gain_interval=(min(low, least), max(high, most)))


def _longer(account: Account, rank: int) -> Longer | None:
    """Return by how much the slow steps of a rank are longer; None where it is slow in all of them."""
    late = late_outside_passes(account, rank)
    runs: Sequence[tuple[int, int]] = ()
    if late is not None:
        runs = [(run[0], run[-1]) for run in late.when.runs]
    elif account.attribution is not None:
        verdict = verdict_on(account.attribution.detection, rank)
        runs = () if verdict is None else verdict.slow_steps
    return longer_steps(account.windows, runs)
