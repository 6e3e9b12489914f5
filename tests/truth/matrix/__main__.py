"""Run the suite and print its table: ``python -m tests.truth.matrix``."""

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.truth.matrix.cases import SEED, cases
from tests.truth.matrix.judge import judge
from tests.truth.matrix.rows import ROWS
from tests.truth.matrix.table import report

CASES_OF_ROW = 20


def main() -> None:
    """Diagnose all cases on all cores and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES_OF_ROW * len(ROWS))
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    context = get_context("forkserver")
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        verdicts = list(pool.map(judge, cases(options.cases, options.seed), chunksize=4))
    print(report(verdicts))


if __name__ == "__main__":
    main()
