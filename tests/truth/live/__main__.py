"""Run the live suite and print its table: ``python -m tests.truth.live``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.truth.live.cases import LiveCase
from tests.truth.live.job import JobError
from tests.truth.live.judge import LiveVerdict, judge, judge_kept
from tests.truth.live.suite import cases
from tests.truth.live.table import report

from meshscope.probe.schema.errors import ConfigError
from meshscope.reference_trainer.config.fault_plan import parse_fault


def main() -> None:
    """Run all jobs one after the other, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="jobs whose name contains this")
    parser.add_argument("--out", type=Path, help="keep the runs here")
    parser.add_argument(
        "--kept", action="store_true", help="run nothing: judge the runs that --out has kept"
    )
    options = parser.parse_args()
    if options.kept and options.out is None:
        parser.error("--kept needs the folder of the runs: --out FOLDER")
    chosen = [case for case in cases() if options.only in case.name]
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        verdicts, not_judged = _run(chosen, options.out, kept=options.kept)
    else:
        with TemporaryDirectory(prefix="meshscope-truth-") as folder:
            verdicts, not_judged = _run(chosen, Path(folder))
    print(report(verdicts, not_judged))


def _run(
    chosen: list[LiveCase], folder: Path, *, kept: bool = False
) -> tuple[list[LiveVerdict], list[str]]:
    """Return the verdicts, and why some jobs have none."""
    verdicts, not_judged = [], []
    for number, case in enumerate(chosen, 1):
        print(f"{number} of {len(chosen)}: {case.name}", file=sys.stderr, flush=True)
        try:
            for request in case.requests:
                parse_fault(request)
            verdicts.append(judge_kept(case, folder) if kept else judge(case, folder))
            print(f"  {verdicts[-1].found} {verdicts[-1].place}", file=sys.stderr, flush=True)
        except ConfigError as error:
            not_judged.append(f"{case.row}: the trainer refuses it: {error}")
        except JobError as error:
            not_judged.append(str(error))
    return verdicts, not_judged


if __name__ == "__main__":
    main()
