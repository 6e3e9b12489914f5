"""The diagnosis as a document: header, waterfall, findings, causes, ranks, memory, limits."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from ...align.attempts import attempts_message
from ...findings.none_found import nothing_found, unknown_places
from ...tables.capabilities import SYNTHETIC
from ...tables.results import Diagnosis, Finding
from ...wording.limits import limit_texts
from ...wording.message import Message, Text, message
from ...wording.quantities import percent
from ...wording.words import class_label, place_words
from ..causes import shown_causes, waiting_sum
from ..document import Block, Heading, Item, Lines, Listing, Rule, Table, facts, section
from ..render import to_plain
from .amounts import milliseconds, ranks_left_out
from .memory import memory_blocks

_MOST_RANKS = 8
_MIN_APART = 0.1
"""By how much the mean of all steps differs from that of the account, to be said."""
_MOST_DEVICES = 16


def diagnosis_document(result: Diagnosis) -> list[Block]:
    """Return the report for people."""
    return [
        Heading(message("report.title", run=result.run["run_id"])),
        Lines(list(header_lines(result))),
        *section("How the job ended", _ends(result)),
        *_border(result),
        *section("Where the step time went", waterfall_table(result)),
        *devices_section(result),
        *section("Findings, in the order to look at them", *_findings(result)),
        *section("Causes by replay", *causes_blocks(result)),
        *section("Ranks, by what repairing returns", _ranks(result)),
        *section("Memory by stage", *memory_blocks(result)),
        *section(
            "Limits of this result",
            facts(limit_texts(result.limits) or [message("report.no_limits")]),
        ),
    ]


def to_text(result: Diagnosis) -> str:
    """Return the report as plain text."""
    return to_plain(diagnosis_document(result))


def header_lines(result: Diagnosis) -> Iterator[Text]:
    """Yield what was captured, MFU, overhead and bubble."""
    run, use = result.run, result.utilization
    if run.get("origin") == SYNTHETIC:
        yield message("report.synthetic")
    yield message(
        "report.run",
        captured=run["captured_ranks"],
        world=run.get("world_size") or "an unknown number of",
        layout=_layout(result),
        steps=_steps(result),
    )
    if (starts := attempts_message(run.get("attempts"))) is not None:
        yield starts
    tokens = message("report.tokens", tokens=round(use.tokens_per_s or 0))
    if use.tokens_per_s is None:
        tokens = message("report.no_tokens")
    if use.mfu is None:
        yield message("report.mfu_unknown", reason=use.unknown_because)
    else:
        yield message(
            "report.mfu",
            mfu=use.mfu,
            convention=use.flops_convention,
            peak=f"{use.peak_flops or 0:.3g}",
            source=use.peak_source,
            tokens=tokens,
        )
        yield from _conventions(result)
    if use.devices_per_rank > 1:
        yield message("report.devices", devices=use.devices_per_rank)
    mean, most = run.get("probe_cost_frac"), run.get("probe_cost_most_frac")
    if isinstance(mean, float) and isinstance(most, float):
        yield message(
            "report.probe_cost",
            mean=f"{100 * mean:.2g} %",
            most=f"{100 * most:.2g} %",
            rank=run["probe_cost_most_rank"],
        )
    yield from _bubble(result)


def _layout(result: Diagnosis) -> str:
    """Return mesh, schedule and microbatches, as far as they are known."""
    run = result.run
    mesh = " x ".join(
        f"{axis.upper()}{run[axis]}"
        for axis in ("tp", "pp", "dp", "cp")
        if run.get(axis) not in (None, 1)
    )
    parts = [mesh]
    parts += [str(run["schedule"])] if run.get("schedule") not in (None, "none") else []
    if isinstance(count := run.get("microbatches"), int):
        parts.append(str(message("report.microbatches", count=count)))
    if isinstance(unlike := run.get("microbatch_range"), list):
        least, most = unlike
        parts.append(str(message("report.unlike_microbatches", least=least, most=most)))
    return "".join(f", {part}" for part in parts if part)


def _steps(result: Diagnosis) -> Message:
    run = result.run
    if not run["steps"]:
        return message("report.no_steps")
    if run["first_step"] is None:
        return message("report.no_marks", time_ns=result.step_time_ns)
    values = {
        "count": run["steps"],
        "first": run["first_step"],
        "last": run["last_step"],
        "time_ns": result.step_time_ns,
    }
    all_ns = run.get("all_step_time_ns")
    if isinstance(all_ns, float) and abs(all_ns / result.step_time_ns - 1.0) > _MIN_APART:
        return message("report.steps_of_all", all=run["all_steps"], all_ns=all_ns, **values)
    return message("report.steps", **values)


def _conventions(result: Diagnosis) -> Iterator[Message]:
    """Yield HFU, and MFU by the other conventions: figures of papers compare only within one."""
    use = result.utilization
    if use.hfu is not None:
        yield message("report.hfu", hfu=use.hfu)
    others = [
        message("report.by_convention", name=name, mfu=value)
        for name, value in use.mfu_by_convention.items()
        if value is not None and name != use.flops_convention
    ]
    if others:
        yield message("report.conventions", others=others)


def _bubble(result: Diagnosis) -> Iterator[Message]:
    """Yield how much of the waiting is the schedule's own; the ideal is a share of a shorter step."""
    bubble, waiting = result.bubble, result.waiting
    if bubble.measured_frac is None:
        return
    ideal = (
        message("report.bubble_ideal_unknown", reason=bubble.unknown_because)
        if bubble.ideal_frac is None
        else message("report.bubble_ideal", share=bubble.ideal_frac)
    )
    if waiting is None:
        yield message("report.bubble_not_replayed", share=bubble.measured_frac, ideal=ideal)
        return
    imposed = waiting.bubble_ns / result.step_time_ns
    yield message("report.bubble", share=bubble.measured_frac, imposed=imposed, ideal=ideal)


