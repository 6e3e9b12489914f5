"""Several attempts of a job read as one run."""

import pytest
from tests.texts import texts

from meshscope.analyze.findings.rules.hang import hang_findings
from meshscope.analyze.load.load import load_trace
from meshscope.probe.reader.run import read_run
from meshscope.probe.recording.record_heads import collective_head
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.schema.manifest import MANIFEST_NAME, rank_directory, read_json, write_json
from meshscope.probe.schema.rundir import create_run

SETTINGS = StorageSettings(slot_count=256, wake_s=3600.0, free_floor_frac=0.0)
S = 1_000_000_000


def record(run, rank, steps, *, launch="0 2", group="world[0,1]", close=True, first_seq=0):
    """Record a part of some steps with one collective each, the last without an end."""
    recorder = Recorder(run, rank, settings=SETTINGS)
    recorder.annotate("launch", launch)
    code = recorder.register_group(group, [0, 1], "default")
    dtype = recorder.register_dtype("bf16" if rank else "f32")
    for step in range(steps):
        recorder.step = step
        event = recorder.issue_collective(
            collective_head(code, 0, dtype), first_seq + step, 64, step * 10 + 1
        )
        if step < steps - 1:
            recorder.complete(event, step * 10 + 5, step * 10 + 1, step * 10 + 5)
        recorder.record_step(step, step * 10 + 1, 10)
    recorder.flush()
    if close:
        recorder.close()
    return recorder


def change(run, rank, part, **facts):
    """Change facts in the manifest of a part."""
    path = rank_directory(run, rank, part) / MANIFEST_NAME
    write_json(path, {**read_json(path), **facts})


def in_attempts(run, spans, launch="launch"):
    """Record one part of four steps for each (rank, start, end) in seconds, in this order."""
    parts = {}
    for rank, start, end in spans:
        parts[rank] = parts.get(rank, 0) + 1
        record(run, rank, 4, launch=launch)
        change(run, rank, parts[rank], started_unix_ns=int(start * S), closed_unix_ns=int(end * S))


@pytest.fixture
def run(tmp_path):
    """Return a new run of two ranks."""
    return create_run(tmp_path, "run-1", {"world_size": 2})


def steps_by_rank(capture):
    """Return the steps of each rank."""
    steps = capture.tables["step"].to_pandas()
    return {rank: list(rows) for rank, rows in steps.groupby("rank")["step"]}


def test_a_run_without_restart_reads_as_before(run):
    """Fails when one attempt is treated as several, whatever its ranks' clocks say."""
    in_attempts(run, [(0, 0, 10), (1, 900, 910)])
    capture = read_run(run)
    assert steps_by_rank(capture) == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}
    assert texts(capture.limits) == ()
    assert "newest_attempt" not in capture.rank_manifests[0]


def test_steps_and_numbers_of_the_second_attempt_follow(run):
    """Fails when two attempts share step numbers, event ids or numbers of collectives."""
    in_attempts(run, [(0, 0, 10), (1, 0, 10), (0, 15, 20), (1, 15, 20)])
    capture = read_run(run)
    assert steps_by_rank(capture) == {0: list(range(8)), 1: list(range(8))}
    rows = capture.tables["collective"].to_pandas()
    for _, of_rank in rows.groupby("rank"):
        assert list(of_rank["seq"]) == list(range(8))
        assert of_rank["event_id"].is_unique
        assert list(of_rank["end_ns"].isna()) == [False, False, False, True] * 2
    assert set(rows["group_id"]) == {"world[0,1]"}
    assert dict(zip(rows["rank"], rows["dtype"], strict=True)) == {0: "f32", 1: "bf16"}
    assert texts(capture.limits) == (
        "Attempt 2 of the job begins at step 4, 5.00 s after the end of the one before: "
        "whether it repeated steps of the training was not recorded",
    )


def test_an_attempt_in_which_a_rank_did_less(run):
    """Fails when ranks of one attempt get step numbers that do not match."""
    record(run, 0, 6)
    record(run, 1, 4)
    for rank in (0, 1):
        change(run, rank, 1, started_unix_ns=0, closed_unix_ns=10 * S)
        record(run, rank, 2)
        change(run, rank, 2, started_unix_ns=20 * S, closed_unix_ns=30 * S)
    capture = read_run(run)
    assert steps_by_rank(capture) == {0: list(range(8)), 1: [0, 1, 2, 3, 6, 7]}
    collective = capture.tables["collective"].to_pandas().query("step >= 6")
    assert list(collective.groupby("step")["seq"].nunique()) == [1, 1]


def test_a_rank_that_only_the_second_attempt_has(run):
    """Fails when a rank that joins later is put into the attempt before it came."""
    in_attempts(run, [(0, 0, 10), (0, 15, 20), (1, 14.9, 20)], launch="same")
    change(run, 1, 1, annotations={"launch": "other"})
    capture = read_run(run)
    assert steps_by_rank(capture) == {0: list(range(8)), 1: [4, 5, 6, 7]}
    assert "Attempt 1 of the job has no capture of rank 1" in texts(capture.limits)


