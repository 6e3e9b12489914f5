"""The answers as a table, and what is counted of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean

from tests.truth.foreign.case import Answer, Outcome
from tests.truth.foreign.pipelines import GAIN, HEALTHY, HELD_OUT, NAMED, PRODUCTION, SHARE

BEGIN = "<!-- Begin of the table that `python -m tests.truth.foreign --write` writes. -->"
END = "<!-- End of that table. -->"


def report(outcomes: Sequence[Outcome], skipped: Sequence[str]) -> str:
    """Return the summary, all answers on production jobs, and the misses of each other group."""
    groups = dict.fromkeys(outcome.case.group for outcome in outcomes)
    lines = ["| inputs | cases | all right | answers | right |", "|---|---:|---:|---:|---:|"]
    lines += [_counts(group, [o for o in outcomes if o.case.group == group]) for group in groups]
    for group in (PRODUCTION, HELD_OUT):
        own = [o for o in outcomes if o.case.group == group]
        lines += ["", *_pipelines(group, own)] if own else []
    for group in groups:
        own = [o for o in outcomes if o.case.group == group]
        shown = own if group == PRODUCTION else [o for o in own if not o.holds]
        if shown:
            title = group.capitalize() if group == PRODUCTION else f"Misses in {group}"
            lines += ["", f"{title}:", "", *_rows(shown)]
    if skipped:
        lines += ["", "Not judged:", "", *(f"- {reason}" for reason in skipped)]
    return "\n".join(lines)


def _counts(group: str, own: Sequence[Outcome]) -> str:
    cases = {o.case.name for o in own}
    wrong = {o.case.name for o in own if not o.holds}
    right = sum(o.holds for o in own)
    return f"| {group} | {len(cases)} | {len(cases - wrong)} | {len(own)} | {right} |"


def _pipelines(group: str, own: Sequence[Outcome]) -> list[str]:
    """Return the figures of jobs in pipelines: errors of gains and shares, and who is blamed."""
    healthy = [o for o in own if o.check.what == HEALTHY]
    named = [o for o in own if o.check.what == NAMED]
    most = max((o.answer for o in healthy if isinstance(o.answer, float)), default=0.0)
    return [
        f"{group.capitalize()}, points of the step:",
        "",
        f"- gain of slow ranks: {_errors(own, lambda w: w.startswith(f'{GAIN} rank'))}",
        f"- gain of unequal data: {_errors(own, lambda w: w == f'{GAIN} data')}",
        f"- gain of heavy stages: {_errors(own, lambda w: w.startswith(f'{GAIN} stage'))}",
        f"- shares: {_errors(own, lambda w: w.startswith(SHARE))}",
        f"- most promised for a healthy rank: {most:.2f} % of the step; "
        f"above the limit in {sum(not o.holds for o in healthy)} of {len(healthy)} jobs",
        f"- the costliest fault is among the findings: {sum(o.holds for o in named)} of {len(named)}",
    ]


def _errors(own: Sequence[Outcome], is_meant: Callable[[str], bool]) -> str:
    meant = [o for o in own if is_meant(o.check.what)]
    errors = [abs(o.off) for o in meant if o.off is not None]
    if not errors:
        return f"no answer to any of {len(meant)}" if meant else "none"
    without = len(meant) - len(errors)
    return (
        f"mean error {mean(errors):.2f}, largest {max(errors):.2f}, within the goal "
        f"{sum(o.holds for o in meant)} of {len(meant)}"
        + (f", {without} without an answer" * bool(without))
    )


def _rows(own: Sequence[Outcome]) -> list[str]:
    return [
        "| case | asked | right | ours | off | |",
        "|---|---|---:|---:|---:|---|",
        *(
            f"| {o.case.name} | {o.check.what} | {_text(o.check.right)} | {_text(o.answer)} "
            f"| {'' if o.off is None else f'{o.off:+.2f}'} | {'' if o.holds else 'miss'} |"
            for o in own
        ),
    ]


def _text(answer: Answer) -> str:
    if answer is None:
        return "no answer"
    return answer if isinstance(answer, str) else f"{answer:.2f}"


def written(page: str, table: str) -> str:
    """Return the page with the table between its marks.

    Raises:
        ValueError: The page has no such place.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"
