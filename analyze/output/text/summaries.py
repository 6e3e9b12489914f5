"""A large run as documents: its segments, and the first answer about it."""

from __future__ import annotations

from collections.abc import Iterator

from ...scale.account_steps import AccountSteps
from ...scale.compact import Compacted
from ...scale.slow_ranks import FirstAnswer, SlowRank
from ...scale.store import Summaries
from ...wording.message import Message, message
from ..document import Block, Heading, Item, Lines, Listing
from .amounts import limits_section


def summaries_document(made: Summaries, answer: FirstAnswer) -> list[Block]:
    """Return which rank is slow, since when and at what price, and what was written."""
    seen = steps_seen(answer)
    written = message(
        "summaries.written",
        rows=made.rows,
        size=made.size_bytes,
        made=sum(segment.is_new for segment in made.segments),
        files=len(made.segments),
    )
    blocks: list[Block] = [Heading(message("summaries.title", run=answer.run)), Lines([seen])]
    if answer.slow:
        items = [
            Item(claim_of(one), list(facts_of(one, answer)), is_strong=True) for one in answer.slow
        ]
        blocks.append(Listing(items, first_number=1))
    else:
        blocks.append(Lines([none_slow(answer)]))
    return [*blocks, Lines([written]), *limits_section(answer.limits)]


def steps_seen(answer: FirstAnswer) -> Message:
    """Return of how many ranks and steps the answer is, and how long these are."""
    first, last = answer.steps
    return message(
        "summaries.steps",
        ranks=answer.ranks,
        count=answer.step_count,
        first=first,
        last=last,
        time_ns=answer.step_ns,
    )


def looked_at(chosen: AccountSteps | None) -> list[Block]:
    """Return at which steps the account looks, where it does not look at all."""
    if chosen is None:
        return []
    steps, rows = chosen.steps.text, chosen.rows
    if chosen.rank is None:
        return [Lines([message("summaries.account", steps=steps, rows=rows)])]
    return [Lines([message("summaries.account_of_rank", steps=steps, rows=rows, rank=chosen.rank)])]


def none_slow(answer: FirstAnswer) -> Message:
    """Return that no rank is slow, and what would have been found."""
    if answer.minimum_slowdown is None:
        return message("summaries.none_unknown")
    return message("summaries.none", least=answer.minimum_slowdown)


def claim_of(one: SlowRank) -> Message:
    """Return that a rank is slow, since when and by how much."""
    low, high = one.verdict.interval or (float("nan"), float("nan"))
    return message(
        "summaries.slow",
        rank=one.verdict.rank,
        first=one.verdict.first_bad_step,
        slowdown=one.verdict.slowdown,
        low=low,
        high=high,
    )


def facts_of(one: SlowRank, answer: FirstAnswer) -> Iterator[Message]:
    """Yield what a slow rank costs, in which steps, and how sure that is."""
    price = one.price
    if price.return_ns is None:
        share = price.most_ns / answer.step_ns
        yield message(
            "summaries.cost_at_most", share=share, time_ns=price.most_ns, reason=price.unknown
        )
    else:
        share = price.return_ns / answer.step_ns
        yield message("summaries.cost", share=share, time_ns=price.return_ns)
    yield message(
        "summaries.slow_steps",
        slow=one.slow_steps,
        count=answer.step_count,
        runs=one.verdict.slow_steps,
        confidence=one.verdict.confidence,
    )
    if one.step_after_ns is not None:
        yield message("summaries.measured", delta_ns=one.step_after_ns)
    if one.verdict.ambiguous_with:
        yield message("summaries.alike", others=list(one.verdict.ambiguous_with))


def compacted_document(made: Compacted) -> list[Block]:
    """Return how many files there were and are, and what was removed."""
    written = message(
        "compacted.written",
        ranks=made.ranks,
        rows=made.rows,
        before=made.files_before,
        after=made.files_after,
    )
    size = message("compacted.size", before=made.bytes_before, after=made.bytes_after)
    dropped = message("compacted.dropped_none")
    if made.kept_steps:
        steps = [list(one) for one in made.kept_steps]
        dropped = message("compacted.dropped", rows=made.dropped_rows, steps=steps)
    return [
        Heading(message("compacted.title", run=made.run.name)),
        Lines([written, size, dropped]),
    ]