def test_a_wall_clock_that_was_put_back(run):
    """Fails when the order of a rank's parts depends on the wall clock."""
    in_attempts(run, [(0, 500, 510), (1, 500, 510), (0, 15, 20), (1, 15, 20)])
    capture = read_run(run)
    rows = capture.tables["collective"].to_pandas()
    assert steps_by_rank(capture)[0] == list(range(8))
    assert list(rows.groupby("step")["seq"].nunique()) == [1] * 8


def test_a_machine_that_changed_is_not_compared(run):
    """Fails when times of two machines are put on one axis."""
    in_attempts(run, [(0, 0, 10), (1, 0, 10), (0, 15, 20), (1, 15, 20)])
    change(run, 1, 1, boot_id="another")
    capture = read_run(run)
    assert steps_by_rank(capture) == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}
    assert any(
        "Attempt 1 of the job is left out: another machine ran rank 1" in limit
        for limit in texts(capture.limits)
    )


def test_a_killed_attempt_says_so_and_only_the_newest_can_hang(run):
    """Fails when a diagnosis blames ranks for what a restart has made good."""
    record(run, 0, 4, close=False)
    record(run, 1, 3, close=False)
    for rank in (0, 1):
        change(run, rank, 1, started_unix_ns=0)
        record(run, rank, 2, launch="1 2")
    trace = load_trace(run)
    assert trace.frame("progress").empty
    assert any(
        "No close mark on ranks 0 and 1 in attempt 1" in limit for limit in texts(trace.limits)
    )


def test_an_attempt_without_records_does_not_hang_in_the_one_before(run):
    """Fails when a job that is starting again is said to hang where the attempt before was killed."""
    in_attempts(run, [(0, 0, 10), (1, 0, 10)])
    for rank in (0, 1):
        record(run, rank, 0, launch="launch", close=False)
        change(run, rank, 2, started_unix_ns=15 * S, closed_unix_ns=None)
    assert not list(hang_findings(load_trace(run), 1e6))


def test_a_rank_that_never_recorded_anything_in_one_attempt(run):
    """Fails when a part without any file stops the run from being read."""
    in_attempts(run, [(0, 0, 10), (1, 0, 10)])
    rank_directory(run, 0, 2).mkdir()
    capture = read_run(run)
    assert steps_by_rank(capture) == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}
    assert "1 attempt of rank 0 left out: nothing can be read of it" in texts(capture.limits)


def attempts_of(run):
    """Return the rows of the table of attempts."""
    return read_run(run).tables["attempt"].to_pylist()


def test_attempts_are_a_table(run):
    """Fails when nobody can tell to which start of the job a step belongs."""
    in_attempts(run, [(0, 0, 10), (1, 0, 9), (0, 20, 30), (1, 20, 30)])
    change(run, 1, 1, closed_unix_ns=None)
    first, second = attempts_of(run)
    assert (first["attempt"], first["first_step"], first["last_step"]) == (1, 0, 3)
    assert (second["attempt"], second["first_step"], second["last_step"]) == (2, 4, 7)
    assert (first["ranks"], first["killed_ranks"], second["killed_ranks"]) == (2, 1, 0)
    assert (first["training_step"], second["start_unix_ns"]) == (None, 20 * S)
    assert max(steps_by_rank(read_run(run))[0]) == second["last_step"]


def test_one_start_is_one_attempt(run):
    """Fails when a run without restart has no attempt, or a rank of its own each."""
    in_attempts(run, [(0, 0, 10), (1, 0, 10)])
    (only,) = attempts_of(run)
    assert (only["first_step"], only["last_step"], only["ranks"]) == (0, 3, 2)


@pytest.mark.parametrize(
    ("resumed_at", "words"),
    [
        (102, "that is step 102 of the training, 2 steps done again"),
        (103, "that is step 103 of the training, 1 step done again"),
        (104, "that is step 104 of the training"),
        (110, "that is step 110 of the training, 6 steps further on"),
        (None, "whether it repeated steps of the training was not recorded"),
    ],
)
def test_the_training_says_where_it_resumed(run, resumed_at, words):
    """Fails when a trainer that says its step is not understood, or one that does not is."""
    in_attempts(run, [(0, 0, 10), (1, 0, 10), (0, 20, 30), (1, 20, 30)])
    said = {1: {"step": 0, "number": 100}}
    if resumed_at is not None:
        # Said at the second step of the process, which is therefore one more.
        said[2] = {"step": 1, "number": resumed_at + 1}
    for part, value in said.items():
        annotations = read_json(rank_directory(run, 0, part) / MANIFEST_NAME)["annotations"]
        change(run, 0, part, annotations={**annotations, "training_step": value})
    capture = read_run(run)
    assert [row["training_step"] for row in attempts_of(run)] == [100, resumed_at]
    (limit,) = [limit for limit in texts(capture.limits) if "begins at step 4" in limit]
    assert limit.endswith(words)


