"""Run directories: created, changed, recognised, and read as far as they are good."""

import json

import pytest
from tests.texts import texts

from meshscope.probe.reader.run import read_run
from meshscope.probe.recording.record_heads import collective_head, span_head
from meshscope.probe.schema.errors import ConfigError, FormatVersionError, RunDirectoryError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.rundir import (
    create_run,
    is_run_directory,
    list_runs,
    update_run_manifest,
)
from meshscope.probe.schema.tables import FORMAT_VERSION, TABLES
from meshscope.probe.schema.terms import Axis


@pytest.fixture
def two_ranks(make_recorder, run_path):
    """Return a finished run whose two ranks recorded 300 steps and 10 collectives each."""
    for rank in range(2):
        recorder = make_recorder(rank, slot_count=64)
        group = recorder.register_group("0", [0, 1], "default_pg")
        for step in range(300):
            recorder.record_step(step, step, 1)
            if step % 30 == 0:
                recorder.issue_collective(collective_head(group, 0, -1), step // 30, 8, 1)
            if step % 20 == 19:
                recorder.flush()
        recorder.close()
    return run_path


def change_json(path, **changes):
    """Change keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_complete_run_has_no_limits(two_ranks):
    """Fails when a healthy capture is reported as damaged, or rows are lost or doubled."""
    capture = read_run(two_ranks)
    assert texts(capture.limits) == ()
    assert capture.ranks == (0, 1)
    assert set(capture.rank_manifests) == {0, 1}
    for _, rows in capture.tables["step"].to_pandas().groupby("rank"):
        assert rows["step"].tolist() == list(range(300))
    assert capture.tables["collective"].num_rows == 20


def test_tables_conform_to_their_declaration(two_ranks):
    """Fails when a table of a capture has other columns or types than declared."""
    tables = read_run(two_ranks).tables
    assert set(tables) == {
        "run", "group", "step", "span", "collective", "p2p", "communication_sum", "recording",
        "attempt",
        "memory", "microbatch",
    }  # fmt: skip
    for name, table in tables.items():
        assert table.schema.equals(TABLES[name].arrow_schema()), name


def test_run_table_takes_layout_and_model_from_the_manifest(tmp_path, two_ranks):
    """Fails when what the job knows about itself does not reach the analyses."""
    layout = ParallelLayout(tp=2, order="pp-dp-cp-tp")
    update_run_manifest(
        two_ranks,
        {
            "layout": layout.to_json(),
            "model": {"num_layers": 4, "parameters": 1 << 40},
            "schedule": "1f1b",
            "peak_flops": 10**12,
        },
    )
    (row,) = read_run(two_ranks).tables["run"].to_pylist()
    assert (row["run_id"], row["world_size"]) == ("run-1", 2)
    assert (row["tp"], row["pp"], row["order"]) == (2, 1, "pp-dp-cp-tp")
    assert (row["num_layers"], row["parameters"]) == (4, 1 << 40)
    assert (row["schedule"], row["peak_flops"], row["seq_len"]) == ("1f1b", 1e12, None)


def test_update_merges_and_keeps(run_path):
    """Fails when one process's facts about a run erase those of another."""
    update_run_manifest(run_path, {"model": {"num_layers": 4}, "x": 1})
    update_run_manifest(run_path, {"model": {"seq_len": 8}})
    manifest = json.loads((run_path / "manifest.json").read_text())
    assert manifest["model"] == {"num_layers": 4, "seq_len": 8}
    assert (manifest["x"], manifest["world_size"], manifest["run_id"]) == (1, 2, "run-1")


def test_run_ids_are_checked_and_not_reused(tmp_path):
    """Fails when two runs write into one directory, or an id leaves the directory of runs."""
    create_run(tmp_path / "runs", "a", {})
    with pytest.raises(ConfigError, match="exists already"):
        create_run(tmp_path / "runs", "a", {})
    with pytest.raises(ConfigError, match="cannot name a run"):
        create_run(tmp_path / "runs", "../b", {})


def test_odd_values_in_the_manifest_are_stated(two_ranks):
    """Fails when a hand-edited manifest breaks the reader or is believed."""
    change_json(
        two_ranks / "manifest.json", world_size="two", layout=[1], model={"num_layers": 1 << 40}
    )
    capture = read_run(two_ranks)
    (row,) = capture.tables["run"].to_pylist()
    assert (row["world_size"], row["num_layers"], row["tp"]) == (2, None, None)
    text = " ".join(texts(capture.limits))
    assert "world_size unknown: the manifest of the run has the impossible value 'two'" in text
    assert "layout unknown: the manifest of the run has the impossible value [1]" in text
    assert (
        "num_layers unknown: the manifest of the run has the impossible value 1099511627776" in text
    )
    assert "World size unknown: taken to be 2" in text


def test_missing_rank_is_stated(two_ranks):
    """Fails when a rank that left nothing goes unnoticed."""
    update_run_manifest(two_ranks, {"world_size": 4})
    capture = read_run(two_ranks)
    assert texts(capture.limits) == ("2 of 4 ranks missing: 2, 3",)


def test_run_without_manifest_is_read(two_ranks):
    """Fails when losing one small file makes a whole capture unreadable."""
    (two_ranks / "manifest.json").unlink()
    capture = read_run(two_ranks)
    assert capture.manifest == {}
    assert capture.tables["run"]["world_size"].to_pylist() == [2]
    assert any("Layout and model unknown" in limit for limit in texts(capture.limits))


@pytest.mark.parametrize("content", [None, b'{"format_ver', b"[]"], ids=["absent", "torn", "list"])
def test_rank_without_manifest_is_read_as_far_as_possible(two_ranks, content):
    """Fails when a rank with a lost manifest is dropped, or its groups mix with another rank's."""
    path = two_ranks / "rank00001" / "manifest.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    capture = read_run(two_ranks)
    assert capture.ranks == (0, 1)
    assert set(capture.rank_manifests) == {0}
    frame = capture.tables["collective"].to_pandas()
    assert set(frame.query("rank == 0")["group_id"]) == {"0"}
    assert set(frame.query("rank == 1")["group_id"]) == {"rank00001-group0"}
    assert any("unknown on rank 1: the manifest" in limit for limit in texts(capture.limits))
    assert "1 group without a name on rank 1: their axis is unknown" in texts(capture.limits)


def test_malformed_names_in_a_rank_manifest_are_survived(two_ranks):
    """Fails when a manifest that is JSON but not ours crashes the reader."""
    change_json(
        two_ranks / "rank00000" / "manifest.json",
        groups=[1, {"group_id": 3}, {"group_id": "x", "index": 0, "ranks": "all"}],
        dtypes="none",
        counters=[],
    )
    capture = read_run(two_ranks)
    assert capture.tables["collective"].num_rows == 20
    assert "1 group without a name on rank 0: their axis is unknown" in texts(capture.limits)


@pytest.mark.parametrize("place", [0, 8, 33], ids=["number", "type", "value"])
def test_flipped_bytes_are_reported_and_the_rest_is_read(two_ranks, flip_byte, place):
    """Fails when damage in a segment and a ring is silent, changes what both hold, or costs more than its block."""
    segment = two_ranks / "rank00001" / "seg-000001.arrows"
    flip_byte(segment, segment.stat().st_size // 2)
    flip_byte(two_ranks / "rank00000" / "ring.bin", 4096 + 5 * 128 + place)
    capture = read_run(two_ranks)
    frame = capture.tables["step"].to_pandas()
    # Rank 0 lost nothing: the damaged ring slot is in a segment as well.
    assert frame.query("rank == 0")["step"].tolist() == list(range(300))
    assert frame.query("rank == 0")["start_ns"].tolist() == list(range(300))
    assert len(frame.query("rank == 1")) == 280
    collectives = capture.tables["collective"].to_pandas().query("rank == 1")
    lost = 310 - 280 - len(collectives)
    text = "\n".join(texts(capture.limits))
    # A value has no checksum in the ring; the one of the segment is taken.
    assert ("1 record of ring.bin damaged on rank 0" in text) == (place < 33)
    assert "rank 1: in seg-000001.arrows, block" in text
    assert f"{lost} of 310 records missing on rank 1" in text


def test_ring_makes_up_for_a_damaged_block(make_recorder, run_path, flip_byte):
    """Fails when records that the ring still holds are lost with their block."""
    recorder = make_recorder()
    for step in range(100):
        recorder.record_step(step, 1, 2)
    recorder.close()
    segment = run_path / "rank00000" / "seg-000001.arrows"
    flip_byte(segment, 200)
    capture = read_run(run_path)
    assert capture.tables["step"]["step"].to_pylist() == list(range(100))
    assert any("block 1 is damaged" in limit for limit in texts(capture.limits))


def test_rank_with_an_unreadable_ring_keeps_its_segments(two_ranks):
    """Fails when a ring of another program's making costs the segments."""
    (two_ranks / "rank00000" / "ring.bin").write_bytes(b"not ours")
    capture = read_run(two_ranks)
    assert capture.tables["step"].num_rows == 600
    assert "The newest records are missing on rank 0: ring.bin is not a ring file" in texts(
        capture.limits
    )


def test_lost_segment_is_stated(make_recorder, run_path):
    """Fails when a deleted segment leaves no trace in the limits."""
    recorder = make_recorder(slot_count=64, segment_s=0.0)
    for step in range(300):
        recorder.record_step(step, 1, 2)
        if step % 30 == 29:
            recorder.flush()
    recorder.close()
    (run_path / "rank00000" / "seg-000002.arrows").unlink()
    capture = read_run(run_path)
    assert capture.tables["step"].num_rows == 270
    assert any("30 of 300 records missing on rank 0" in limit for limit in texts(capture.limits))


def test_completion_without_issue_is_stated(make_recorder, run_path):
    """Fails when the end of an unknown operation is dropped silently."""
    make_recorder().complete(77, 1, 2, 3)
    limits = texts(read_run(run_path).limits)
    assert "1 end of operations on rank 0 left out: their beginning is missing" in limits


def test_unknown_kind_is_left_out_and_stated(make_recorder, run_path):
    """Fails when a kind that this release does not know shows up as another one."""
    recorder = make_recorder()
    recorder.record_span(span_head(0), 1, 2, 3)
    recorder.record_span(span_head(200), 1, 2, 3)
    capture = read_run(run_path)
    assert capture.tables["span"]["kind"].to_pylist() == ["forward"]
    assert "1 record of the table span on rank 0 with an unknown kind left out" in texts(
        capture.limits
    )


def test_live_run_is_read(make_recorder, run_path):
    """Fails when a run cannot be looked at while it records."""
    recorder = make_recorder(slot_count=64)
    for step in range(100):
        recorder.record_step(step, 1, 2)
        if step == 50:
            recorder.flush()
    capture = read_run(run_path)
    assert capture.tables["step"]["step"].to_pylist() == list(range(100))
    assert any("or is still running" in limit for limit in texts(capture.limits))


def test_groups_of_all_members_become_one_row(make_recorder, run_path):
    """Fails when a group is listed once per member, or the axis that one of them knows is lost."""
    make_recorder(0).register_group("5", [0, 1], "")
    other = make_recorder(1)
    other.register_group("9", [1], "self")
    other.register_group("5", [0, 1], "TP group", Axis.TP)
    groups = {row["group_id"]: row for row in read_run(run_path).tables["group"].to_pylist()}
    assert set(groups) == {"5", "9"}
    assert groups["5"]["axis"] == "tp"
    assert groups["5"]["ranks"] == [0, 1]
    assert groups["5"]["description"] == "TP group"
    assert groups["5"]["evidence"] == "evidence.axis_registered"
    assert (groups["9"]["axis"], groups["9"]["evidence"]) == ("other", None)


def test_members_that_disagree_are_stated(make_recorder, run_path):
    """Fails when two different groups of one name are matched in silence."""
    make_recorder(0).register_group("5", [0, 1], "")
    make_recorder(1).register_group("5", [1, 2], "")
    assert any("other members of group 5" in limit for limit in texts(read_run(run_path).limits))


@pytest.mark.parametrize("place", ["manifest.json", "rank00001/manifest.json"])
def test_unknown_version_is_refused_with_a_remedy(two_ranks, place):
    """Fails when a capture of a newer format is misread instead of refused."""
    change_json(two_ranks / place, format_version=42)
    with pytest.raises(FormatVersionError) as caught:
        read_run(two_ranks)
    message = str(caught.value)
    assert place in message
    assert "42" in message
    assert f"reads version {FORMAT_VERSION}" in message
    assert "\n" not in message


def test_paths_that_are_no_run_say_so(tmp_path):
    """Fails when a wrong path ends in a traceback, or in an empty result."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "trace.json").write_text("{}")
    (tmp_path / "file").write_text("{}")
    cases = {
        "absent": "does not exist",
        "empty": "the directory is empty",
        "other": "is not a run directory",
        "file": "is not a directory",
    }
    for name, message in cases.items():
        with pytest.raises(RunDirectoryError, match=message) as caught:
            read_run(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert caught.value.remedy


def test_directory_of_runs_names_one(run_path):
    """Fails when a user who names the directory of runs is not told what to name instead."""
    with pytest.raises(RunDirectoryError, match="It contains 1 run; name one") as caught:
        read_run(run_path.parent)
    assert str(run_path) in caught.value.remedy


def test_empty_rank_directory_counts_as_missing(two_ranks):
    """Fails when a rank that wrote nothing is listed as captured."""
    update_run_manifest(two_ranks, {"world_size": 3})
    (two_ranks / "rank00002").mkdir()
    capture = read_run(two_ranks)
    assert capture.ranks == (0, 1)
    assert "1 of 3 ranks missing: 2" in texts(capture.limits)


def test_run_that_has_just_begun_is_read(run_path):
    """Fails when a run whose ranks did not start yet is taken for no run."""
    capture = read_run(run_path)
    assert capture.ranks == ()
    assert texts(capture.limits) == ("2 of 2 ranks missing: 0, 1",)


def test_runs_are_listed(tmp_path):
    """Fails when the run list misses a run or shows something else."""
    create_run(tmp_path, "b", {})
    create_run(tmp_path, "a", {})
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "manifest.json").write_text('{"version": 1}')
    (tmp_path / "killed" / "rank00000").mkdir(parents=True)
    (tmp_path / "file").touch()
    assert [path.name for path in list_runs(tmp_path)] == ["a", "b", "killed"]
    assert not is_run_directory(tmp_path / "absent")
    with pytest.raises(RunDirectoryError, match="cannot be listed"):
        list_runs(tmp_path / "absent")
