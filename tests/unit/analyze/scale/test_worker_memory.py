"""Memory of a worker is kept to its limit: fewer ranks at a time, or a refusal that says what is needed."""

from collections import Counter
from functools import partial

import pytest

from meshscope.analyze.load.ingested import counted_rows, rows_by_rank, steps_of_ranks
from meshscope.analyze.load.load import load_trace
from meshscope.analyze.scale import segments
from meshscope.analyze.scale.compact import compact
from meshscope.analyze.scale.executors import InThisProcess
from meshscope.analyze.scale.store import write_summaries
from meshscope.analyze.scale.worker_memory import (
    ROW_BYTES,
    SUMMARY_ROW_BYTES,
    UNPACKED_FACTOR,
    WORKER_BYTES,
)
from meshscope.analyze.synthetic import SyntheticJob
from meshscope.analyze.synthetic.record import record
from meshscope.analyze.synthetic.run_directory import write_run
from meshscope.analyze.synthetic.simulate import make_simulation
from meshscope.analyze.wording.message import message
from meshscope.probe.reader.part_sizes import unpacked_bytes
from meshscope.probe.recording.record_heads import collective_head, span_head
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.manifest import part_directories
from meshscope.probe.schema.records import LEVEL_CODES
from meshscope.probe.schema.rundir import create_run
from meshscope.probe.schema.terms import CaptureLevel

RANKS, STEPS = 40, 3


