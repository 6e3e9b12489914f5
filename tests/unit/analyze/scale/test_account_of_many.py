"""The account of a run of many ranks: the first answer comes first, then the steps that matter, then nothing is left."""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from tests import recorded_steps
from typer.testing import CliRunner

from meshscope.analyze import diagnose
from meshscope.analyze.load.ingest import Keeping, ingest
from meshscope.analyze.load.load import load_trace
from meshscope.analyze.output.text import to_text
from meshscope.analyze.read.deep_traces.files import EVENT_BYTES
from meshscope.analyze.scale.account_steps import (
    ACCOUNT_BYTES,
    ACCOUNT_ROW_BYTES,
    PROFILED_ROW_BYTES,
    READ_ROW_BYTES,
    account_steps,
    beside_account,
    profiled_rows,
)
from meshscope.analyze.scale.blocks import blocks_of
from meshscope.analyze.scale.executors import InThisProcess
from meshscope.analyze.scale.first_answer import outlook_of
from meshscope.analyze.scale.store import FOLDER, write_summaries
from meshscope.analyze.scale.worker_memory import looking_bytes
from meshscope.analyze.synthetic import SyntheticJob, parse_fault
from meshscope.analyze.synthetic.record import record
from meshscope.analyze.synthetic.run_directory import write_run
from meshscope.analyze.synthetic.simulate import make_simulation
from meshscope.analyze.tables.part import StepRange, of_steps
from meshscope.cli import app
from meshscope.probe.reader.part_sizes import unpacked_bytes
from meshscope.probe.reader.wanted import MOST_ROWS_VARIABLE, Wanted
from meshscope.probe.schema.deep_trace import FOLDER as TRACES
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.manifest import rank_directory
from meshscope.probe.schema.rundir import create_run

RANKS, STEPS = 264, 8
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run of many ranks, of which one is slow from step 3 on."""
    job = SyntheticJob(
        layout=ParallelLayout(tp=2, pp=2, dp=RANKS // 4),
        microbatches=2,
        steps=STEPS,
        jitter_cv=0.01,
        faults=(parse_fault("slow_rank:rank=5,factor=1.4,first_step=3"),),
    )
    return write_run(job, record(make_simulation(job)), None, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def made(run, tmp_path_factory):
    """Return the summaries of the run."""
    return write_summaries(run, InThisProcess(), lambda _: None, tmp_path_factory.mktemp("made"))


def records_of_a_step(made):
    """Return how many records each step has."""
    rows = made.read(("span_rows", "collective_rows", "p2p_rows"))
    return sum(map(sum, rows.to_pydict().values())) // STEPS


def test_the_account_is_of_the_steps_in_which_the_rank_is_slow(made):
    """Healthy steps would hide the cause, or the account would need the memory of a whole cluster."""
    outlook = outlook_of(made)
    a_step = records_of_a_step(made)
    assert account_steps(outlook.blocks, outlook.answer, STEPS * a_step) is None
    chosen = account_steps(outlook.blocks, outlook.answer, 2 * a_step)
    assert (chosen.steps, chosen.rank, chosen.rows) == (StepRange(3, 4), 5, 2 * a_step)
    assert account_steps(outlook.blocks, outlook.answer, 7 * a_step).steps == StepRange(3, 7)
    assert account_steps(outlook.blocks, outlook.answer, 1).steps == StepRange(3, 3)


def test_without_a_slow_rank_the_longest_steps_are_looked_at(made):
    """A job that only now and then is slow would be accounted for where it is fast."""
    nobody_slow, outlook = SimpleNamespace(slow=()), outlook_of(made)
    a_step = records_of_a_step(made)
    chosen = account_steps(outlook.blocks, nobody_slow, 3 * a_step)
    assert chosen.rank is None
    assert chosen.steps.first >= 3
    assert chosen.steps.last == chosen.steps.first + 2


def test_other_steps_are_not_read_where_there_is_no_room(run):
    """Ten steps of a thousand would take the memory of all."""
    steps = StepRange(3, 4)
    whole = load_trace(run)
    part = load_trace(run, wanted=Wanted(steps=steps, most_rows=1000))
    assert part.row_count("span") * STEPS == whole.row_count("span") * 2
    assert part.tables["step"].equals(whole.tables["step"])
    roomy = load_trace(run, wanted=Wanted(steps=steps))
    assert roomy.row_count("span") == whole.row_count("span")
    assert to_text(diagnose(of_steps(part, steps))) == to_text(diagnose(of_steps(whole, steps)))


def test_the_first_answer_comes_before_the_account(run, monkeypatch):
    """Somebody on call would wait for minutes for what was known after seconds."""
    monkeypatch.setenv(MOST_ROWS_VARIABLE, "20000")
    found = CliRunner().invoke(app, ["diagnose", str(run), "--workers", "1"])
    text = found.stdout
    answer = text.index("1. Rank 5 is slow since step 3")
    chosen = text.index("The account below covers steps 3:")
    account = text.index("straggler_rank: Rank 5 is")
    assert answer < chosen < account


def test_programs_get_both_in_one_object(run):
    """A script would have to run two commands, or parse two documents in a row."""
    arguments = ["diagnose", str(run), "--workers", "1", "--format", "json"]
    reported = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert reported["summary"]["slow"][0]["rank"] == 5
    assert reported["summary"]["account_steps"] is None
    assert reported["findings"][0]["kind"] == "straggler_rank"


def test_what_is_no_run_directory_is_refused_with_the_remedy(tmp_path):
    """A user would read of a missing manifest that never was to be there."""
    trace = tmp_path / "trace.json"
    trace.write_text("{}", encoding="utf-8")
    found = CliRunner().invoke(app, ["diagnose", str(trace), "--workers", "2"])
    assert "meshscope ingest PATH" in str(found.exception)


def processes_of(session):
    """Return the processes of a session that are there and no zombies."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8") as file:
                state, _, _, own = file.read().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if own == str(session) and state != "Z":
            found.append(int(name))
    return found


