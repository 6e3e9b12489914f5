"""Whole reports against files that are reviewed like code; ``make golden`` writes them anew."""

import os
from pathlib import Path

import pytest
from tests.synthetic import MS, Job, capture

from meshscope.analyze import Diagnosis, diagnose
from meshscope.analyze.output.render import to_markdown
from meshscope.analyze.output.text import diagnosis_document, to_text
from meshscope.probe.schema.layout import ParallelLayout

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def slow_rank() -> Diagnosis:
    """Return a 2x2x2 job in which rank 5 needs 15 ms more for every forward of 10 ms."""

    def work(kind: str, rank: int, step: int, microbatch: int) -> int:
        if kind == "backward":
            return 20 * MS
        return (25 if rank == 5 else 10) * MS

    model = {"num_layers": 4, "hidden_size": 1024, "seq_len": 512, "vocab_size": 32000}
    return diagnose(
        capture(
            Job(layout=ParallelLayout(tp=2, pp=2, dp=2)),
            work,
            **model,
            parameters=83_000_000,
            tokens_per_step=8192,
            peak_flops=312e12,
            peak_source="data sheet, dense BF16",
        )
    )


def agrees(name: str, text: str) -> bool:
    """Return whether a file holds the text; with MESHSCOPE_GOLDEN=write, make it so."""
    path = FOLDER / name
    if os.environ.get("MESHSCOPE_GOLDEN") == "write":
        path.write_text(f"{text}\n", encoding="utf-8")
    return path.read_text(encoding="utf-8") == f"{text}\n"


def test_report_in_text(slow_rank: Diagnosis):
    """If this fails, what people read on the terminal has changed."""
    assert agrees("slow_rank.txt", to_text(slow_rank))


def test_report_in_markdown(slow_rank: Diagnosis):
    """If this fails, what people paste into their reports has changed."""
    assert agrees("slow_rank.md", to_markdown(diagnosis_document(slow_rank)))
