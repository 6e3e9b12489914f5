"""Samples in segments, and the directories of hosts of a run."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.texts import texts

from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.errors import FormatVersionError, SchemaError
from meshscope.probe.schema.host_records import decode_rows, encode_rows, plain_uuid, read_hosts
from meshscope.probe.schema.segment import SegmentFile, segment_path
from meshscope.probe.schema.tables import FORMAT_VERSION

DEVICES = [
    {"uuid": "GPU-AA", "name": "H100", "index": 0, "max_clock_hz": 1.9e9},
    {"uuid": "GPU-BB"},
]
HOST = {"format_version": FORMAT_VERSION, "host": "node", "boot_id": "b", "devices": DEVICES}


def write_host(run_path, manifest=HOST, rows=None):
    """Write the directory of a host as an agent does; return its path."""
    path = run_path / "host-node"
    path.mkdir(mode=0o700)
    (path / "manifest.json").write_text(json.dumps(manifest))
    if rows:
        segment = SegmentFile(path, rank=None, number=1)
        segment.append(encode_rows(rows))
        segment.close()
    return path


@settings(max_examples=20)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"uuid": st.text(max_size=9), "time_ns": st.integers(-(2**63), 2**63 - 1)},
            optional={
                "power_w": st.floats(allow_nan=False) | st.none(),
                "throttle_mask": st.integers(0, 2**62),
                "remap_failed": st.booleans(),
            },
        ),
        min_size=1,
        max_size=5,
    )
)
def test_rows_survive_a_block(rows):
    """Fails when a sample changes on its way through a segment."""
    (table,) = decode_rows(encode_rows({"device_sample": rows, "host_sample": []}))
    given_back = [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]
    assert given_back == [{k: v for k, v in row.items() if v is not None} for row in rows]


@pytest.mark.parametrize(
    "row", [{"uuid": "a"}, {"uuid": "a", "time_ns": "x"}, {"uuid": "a", "time_ns": 2**70}]
)
def test_a_row_that_does_not_fit_is_refused(row):
    """Fails when a broken sample is stored as another value."""
    with pytest.raises(SchemaError):
        encode_rows({"device_sample": [row]})


@pytest.mark.parametrize("payload", [b"", b"\xff\xff\xff\xff", b"\x10\x00\x00\x00garbage"])
def test_a_payload_that_is_none_is_refused(payload):
    """Fails when a damaged block ends the reading, or takes memory that it only claims."""
    with pytest.raises((ValueError, OSError)):
        list(decode_rows(payload))


def test_devices_and_who_runs_on_them(run_path):
    """Fails when a rank is not brought to its device by uuid, in either of its forms."""
    write_host(run_path)
    ranks = {
        0: {"device_uuid": "GPU-bb", "boot_id": "b"},
        1: {"device_uuid": None, "annotations": {"device_uuid": "aa"}},
        2: {"device_uuid": "GPU-CC"},
        3: {},
    }
    tables = read_hosts(run_path, ranks, []).tables
    assert tables["device"]["uuid"].to_pylist() == ["GPU-AA", "GPU-BB"]
    assert [(r["rank"], r["uuid"]) for r in tables["rank_device"].to_pylist()] == [
        (0, "GPU-BB"),
        (1, "GPU-AA"),
    ]


def test_processes_tell_the_device_of_a_rank_that_does_not(run_path):
    """Fails when a process id of another machine is taken for a rank's, or of two devices one."""
    processes = [
        {"uuid": "GPU-AA", "time_ns": 1, "pid": 10},
        {"uuid": "GPU-AA", "time_ns": 2, "pid": 10},
        {"uuid": "GPU-AA", "time_ns": 1, "pid": 11},
        {"uuid": "GPU-BB", "time_ns": 1, "pid": 11},
    ]
    write_host(run_path, rows={"device_process": processes})
    ranks = {
        0: {"pid": 10, "boot_id": "b"},
        1: {"pid": 11, "boot_id": "b"},
        2: {"pid": 10, "boot_id": "another"},
        3: {"pid": [10], "boot_id": "b"},
    }
    rows = read_hosts(run_path, ranks, []).tables["rank_device"].to_pylist()
    assert [(row["rank"], row["uuid"]) for row in rows] == [(0, "GPU-AA")]
    assert rows[0]["evidence"] == "evidence.device_of_process"


@pytest.mark.parametrize(
    "devices",
    [None, "x", [1], [{"uuid": 5}], [{"uuid": "a", "index": 2**40}], [{"uuid": "a", "name": 5}]],
)
def test_odd_manifests_cost_only_what_is_odd(run_path, devices):
    """Fails when a manifest that somebody else wrote ends the reading of a run."""
    write_host(run_path, {**HOST, "devices": devices}, {"host_sample": [{"time_ns": 1}]})
    assert read_run(run_path).tables["host_sample"].num_rows == 1


def test_damage_is_a_limit(run_path, flip_byte):
    """Fails when damaged samples are used, or pass in silence."""
    path = write_host(run_path, rows={"host_sample": [{"time_ns": 1}]})
    flip_byte(segment_path(path, 1), 200)
    (path / "manifest.json").write_text("{")
    capture = read_run(run_path)
    assert "host_sample" not in capture.tables
    text = " ".join(texts(capture.limits))
    assert "Records missing on host node: in seg-000001.arrows" in text
    assert "Devices of host node unknown" in text


def test_another_format_version_is_refused(run_path):
    """Fails when samples of an unknown format are guessed at."""
    write_host(run_path, {**HOST, "format_version": 999})
    with pytest.raises(FormatVersionError):
        read_run(run_path)


def test_what_the_agent_lost_is_a_limit(run_path):
    """Fails when a disk that was full leaves no trace in the results."""
    write_host(run_path, {**HOST, "counters": {"disk_floor_dropped": 4, "segments_dropped": 0}})
    assert (
        "4 samples of host node not written: the disk had less than 5 % free. Free some room"
        in texts(read_run(run_path).limits)
    )


def test_uuids_in_one_form():
    """Fails when NVML's and torch's names of one device differ."""
    assert plain_uuid("GPU-0a-B") == plain_uuid("0A-b")


def test_two_machines_of_one_name_stay_two(run_path):
    """Fails when the second machine's devices replace the first one's."""
    write_host(run_path)
    (run_path / "host-node").rename(run_path / "host-node-0000")
    write_host(run_path, {**HOST, "boot_id": "c", "devices": [{"uuid": "GPU-DD"}]})
    rows = read_hosts(run_path, {}, []).tables["device"].to_pylist()
    assert {(row["host"], row["uuid"]) for row in rows} == {
        ("node", "GPU-DD"),
        ("node-0000", "GPU-AA"),
        ("node-0000", "GPU-BB"),
    }