def waterfall_table(result: Diagnosis) -> Table:
    """Return every class that holds time; JSON has those of nothing too."""
    shown = [bar for bar in result.waterfall if bar.is_shown]
    rows = [
        (class_label(bar.name), percent(bar.frac, 2), f"{bar.dur_ns / 1e6:.3f}") for bar in shown
    ]
    if result.waterfall:
        total = sum(bar.frac for bar in result.waterfall)
        time_ns = sum(bar.dur_ns for bar in result.waterfall)
        rows.append(("total", percent(total, 2), f"{time_ns / 1e6:.3f}"))
    unit = "ms" if result.run["first_step"] is None else "ms per step"
    return Table(("class", "share", unit), rows, bars=[bar.frac for bar in shown])


def devices_section(result: Diagnosis) -> list[Block]:
    """Return the account of each device of the ranks that compute on several."""
    headers = ["rank", "device", "busy", "compute", "communication alone", "copies and others"]
    headers += ["idle beside another", "idle with all"]
    shown = result.devices[:_MOST_DEVICES]
    rows = [
        (
            use.rank,
            use.device,
            *map(percent, (use.busy_frac, use.compute_frac, use.communication_frac)),
            *map(percent, (use.other_frac, use.beside_frac, use.idle_frac)),
        )
        for use in shown
    ]
    more = len(result.devices) - len(shown)
    notes = [message("report.devices_left_out", count=more)] if more else []
    return section("Devices of one rank, share of the step", Table(headers, rows, notes=notes))


def _ends(result: Diagnosis) -> Listing:
    """Return what stands above all of a job that broke off."""
    numbered = [pair for pair in enumerate(result.findings, start=1) if pair[1].is_end]
    return Listing(
        [finding_item(finding) for _, finding in numbered],
        first_number=numbered[0][0] if numbered else 1,
    )


def _border(result: Diagnosis) -> list[Block]:
    """Return the line below which the time before the end is accounted for."""
    has_ended = any(finding.is_end for finding in result.findings)
    return [Rule("before it ended")] if result.waterfall and has_ended else []


