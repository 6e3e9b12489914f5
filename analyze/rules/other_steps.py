"""What the other steps say of a rank that is slow on and off.

They ran on the same machines, so that the difference shows what its slow steps are longer, whatever
the replay takes to depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..account import Account
from ..causes import ranks_of
from ..causes.doubts import CERTAIN
from ..results import Cause
from ..steps.on_and_off import Longer, longer_steps
from .late_steps import late_steps
from .slow_steps import verdict_on


def with_other_steps(account: Account) -> Account:
    """Return the account with intervals of removal gains that hold what the other steps say.

    Where a repair is told to return more than the slow steps are longer, or less, something changes
    with the rank that the replay knows nothing of, or something else differs between the two kinds of
    steps. Which of them, nothing tells: the interval reaches as far as the steps show.
    """
    attribution = account.attribution
    if attribution is None:
        return account
    causes = tuple(_widened(account, cause) for cause in attribution.causes)
    return replace(account, attribution=replace(attribution, causes=causes))


def against_other_steps(account: Account, rank: int) -> Iterator[str]:
    """Say what the steps of a rank that is slow on and off show by themselves."""
    longer = _longer(account, rank)
    if longer is not None and longer.longer_ns > 0:
        yield (
            f"the {longer.steps} steps in which it is slow are {longer.longer_ns / 1e6:.1f} ms longer than the "
            f"other {longer.others} (standard error {longer.error_ns / 1e6:.1f} ms), whatever else differs: "
            f"{longer.of_mean_step() / account.windows.step_time_ns:.1%} of the mean step"
        )


def _widened(account: Account, cause: Cause) -> Cause:
    interval = cause.removal_gain_interval
    if cause.kind != "straggler_rank" or interval is None:
        return cause
    longer = _longer(account, ranks_of(cause)[0])
    if longer is None:
        return cause
    step_ns = account.windows.step_time_ns
    least, most = (max(0.0, longer.of_mean_step(sign * CERTAIN) / step_ns) for sign in (-1, 1))
    low, high = interval
    return replace(cause, removal_gain_interval=(min(low, least), max(high, most)))


def _longer(account: Account, rank: int) -> Longer | None:
    """Return by how much the slow steps of a rank are longer; None where it is slow in all of them."""
    late = late_steps(account, rank)
    runs: Sequence[tuple[int, int]] = ()
    if late is not None:
        runs = [(run[0], run[-1]) for run in late.when.runs]
    elif account.attribution is not None:
        verdict = verdict_on(account.attribution.detection, rank)
        runs = () if verdict is None else verdict.slow_steps
    return longer_steps(account.windows, runs)
