"""Try the diagnosis on inputs that are not ours: ``python -m tests.truth.foreign``."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.truth.foreign.case import Case, Outcome, judge
from tests.truth.foreign.draw import USUAL, WIDE
from tests.truth.foreign.files import files
from tests.truth.foreign.lives import FLOPS, LIVE, lives
from tests.truth.foreign.memory import memory
from tests.truth.foreign.pipelines import held_out, production
from tests.truth.foreign.place import PROJECT, shared_folder
from tests.truth.foreign.replayed import SEED
from tests.truth.foreign.scripts import scripts
from tests.truth.foreign.table import report, written
from tests.truth.foreign.tables import tables
from tests.truth.foreign.throughput import throughputs
from tests.truth.foreign.traces import traces

PAGE = PROJECT / "docs" / "truth-foreign.md"


def main() -> None:
    """Judge all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name or group contains this")
    parser.add_argument("--jobs", type=int, default=24, help="how many held-out jobs")
    parser.add_argument("--seed", type=int, default=SEED, help="of the held-out jobs")
    parser.add_argument("--wide", action="store_true", help="draw them from wider ranges")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="keep inputs and runs here")
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/truth-foreign.md"
    )
    options = parser.parse_args()
    with TemporaryDirectory(prefix="meshscope-foreign-") as folder:
        scratch = (options.out or Path(folder)).resolve()
        cases, skipped = _cases(scratch, options)
        outcomes = _judge(cases, scratch, options.workers)
    table = report(outcomes, skipped)
    print(table)
    if options.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), table), encoding="utf-8")


def _cases(scratch: Path, options: argparse.Namespace) -> tuple[list[Case], list[str]]:
    """Return the cases, and why some cannot be tried here."""
    cases: list[Case] = []
    skipped: list[str] = []
    shared = shared_folder()
    if shared is None:
        skipped = [
            "All but held-out jobs: the shared folder of cases, traces and tables is absent "
            "(MESHSCOPE_FOREIGN names another)"
        ]
    else:
        cases += production(shared, scratch)
    ranges = WIDE if options.wide else USUAL
    cases += held_out(scratch, options.jobs, options.seed, ranges)
    if shared is not None:
        for part in (files, scripts, traces, tables, memory, throughputs, lives):
            cases += part(shared)
    only = options.only
    chosen = [case for case in cases if only in case.name or only in case.group]
    return chosen, skipped


def _judge(cases: list[Case], scratch: Path, workers: int) -> list[Outcome]:
    """Judge the cases that run nothing side by side, and live jobs one after the other."""
    is_live = [case.group in (LIVE, FLOPS) for case in cases]
    still = [case for case, live in zip(cases, is_live, strict=True) if not live]
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(workers) as pool:
        for found in pool.map(lambda case: judge(case, scratch / "cases"), still):
            outcomes += _said(found)
    for case, live in zip(cases, is_live, strict=True):
        if live:
            outcomes += _said(judge(case, scratch / "cases"))
    return outcomes


def _said(found: list[Outcome]) -> list[Outcome]:
    right = sum(outcome.holds for outcome in found)
    print(f"{found[0].case.name}: {right} of {len(found)}", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    main()
