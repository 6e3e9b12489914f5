"""The account of every step of a large run, as a document."""

from __future__ import annotations

from collections.abc import Iterator

from ...every_step.joined import EveryStep, Joined
from ...wording.limits import Limit, limit_texts
from ...wording.message import Message, message, message_from_json
from ...wording.quantities import percent, steps
from ...wording.words import class_label, place_words
from ..document import Block, Heading, Item, Lines, Listing, Table, facts, section
from .amounts import milliseconds

_LEAST_SHOWN = 5e-4
"""Causes of a smaller share of the run are chance of single windows; JSON has them."""


def every_step_document(found: EveryStep) -> list[Block]:
    """Return classes, findings and causes over all steps, and what is unknown."""
    return [
        Heading(message("every_step.title", run=found.run.name)),
        Lines(list(_header(found))),
        *section("Where the step time went", _classes(found)),
        *section("Findings, by what they cost over all steps", _findings(found)),
        *section("Causes by replay, over all steps", _causes(found)),
        *section(
            "Limits of this result",
            facts(limit_texts(_limits(found)) or [message("report.no_limits")]),
        ),
    ]


def _header(found: EveryStep) -> Iterator[Message]:
    yield message(
        "every_step.seen",
        ranks=found.ranks,
        count=found.steps,
        first=found.first,
        last=found.last,
        time_ns=found.step_ns,
        windows=len(found.windows),
    )
    if found.mfu is not None:
        yield message("every_step.mfu", mfu=found.mfu)
    elif found.mfu_unknown is not None:
        yield message("report.mfu_unknown", reason=message_from_json(found.mfu_unknown))


def _classes(found: EveryStep) -> Table:
    total = sum(one.cost_ns or 0.0 for one in found.classes)
    shown = [one for one in found.classes if (one.cost_ns or 0.0) >= _LEAST_SHOWN / 10 * total]
    shares = [(one.cost_ns or 0.0) / total for one in shown]
    rows = [
        (class_label(one.kind), percent(share, 2), milliseconds(one.cost_ns or 0.0))
        for one, share in zip(shown, shares, strict=True)
    ]
    if rows:
        rows.append(("total", percent(1.0, 2), milliseconds(total)))
    return Table(("class", "share", "ms per step"), rows, bars=shares)


def _findings(found: EveryStep) -> Listing:
    return Listing([_item(one, found.step_ns) for one in found.findings], first_number=1)


def _item(one: Joined, step_ns: float) -> Item:
    claim = one.kind if one.claim is None else message_from_json(one.claim)
    return Item(claim, list(_facts(one, step_ns)), mark=f"{one.kind}:", is_strong=True)


def _facts(one: Joined, step_ns: float) -> Iterator[Message]:
    """Yield what a finding costs over all steps, where it was found, and where it costs most."""
    if one.cost_ns is not None and one.gain_ns is not None:
        cost, gain = one.cost_ns / step_ns, one.gain_ns / step_ns
        yield message("every_step.price", cost=cost, gain=gain)
    elif one.cost_ns is not None:
        yield message("every_step.price_of_cost", cost=one.cost_ns / step_ns)
    yield message("every_step.found_in", runs=one.steps)
    if one.dearest_ns is not None:
        yield message("every_step.dearest", runs=[one.dearest], cost_ns=one.dearest_ns)


def _causes(found: EveryStep) -> Table:
    rows = [
        (
            ": ".join(filter(None, [one.kind.replace("_", " "), place_words(one.where)])),
            percent((one.cost_ns or 0.0) / found.step_ns, 2),
            percent((one.gain_ns or 0.0) / found.step_ns, 2),
            steps(one.steps),
        )
        for one in found.causes
        if max(abs(one.cost_ns or 0.0), abs(one.gain_ns or 0.0)) >= _LEAST_SHOWN * found.step_ns
    ]
    return Table(("cause", "share of step", "removal gain", "found in"), rows)


def _limits(found: EveryStep) -> list[Limit]:
    """Return what is unknown: of single windows first, then of the run."""
    texts: list[Limit] = [
        message("every_step.failed", steps=f"{one.first}:{one.last}", reason=one.failed)
        for one in found.failed
    ]
    texts += [
        message(
            "every_step.causes_unknown",
            steps=f"{one.first}:{one.last}",
            reason=message_from_json(one.unknown_causes[0]),
        )
        for one in found.without_causes
    ]
    return [*texts, *map(message_from_json, found.limits)]