@pytest.mark.parametrize(
    "said", [7, "x", {}, {"step": 0}, {"step": "0", "number": 1}, {"step": 0, "number": 1 << 70}]
)
def test_an_odd_training_step_is_none(run, said):
    """Fails when a damaged manifest keeps a run from being read."""
    in_attempts(run, [(0, 0, 10), (1, 0, 10)])
    change(run, 0, 1, annotations={"launch": "launch", "training_step": said})
    assert [row["training_step"] for row in attempts_of(run)] == [None]


@pytest.mark.parametrize(
    "facts",
    [
        {"started_unix_ns": -(10**30)},
        {"closed_unix_ns": 10**30},
        {"started_unix_ns": True},
        {"closed_unix_ns": True},
        {"boot_id": [[]], "host": {}},
    ],
)
def test_times_that_fit_no_column_do_not_hide_the_run(run, facts):
    """A damaged time, or name of a clock, in one manifest would make the whole run unreadable."""
    record(run, 0, 4)
    change(run, 0, 1, **facts)
    assert read_run(run).tables["attempt"].num_rows == 1


def in_sizes(run, *sizes, recorded=True):
    """Record an attempt of rank 0 alone for each number of ranks; the last may be empty."""
    for part, size in enumerate(sizes, 1):
        if recorded or part < len(sizes):
            record(run, 0, 4)
        else:
            Recorder(run, 0, settings=SETTINGS).close()
        start = 20 * S * part
        change(run, 0, part, world_size=size, started_unix_ns=start, closed_unix_ns=start + S)


def test_an_attempt_of_another_size_is_not_mixed_in(run):
    """Fails when steps of four ranks are taken for those of a job that goes on with two."""
    in_sizes(run, 4, 2)
    capture = read_run(run)
    assert steps_by_rank(capture) == {0: [0, 1, 2, 3]}
    (row,) = attempts_of(run)
    assert (row["attempt"], row["world_size"]) == (2, 2)
    assert row["hosts"] == capture.rank_manifests[0]["host"]
    said = "Attempt 1 of the job is left out: it had 4 ranks, the newest with records 2"
    assert any(limit.startswith(said) for limit in texts(capture.limits))


def test_facts_are_those_of_the_attempt_that_is_looked_at(run):
    """Fails when the mesh of a start that did nothing is laid over what another recorded."""
    in_sizes(run, 4, 2, recorded=False)
    for part, job in ((1, {"world_size": 4, "layout": {"dp": 4}}), (2, {"model": {"seq_len": 9}})):
        annotations = read_json(rank_directory(run, 0, part) / MANIFEST_NAME)["annotations"]
        change(run, 0, part, annotations={**annotations, "job": job})
    write_json(run / MANIFEST_NAME, {**read_json(run / MANIFEST_NAME), "model": {"seq_len": 9}})
    capture = read_run(run)
    assert capture.tables["run"]["world_size"].to_pylist() == [4]
    assert capture.tables["run"]["seq_len"].to_pylist() == [None]
    assert capture.manifest["layout"] == {"dp": 4}


@pytest.mark.parametrize("put_s", [-3600, -60, 0, 60, 3600])
@pytest.mark.parametrize("put_at", [50, 105])
def test_a_wall_clock_that_is_put_parts_no_ranks(run, put_s, put_at):
    """Fails when ranks of one attempt become two attempts, or an attempt ends before it begins."""

    def reading(at_s):
        return [int(at_s * S), int((10_000 + at_s + (put_s if at_s > put_at else 0)) * S), 100]

    for part, (start, end) in enumerate([(0, 100), (110, 200)], 1):
        for rank in (0, 1):
            record(run, rank, 4)
            pairs = [reading(at + rank / 50) for at in (start, end)]
            change(
                run, rank, part, clock_pairs=pairs, started_unix_ns=pairs[0][1],
                closed_unix_ns=pairs[1][1],
                annotations={"launch": "a", "attached_while_running": True},
            )  # fmt: skip
    capture = read_run(run)
    assert steps_by_rank(capture) == {0: [1, 2, 3, 5, 6, 7], 1: [1, 2, 3, 5, 6, 7]}
    reported = capture.tables["attempt"].to_pandas()
    assert list(reported["ranks"]) == [2, 2]
    assert list(reported["end_unix_ns"] - reported["start_unix_ns"]) == [
        100 * S + S // 50,
        90 * S + S // 50,
    ]
    assert reported["start_unix_ns"][1] - reported["end_unix_ns"][0] == 10 * S - S // 50
