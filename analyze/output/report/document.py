"""The report of a run as a document: the diagnosis with a picture beside each thing it says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from ...tables.results import Diagnosis, Finding
from ...tables.trace import Trace
from ...wording.limits import limit_texts
from ...wording.message import message
from ...wording.quantities import duration, percent, size
from ...wording.words import axis_label
from ..document import Block, Figure, Heading, Lines, Listing, Table, facts, section
from ..text.diagnosis import (
    causes_blocks,
    devices_section,
    finding_item,
    findings_lines,
    header_lines,
    waterfall_table,
)
from ..text.memory import memory_blocks
from .evidence import Evidence
from .figures import memory_figure, mesh_figure, waterfall_figure

MOST_PICTURES = 16
"""Findings with a picture of their own; the page stays small enough to be mailed."""


def report_document(trace: Trace, result: Diagnosis, change: Sequence[Block] = ()) -> list[Block]:
    """Return the report of a run.

    Args:
        trace: The capture, for pictures of its steps.
        result: Its diagnosis.
        change: What changed against another run; its sections come behind the findings.
    """
    return [
        Heading(message("report_page.title", run=result.run["run_id"])),
        Lines(list(header_lines(result))),
        *section("Where the step time went", *_waterfall(result)),
        *devices_section(result),
        *section("Findings, in the order to look at them", *_findings(trace, result)),
        *change,
        *section("Causes by replay", *causes_blocks(result)),
        *section("Ranks in the mesh", *_figures(mesh_figure(result))),
        *section("Memory by stage", *_memory(result)),
        *section("Communication by axis", _communication(result)),
        *section("Can this be trusted?", *_trust(trace, result)),
    ]


def _waterfall(result: Diagnosis) -> Iterator[Block]:
    table = waterfall_table(result)
    if table.rows:
        yield waterfall_figure(result, table)


def _findings(trace: Trace, result: Diagnosis) -> Iterator[Block]:
    yield Lines(list(findings_lines(result)))
    evidence = Evidence(trace, result)
    for number, finding in enumerate(result.findings, start=1):
        yield Listing([finding_item(finding)], first_number=number)
        yield from _figures(_picture(evidence, finding, number))


def _picture(evidence: Evidence, finding: Finding, number: int) -> Figure | None:
    return evidence.figure(finding, number) if number <= MOST_PICTURES else None


def _figures(*figures: Figure | None) -> Iterator[Block]:
    yield from (figure for figure in figures if figure is not None)


def _memory(result: Diagnosis) -> Iterator[Block]:
    blocks = list(memory_blocks(result))
    table = next((block for block in blocks if isinstance(block, Table)), Table((), ()))
    figure = memory_figure(result, table)
    if figure is not None:
        yield figure
        blocks = [block for block in blocks if block is not table]
    yield from blocks


def _communication(result: Diagnosis) -> Table:
    """Return what the groups of each axis exchanged and waited, per step."""
    groups = result.groups
    if groups.empty:
        return Table((), ())
    rows = [
        (
            axis_label(str(axis)),
            len(own),
            f"{own['operations'].sum():.4g}",
            _known_size(own["size_bytes"]),
            _known_time(own["wire_ns"]),
            _known_time(own["wait_ns"]),
        )
        for axis, own in groups.groupby(groups["axis"].astype(str), sort=True)
    ]
    columns = ("axis", "groups", "operations a step", "bytes a step", "on the wire", "waited")
    return Table(columns, rows, notes=[message("report_page.communication")])


def _known_size(values: pd.Series[Any]) -> str:
    return "unknown" if values.isna().all() else size(float(values.sum()))


def _known_time(values: pd.Series[Any]) -> str:
    return "unknown" if values.isna().all() else duration(float(values.sum()))


def _trust(trace: Trace, result: Diagnosis) -> Iterator[Block]:
    run, use = result.run, result.utilization
    world = run.get("world_size")
    rows = [
        ("captured by", trace.origin),
        ("ranks recorded", f"{len(trace.ranks)} of {world or 'an unknown number'}"),
        ("steps analysed", run.get("steps") or "none"),
        ("MFU convention", use.flops_convention if use.mfu is not None else "MFU unknown"),
        ("peak of a device", use.peak_source or "unknown"),
        ("probe overhead, by its own measure", _share(run.get("probe_cost_frac"))),
        ("replay beside the measured step", _share(result.model_error_frac)),
    ]
    yield Table(("what", "value"), rows)
    yield facts(limit_texts(result.limits) or [message("report.no_limits")])


def _share(value: object) -> str:
    return percent(value) if isinstance(value, float) else "unknown"