def nobody(_count):
    """Take no notice of progress."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run in segments."""
    job = SyntheticJob(
        layout=ParallelLayout(tp=2, pp=2, dp=RANKS // 4), microbatches=2, steps=STEPS
    )
    path = write_run(job, record(make_simulation(job)), None, tmp_path_factory.mktemp("runs"))
    compact(path, InThisProcess(), nobody)
    return path


@pytest.fixture
def summarized(run, tmp_path):
    """Return a function that makes summaries within a memory, and returns them by name."""

    def make(limit_bytes=None, name="limited", run=run):
        write_summaries(run, InThisProcess(), nobody, tmp_path / name, limit_bytes=limit_bytes)
        return {file.name: file.read_bytes() for file in (tmp_path / name).glob("*.parquet")}

    return make


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a run that the probe recorded: four ranks that meet in each step."""
    run = create_run(tmp_path_factory.mktemp("runs"), "recorded", {"world_size": 4})
    settings = StorageSettings(slot_count=64, wake_s=3600.0, free_floor_frac=0.0)
    for rank in range(4):
        recorder = Recorder(run, rank, settings=settings)
        group = recorder.register_group("world", [*range(4)], "default")
        for step in range(STEPS):
            recorder.step, at = step, step * 1000
            recorder.record_span(span_head(0, 0, 0), at, 100 + rank, 5, 0)
            event = recorder.issue_collective(
                collective_head(group, 0, -1), step, 64, at + 200 + rank
            )
            recorder.complete(event, at + 300, at + 250, at + 300)
            recorder.record_step(step, at, 1000, 1, LEVEL_CODES[CaptureLevel.COLLECTIVES])
            recorder.flush()
        recorder.close()
    return run


@pytest.fixture
def needed(run):
    """Return the memory that the records of some ranks need."""
    steps = steps_of_ranks(run, range(segments.SEGMENT_RANKS))
    assert steps == segments.SEGMENT_RANKS * STEPS
    largest = max(rows_by_rank(run).values())
    return lambda ranks: float(
        WORKER_BYTES + steps * SUMMARY_ROW_BYTES + ranks * largest * ROW_BYTES
    )


@pytest.mark.parametrize("at_once", [1, 5])
def test_a_limit_below_the_need_reads_fewer_ranks_at_a_time(
    summarized, needed, monkeypatch, at_once
):
    """Fails when a limit changes a file, leaves a rank out, or does not make the parts smaller."""
    whole, read, load = summarized(name="whole"), [], segments.load_trace
    monkeypatch.setattr(
        segments,
        "load_trace",
        lambda run, wanted: read.append(wanted.ranks) or load(run, wanted=wanted),
    )
    assert summarized(needed(at_once)) == whole
    assert sorted(rank for ranks in read for rank in ranks) == list(range(RANKS))
    assert at_once <= max(map(len, read)) <= 2 * at_once


def test_a_limit_that_one_rank_exceeds_is_refused_with_what_is_needed(run, summarized, needed):
    """The command would take more than it was given without a word, or the system would kill it."""
    limit = needed(1) - ROW_BYTES
    with pytest.raises(ConfigError) as refused:
        summarized(limit)
    words = message("refused.rank_needs_memory", rows=max(rows_by_rank(run).values()))
    assert refused.value.what == str(words)
    assert refused.value.remedy == str(message("advice.memory_limit", least=240))
    # What is there already needs no memory.
    assert summarized() == summarized(limit)


def test_a_limit_is_kept_for_a_file_per_rank(tmp_path, summarized, monkeypatch):
    """Fails when all ranks of a small ingested run are read at once, whatever the limit."""
    job = SyntheticJob(layout=ParallelLayout(tp=1, pp=2, dp=2), microbatches=2, steps=STEPS)
    path = write_run(job, record(make_simulation(job)), None, tmp_path)
    assert not rows_by_rank(path)
    records, steps = counted_rows(path, [0, 1])
    assert records == Counter(load_trace(path).tables["span"]["rank"].to_pylist()) + Counter(
        rank
        for name in ("collective", "p2p")
        for rank in load_trace(path).tables[name]["rank"].to_pylist()
    )
    assert steps == 2 * STEPS
    whole, read, load = summarized(name="whole", run=path), [], segments.load_trace
    monkeypatch.setattr(
        segments,
        "load_trace",
        lambda run, wanted: read.append(wanted.ranks) or load(run, wanted=wanted),
    )
    limit = WORKER_BYTES + 4 * STEPS * SUMMARY_ROW_BYTES + max(records.values()) * ROW_BYTES
    assert summarized(float(limit), run=path) == whole
    assert read == [(0,), (1,), (2,), (3,)]


def needed_of_recorded(run, ranks):
    """Return the memory that some ranks of a recorded run need."""
    parts = part_directories(run).values()
    largest = max(sum(map(unpacked_bytes, own.values())) for own in parts)
    beside = WORKER_BYTES + 4 * STEPS * SUMMARY_ROW_BYTES
    return beside + ranks * largest * UNPACKED_FACTOR


@pytest.mark.parametrize("at_once", [1, 2])
def test_of_a_recorded_run_fewer_ranks_are_read_at_a_time(
    recorded, summarized, monkeypatch, at_once
):
    """Fails when a limit is not kept for a run that the probe recorded, or changes its rows."""
    whole, read, load = summarized(name="whole", run=recorded), [], segments.load_trace
    monkeypatch.setattr(
        segments,
        "load_trace",
        lambda run, wanted: read.append(wanted.ranks) or load(run, wanted=wanted),
    )
    limit = needed_of_recorded(recorded, at_once)
    limited = summarized(limit, run=recorded)
    assert [*map(len, read)] == [at_once] * (4 // at_once)
    # Ranks that are read apart may not show what they show together, so the name says so.
    assert limited.keys() != whole.keys()
    assert sorted(limited.values()) == sorted(whole.values())


def test_a_recorded_step_without_room_is_refused_with_what_is_needed(recorded, summarized):
    """The command would take more than it was given without a word, or the system would kill it."""
    limit = needed_of_recorded(recorded, 1) - 1
    with pytest.raises(ConfigError) as refused:
        summarized(limit, run=recorded)
    assert "a step and those beside it have" in refused.value.what
    assert refused.value.remedy == str(message("advice.memory_limit", least=250))
    whole = summarized(run=recorded)
    # What was read together is there already, and needs no memory.
    assert summarized(limit, run=recorded) == whole


def test_memory_of_one_part_is_given_back_before_the_next(summarized, needed, monkeypatch):
    """A limit would be exceeded by what earlier ranks took."""
    given = []
    monkeypatch.setattr(segments, "release_unused", partial(given.append, None))
    summarized(needed(1))
    assert len(given) >= RANKS / 2
    given.clear()
    summarized(name="free")
    assert not given