@pytest.mark.parametrize("to_all", [True, False])
def test_ctrl_c_leaves_no_worker(run, to_all):
    """Processes that nobody waits for would go on with a machine that others use."""
    shutil.rmtree(run / FOLDER, ignore_errors=True)
    program = "import sys; from meshscope.cli import main; sys.argv[0] = 'meshscope'; main()"
    arguments = [sys.executable, "-c", program, "diagnose", str(run), "--workers", "2"]
    with subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    ) as command:
        # Both workers may be done with their first segments before the command looks.
        done = re.search(r"summarized (\d+) of 264 ranks", command.stderr.readline())
        running = processes_of(command.pid)
        (os.killpg if to_all else os.kill)(command.pid, signal.SIGINT)
        command.communicate(timeout=PATIENCE_S)
    assert done
    assert int(done[1]) in (32, 64)
    assert len(running) > 2
    assert command.returncode != 0
    until = time.monotonic() + PATIENCE_S
    while (left := processes_of(command.pid)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left


def heed_ctrl_c():
    """Give Ctrl-C back the action that a job in the background has lost."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_memory_limit_chooses_as_many_of_the_steps_as_have_room(run, made, tmp_path):
    """A run that is larger than the memory would be killed by the system, without an account."""
    a_step = records_of_a_step(made)
    limit = ACCOUNT_BYTES + int(2.5 * a_step * ACCOUNT_ROW_BYTES)
    called = CliRunner().invoke(
        app, ["diagnose", str(run), "--memory-limit", str(limit), "--format", "json"]
    )
    assert called.exit_code == 0, called.output
    reported = json.loads(called.stdout)
    assert reported["summary"]["account_steps"] == [3, 4]
    within = ["--steps", "0:2", "--memory-limit", str(limit), "--format", "json"]
    called = CliRunner().invoke(app, ["diagnose", str(run), *within])
    first, last = json.loads(called.stdout)["summary"]["account_steps"]
    assert (first >= 0, last <= 2, last - first) == (True, True, 1)


def test_a_limit_that_one_step_exceeds_is_refused_with_what_is_needed(run):
    """The account would begin, and die."""
    write_summaries(run, InThisProcess(), lambda _: None)
    called = CliRunner().invoke(app, ["diagnose", str(run), "--memory-limit", "100MB"])
    assert called.exit_code
    assert "Give at least 300MB" in str(called.exception)


def test_reading_a_recorded_rank_has_its_room_beside_the_account(run, tmp_path):
    """Fails when a large rank is looked through in memory that was promised to the account: the limit would not hold."""
    assert beside_account(run) == 0
    recorded = create_run(tmp_path, "recorded", {"world_size": 2})
    assert beside_account(recorded) == looking_bytes(0)
    recorded_steps.record(recorded, steps=20)
    assert beside_account(recorded) == looking_bytes(unpacked_bytes(rank_directory(recorded, 0)))
    assert beside_account(recorded) > looking_bytes(0)


def test_what_a_profiler_saw_has_its_room(tmp_path):
    """Fails when a trace of a million operators takes twice the limit, because its steps have few collectives."""
    kernels = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10.0 * at, "dur": 8}
        | {"args": {"stream": 7, "device": 0, "correlation": at}}
        for at in range(400)
    ]
    steps = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{at}", "pid": 1, "tid": 1}
        | {"ts": 1000.0 * at, "dur": 1000}
        for at in range(4)
    ]
    source = tmp_path / "rank0.json"
    source.write_text(json.dumps({"traceEvents": [*kernels, *steps]}))
    ingested = ingest(source, Keeping(runs_dir=tmp_path / "runs")).path
    profiled = profiled_rows(ingested)
    assert profiled == {0: 101, 1: 101, 2: 101, 3: 101}
    assert beside_account(ingested, profiled) == 404 * READ_ROW_BYTES
    blocks = blocks_of(write_summaries(ingested, InThisProcess(), lambda _: None))
    assert account_steps(blocks, None, 1000, profiled=profiled) is None
    chosen = account_steps(blocks, None, 90, profiled=profiled)
    assert chosen.steps.last - chosen.steps.first == 1
    assert chosen.size_bytes == pytest.approx(
        chosen.rows * ACCOUNT_ROW_BYTES + 202 * PROFILED_ROW_BYTES
    )


def test_a_deep_trace_that_nobody_has_read_has_its_room(tmp_path):
    """Fails when a limit is kept by the second look only: the first one reads the traces, and takes twice of it."""
    run = create_run(tmp_path, "recorded", {"world_size": 2})
    recorded_steps.record(run, steps=20)
    assert profiled_rows(run) == {}
    before = beside_account(run)
    shutil.copytree(rank_directory(run, 0), rank_directory(run, 1))
    for rank, events in enumerate((300, 500)):
        folder = rank_directory(run, rank) / TRACES
        folder.mkdir()
        text = b" " * (events * EVENT_BYTES)
        (folder / f"step000004-000008.a1.rank{rank:05d}.json.gz").write_bytes(gzip.compress(text))
    profiled = profiled_rows(run)
    assert profiled == dict.fromkeys(range(4, 9), 100)
    assert beside_account(run, profiled) == before + 500 * READ_ROW_BYTES