def _findings(result: Diagnosis) -> Iterator[Block]:
    ends = [finding for finding in result.findings if finding.is_end]
    others = [finding for finding in result.findings if not finding.is_end]
    yield Lines(list(findings_lines(result)))
    yield Listing([finding_item(finding) for finding in others], first_number=len(ends) + 1)
    if result.findings and result.run["steps"] and result.unknown_causes:
        yield Listing(
            [
                Item(
                    message("report.not_known", what=unknown_places(result)),
                    limit_texts(result.unknown_causes),
                )
            ]
        )


def findings_lines(result: Diagnosis) -> Iterator[Text]:
    """Yield that nothing was found, where that is so."""
    others = [finding for finding in result.findings if not finding.is_end]
    if not result.findings or (result.run["steps"] and not others):
        yield nothing_found(result)


def finding_item(finding: Finding) -> Item:
    """Return a finding: what is wrong, its price, its evidence and what to do."""
    return Item(
        finding.claim,
        [*_price(finding), *finding.evidence, message("report.do", remedy=finding.remedy)],
        mark=f"[{finding.severity}] {finding.kind}:",
        is_strong=True,
    )


def _price(finding: Finding) -> Iterator[Message]:
    """Yield what it costs, what fixing it returns, and how sure that is."""
    cost, returned, sure = finding.cost_frac, finding.returns_frac, finding.confidence
    if finding.returns_interval is not None and returned is not None:
        low, high = finding.returns_interval
        fix = message("report.returns_between", returned=returned, low=low, high=high)
    else:
        fix = message("report.returns", returned=returned or 0.0)
    if cost is not None and returned is not None:
        yield message("report.price", cost=cost, fix=fix, confidence=sure)
    elif returned is not None:
        yield message("report.price_of_fix", fix=fix, confidence=sure)
    elif cost is not None:
        yield message("report.price_of_cost", cost=cost, confidence=sure)


def causes_blocks(result: Diagnosis) -> Iterator[Block]:
    """Yield the causes that cost or return anything; JSON has the others too."""
    rows = [
        (
            ": ".join(filter(None, [cause.kind.replace("_", " "), place_words(cause.where)])),
            percent(cause.share_frac, 2),
            percent(cause.removal_gain_frac, 2),
            milliseconds(cause.direct_ns),
            milliseconds(cause.induced_wait_ns),
        )
        for cause in shown_causes(result)
    ]
    columns = ("cause", "share of step", "removal gain", "direct ms", "induced wait ms")
    yield Table(columns, rows)
    total = waiting_sum(result)
    if total is not None and rows:
        yield Lines([total])


def _ranks(result: Diagnosis) -> Table:
    steps = result.run["steps"]
    measured = result.stragglers[["slowdown", "wait_ns"]].notna() if steps else None
    # A table of nothing but unknowns says less than the limits do.
    if not isinstance(steps, int) or measured is None or not measured.to_numpy().any():
        return Table((), ())
    rows = [
        (
            row["rank"],
            *("-" if row[axis] < 0 else row[axis] for axis in ("pp", "dp", "tp")),
            percent(row["slowdown"] - 1.0),
            "unknown" if isnan(row["excess_ns"]) else f"{row['excess_ns'] / 1e6:+.3f}",
            *(milliseconds(row[name] / steps) for name in ("wait_ns", "wait_caused_ns")),
            "unknown" if isnan(row["wait_ns"]) else f"{row['arrived_last']}/{row['collectives']}",
        )
        for row in result.stragglers.head(_MOST_RANKS).to_dict("records")
    ]
    unit = "ms" if result.run["first_step"] is None else "ms/step"
    columns = ["rank", "pp", "dp", "tp", "slower than peers", f"excess {unit}", f"waited {unit}"]
    columns += [f"waiting caused {unit}", "arrived last"]
    return Table(columns, rows, notes=ranks_left_out(len(result.stragglers) - _MOST_RANKS))
