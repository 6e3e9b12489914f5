"""The verb that writes the report of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshscope.analyze.wording.command_line import command_line
from meshscope.probe.schema.message import message

from .open_capture import Opened, open_trace
from .options import (
    DEFAULT_RUNS,
    RunPath,
    RunsOption,
    StepsOption,
    TopologyOption,
    named_path,
    require_place,
)
from .output import say

if TYPE_CHECKING:
    from meshscope.analyze.explain.run_account import Account
    from meshscope.analyze.output.document import Block
    from meshscope.analyze.tables.results import Diagnosis

_FORMS = (".html", ".md", ".json")
_MOST_CHANGES = 20
"""Operators and kernels of a comparison, most changed first."""


def report(
    path: RunPath,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            parser=named_path,
            help="Where to write it; .html, .md or .json decides the form.",
        ),
    ],
    base: Annotated[
        Path | None,
        typer.Option(
            "--compare",
            metavar="BASE",
            parser=named_path,
            help="Another run or trace: add what changed against it.",
        ),
    ] = None,
    topology_file: TopologyOption = None,
    steps: StepsOption = None,
    runs: RunsOption = DEFAULT_RUNS,
) -> None:
    """Write a report to mail or keep: one file with pictures that opens offline."""
    from meshscope.analyze.explain.run_account import Account
    from meshscope.analyze.findings.diagnosis import account_or_end, diagnosis_of
    from meshscope.probe.schema.errors import ConfigError

    require_place(out, is_file=True)
    if out.suffix.lower() not in _FORMS:
        raise ConfigError(
            message("refused.no_form_of_report"),
            where=str(out),
            remedy=message("advice.name_of_report"),
        )
    opened = open_trace(path, topology_file, runs, steps)
    found = account_or_end(opened.trace)
    account = found if isinstance(found, Account) else None
    result = diagnosis_of(found) if isinstance(found, Account) else found
    change = None
    if base is not None:
        if account is None:
            raise ConfigError(
                message("refused.no_steps_to_compare"),
                where=str(path),
                remedy=message("advice.without_compare"),
            )
        change = _Change(open_trace(base, topology_file, runs), opened, account)
    _write(out, _text(out, opened, result, change))
    say(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB)")
    say(f"more: {command_line('dashboard', opened.trace.path.resolve().parent)}")


class _Change:
    """What changed from a base to the run."""

    def __init__(self, base: Opened, opened: Opened, account: Account) -> None:
        from meshscope.analyze.findings.comparison import compare, side_of_account
        from meshscope.analyze.gate.captures import run_of
        from meshscope.analyze.gate.compare import compare as judged
        from meshscope.analyze.gate.json_forms import to_json
        from meshscope.analyze.gate.loaded import baseline_of
        from meshscope.analyze.output.json import comparison_to_json

        from .gate_inputs import broken_off

        before = base.measured()
        self.name = str(base.trace.run.get("run_id") or base.trace.path.name)
        name = str(opened.trace.run.get("run_id") or opened.trace.path.name)
        baseline = baseline_of([run_of(before, self.name, broken_off(base.ends()))])
        self.verdict = to_json(judged(baseline, [run_of(account, name, broken_off(opened.ends()))]))
        sides = side_of_account(before), side_of_account(account)
        self.comparison = comparison_to_json(compare(*sides), _MOST_CHANGES)

    def blocks(self) -> list[Block]:
        """Return the verdict of the gate, then the change by class, finding, operator and kernel."""
        from meshscope.analyze.output.document import section
        from meshscope.analyze.output.text.comparison import comparison_document
        from meshscope.analyze.output.text.gate import gate_blocks
        from meshscope.analyze.wording.message import message

        title = message("report_page.change", base=self.name)
        return [*section(title, *gate_blocks(self.verdict)), *comparison_document(self.comparison)]


def _text(out: Path, opened: Opened, result: Diagnosis, change: _Change | None) -> str:
    import msgspec

    from meshscope.analyze.output.html import to_html
    from meshscope.analyze.output.json.diagnosis import diagnosis_to_json
    from meshscope.analyze.output.render import to_markdown
    from meshscope.analyze.output.report.document import report_document

    form = out.suffix.lower()
    if form == ".json":
        value = diagnosis_to_json(result)
        if change is not None:
            value |= {"gate": change.verdict, "comparison": change.comparison}
        encoded = msgspec.json.encode(value, enc_hook=lambda scalar: scalar.item())
        return msgspec.json.format(encoded, indent=1).decode()
    document = report_document(opened.trace, result, change.blocks() if change else ())
    return to_html(document) if form == ".html" else f"{to_markdown(document)}\n"


def _write(out: Path, text: str) -> None:
    """Write the file whole or not at all: an older report stays until the new one is there."""
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
