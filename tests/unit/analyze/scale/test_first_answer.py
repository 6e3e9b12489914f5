"""What is kept beside the summaries: the same answer as anew, and two tables that add up to the rows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from meshscope.analyze.scale.executors import InThisProcess
from meshscope.analyze.scale.first_answer import ANSWER_NAME, kept_outlook, outlook_of
from meshscope.analyze.scale.segments import write_rows
from meshscope.analyze.scale.slow_ranks import (
    ANSWER_BYTES,
    ANSWER_ROW_BYTES,
    LEAST_STEPS,
    first_answer,
)
from meshscope.analyze.scale.store import read_summaries, write_summaries
from meshscope.analyze.scale.summary import SCHEMA
from meshscope.analyze.scale.survey import SURVEY_ROW_BYTES
from meshscope.analyze.synthetic import SyntheticJob, parse_fault
from meshscope.analyze.synthetic.record import record
from meshscope.analyze.synthetic.run_directory import write_run
from meshscope.analyze.synthetic.simulate import make_simulation
from meshscope.cli import app
from meshscope.probe.schema.layout import ParallelLayout

from .many_ranks import own_work, summaries_of

STEPS = 130
"""More than blocks, so that a block holds two steps."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run of 4 ranks with a slow one."""
    job = SyntheticJob(
        layout=ParallelLayout(tp=1, pp=1, dp=4),
        microbatches=2,
        steps=STEPS,
        jitter_cv=0.01,
        faults=(parse_fault("slow_rank:rank=2,factor=1.3,first_step=40"),),
    )
    return write_run(job, record(make_simulation(job)), None, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def made(run, tmp_path):
    """Return the summaries of the run."""
    return write_summaries(run, InThisProcess(), lambda _: None, tmp_path)


def test_the_kept_answer_is_that_which_was_made(made):
    """A later call would say something else about the same run."""
    assert kept_outlook(made) is None
    first = outlook_of(made)
    kept = kept_outlook(made)
    assert kept.answer == first.answer == first_answer(made)
    assert kept.answer.slow[0].verdict.rank == 2
    assert kept.answer.limits[0].code == first.answer.limits[0].code
    assert (kept.blocks.steps, kept.blocks.blocks) == (first.blocks.steps, first.blocks.blocks)


def test_a_damaged_or_older_answer_is_made_anew(made):
    """One torn file would end all later calls, or an old answer would stand for a new run."""
    answer = outlook_of(made).answer
    (made.folder / ANSWER_NAME).write_text('{"key": 1}')
    assert kept_outlook(made) is None
    assert outlook_of(made).answer == answer
    next(made.folder.glob("blocks.*.parquet")).write_bytes(b"torn")
    assert kept_outlook(made) is None
    assert outlook_of(made).answer == answer
    changed = made.segments[0]._replace(rows=1)
    older = type(made)(run=made.run, folder=made.folder, outline=made.outline, segments=(changed,))
    assert kept_outlook(older) is None


def test_blocks_and_steps_add_up_to_the_rows(made):
    """A page would show other times than the answer beside it."""
    blocks = outlook_of(made).blocks
    rows = made.read(("rank", "step", "wall_s", "span_rows", "collective_rows", "p2p_rows"))
    each = blocks.blocks.to_pandas()
    wall = rows.to_pandas()
    assert each["steps"].sum() == made.rows
    assert np.allclose((each["wall_s"] * each["steps"]).sum(), wall["wall_s"].sum(), rtol=1e-6)
    assert ((each["last_step"] - each["first_step"]) == 1).all()
    steps = blocks.steps.to_pandas().set_index("step")
    assert steps["step_s"].equals(wall.groupby("step")["wall_s"].max().rename("step_s"))
    counted = wall[["span_rows", "collective_rows", "p2p_rows"]].sum().sum()
    assert outlook_of(made).records == steps["records"].sum() == counted


def test_a_memory_limit_thins_the_answer_out_and_says_so(made):
    """The command that was to keep a limit would be killed before its first line."""
    limit = ANSWER_BYTES + made.rows * ANSWER_ROW_BYTES / 1.9
    some = outlook_of(made, limit).answer
    assert [one.verdict.rank for one in some.slow] == [2]
    assert some.step_count == STEPS // 2
    assert "one in 2 steps" in str(some.limits[0])
    assert kept_outlook(made) is None
    assert outlook_of(made).answer.step_count == STEPS
    # Enough steps stay to see a change, whatever the limit.
    assert first_answer(made, 1.0).step_count >= LEAST_STEPS


def test_a_memory_limit_counts_places_that_nobody_recorded(tmp_path):
    """A few ranks of a large mesh, each of another replica, would take many times the memory that the limit leaves."""
    layout, flat = ParallelLayout(tp=4, pp=4, dp=16), ParallelLayout(dp=16)
    made = summaries_of(own_work(flat, STEPS), flat, tmp_path)
    (segment,) = made.segments
    rows = pq.read_table(tmp_path / segment.name)
    limit = ANSWER_BYTES + 1.1 * rows.num_rows * (ANSWER_ROW_BYTES + SURVEY_ROW_BYTES)
    assert first_answer(made, limit).every == 1
    ranks = np.sort([layout.rank(pp=at % 4, dp=at, tp=at // 4) for at in range(16)])
    spread = pa.array(ranks[rows["rank"].to_numpy()], SCHEMA.field("rank").type)
    write_rows(rows.set_column(0, SCHEMA.field("rank"), spread), tmp_path / segment.name)
    few = replace(
        made,
        segments=(segment._replace(ranks=tuple(ranks.tolist())),),
        outline=made.outline._replace(layout=layout),
    )
    assert first_answer(few, limit).every == 2


def test_a_folder_that_cannot_be_written_still_has_an_answer(made, monkeypatch):
    """Summaries of somebody else could not be looked at."""

    def refuse(*_args, **_others):
        raise PermissionError("read-only")

    monkeypatch.setattr("meshscope.analyze.scale.first_answer.drafted", refuse)
    assert outlook_of(made).answer.slow
    assert kept_outlook(made) is None


def test_the_export_holds_what_the_summaries_hold(run, tmp_path):
    """Another tool would plot other numbers than the pages show, or all records would be read for it."""
    runner = CliRunner()
    assert runner.invoke(app, ["summarize", str(run), "--workers", "1"]).exit_code == 0
    out = tmp_path / "out"
    called = runner.invoke(app, ["export", str(run), "--to", "summaries", "--out", str(out)])
    assert called.exit_code == 0, called.output
    made = read_summaries(run)
    outlook = outlook_of(made)
    slow = pd.read_csv(out / "slow_ranks.csv")
    assert slow["rank"].tolist() == [2]
    assert slow["return_ns"][0] == pytest.approx(outlook.answer.slow[0].price.return_ns)
    assert len(pd.read_csv(out / "steps.csv")) == outlook.blocks.steps.num_rows
    assert len(pd.read_csv(out / "blocks.csv")) == outlook.blocks.blocks.num_rows
    assert pq.read_table(out / "rows.parquet") == made.read(SCHEMA.names)
    assert "diagnose" in called.stdout
