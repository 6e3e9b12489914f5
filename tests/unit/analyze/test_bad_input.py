"""Damaged, odd and hostile input: what is good is kept, what is not is said, nothing hangs."""

import gzip
import json
import os
import random
import subprocess
import sys
from collections import Counter
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fuzz.places import put
from tests.fuzz.seeds import SEEDS, kineto_events, ndtimeline_rows, write
from tests.texts import texts

from meshscope.analyze import load_trace
from meshscope.analyze.read import import_trace
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.errors import MeshscopeError, TraceFormatError

KINETO, CAPTURE = SEEDS["kineto"](), SEEDS["capture"]()
CUTS = 200
"""Cuts over all formats, half of them of compressed files."""
ALONE = ("merged", "ndtimeline")
"""Formats with all ranks in one file, of which a cut may leave nothing."""
EMPTY = pa.table({"rank": []})
PER_RANK = ("step", "span", "collective", "p2p", "kernel", "op")


def rows_of(tables, rank=None):
    """Return how many rows each table has of a rank, or of all."""
    counts = Counter()
    for name in PER_RANK:
        ranks = tables[name]["rank"].to_pylist()
        counts[name] = len(ranks) if rank is None else ranks.count(rank)
    return counts


def read(folder):
    """Return the tables of a folder, and its limits, without correcting any clock."""
    if (folder / "manifest.json").exists():
        capture = read_run(folder)
        return {name: capture.tables.get(name, EMPTY) for name in PER_RANK}, (texts(capture.limits))
    trace = import_trace(folder)
    return {name: trace.tables[name] for name in PER_RANK}, texts(trace.limits)


def kineto_with(**changed):
    """Return the two files with keys of the header of rank 0 changed."""
    return {
        **KINETO,
        "rank0.json": json.dumps({**json.loads(KINETO["rank0.json"]), **changed}).encode(),
    }


def kineto_event(place=3, **changed):
    """Return the two files with one event of rank 0 changed; by default the first kernel."""
    events = kineto_events(0)
    events[place] |= changed
    return kineto_with(traceEvents=events)


def mentions(limits, *words):
    """Say whether one limit has all these words."""
    return any(all(word in limit for word in words) for limit in limits)


@pytest.mark.parametrize("name", SEEDS)
def test_cuts_lose_and_invent_nothing_else(tmp_path, name):
    """A job that dies during an export would end in a traceback, or in rows nobody wrote."""
    draw = random.Random(name)
    files = SEEDS[name]()
    whole, _ = read(write(tmp_path / "whole", files))
    victims = [key for key in files if "manifest" not in key and "meta" not in key]
    for number in range(CUTS // len(SEEDS) + 1):
        victim = draw.choice(victims)
        content = files[victim]
        if number % 2 and name != "capture":
            content = gzip.compress(content, mtime=0)
        cut = write(
            tmp_path / f"cut{number}", {**files, victim: content[: draw.randrange(len(content))]}
        )
        if name in ALONE:
            with suppress(TraceFormatError):
                assert rows_of(read(cut)[0]) <= rows_of(whole)
            continue
        tables, limits = read(cut)
        assert limits
        assert rows_of(tables) <= rows_of(whole)


@pytest.mark.parametrize(
    "name", ["kineto", "flight_recorder_json", "nccl_inspector", "pipeline_visualiser"]
)
@pytest.mark.parametrize(
    "content",
    [b"", b" \n", b"\x00" * 500, b"\xff\xfe{\x00}\x00", b"{}", b"[]", b"null", b"{" * 100_000],
    ids=["empty", "space", "nul", "utf16", "object", "list", "null", "deep"],
)  # fmt: skip
def test_a_file_of_nothing_hides_no_other(tmp_path, name, content):
    """One file that is no trace would hide the ranks that are whole, or go unmentioned."""
    files = SEEDS[name]()
    first = sorted(key for key in files if key != "config.json")[0]
    trace = import_trace(write(tmp_path, {**files, first: content}))
    assert trace.ranks == (1,) if name != "nccl_inspector" else len(trace.ranks) == 1
    assert mentions(texts(trace.limits), "1 file")
    with pytest.raises(MeshscopeError):
        import_trace(write(tmp_path / "alone", {first: content}))


NO_LENGTH, NO_STAMP, NO_EVENT = "no length", "without a time stamp", "unreadable event"


@pytest.mark.parametrize(
    ("key", "value", "kernels", "words"),
    [
        ("dur", -5, 3, NO_LENGTH), ("dur", None, 3, NO_LENGTH), ("dur", [], 3, NO_LENGTH),
        ("dur", float("nan"), 3, NO_LENGTH), ("dur", 1e18, 3, NO_LENGTH), ("dur", "x", 3, NO_LENGTH),
        ("dur", "20", 4, ""), ("ts", float("inf"), 3, NO_STAMP), ("ts", 10**40, 3, NO_STAMP),
        ("ts", "x", 3, NO_STAMP), ("ts", {}, 3, NO_STAMP), ("ts", None, 3, NO_STAMP),
        ("name", None, 3, NO_EVENT), ("cat", 5, 3, NO_EVENT), ("ph", None, 3, NO_EVENT),
        ("pid", "x", 4, ""), ("tid", [1], 4, ""), ("args", [1], 3, NO_EVENT),
        ("name", "\x1b[31m<script>\u202e", 4, ""), ("name", "x" * 2_000_000, 4, ""),
    ],
)  # fmt: skip
def test_one_odd_event_costs_no_more_than_itself(tmp_path, key, value, kernels, words):
    """One event of another version would cost a whole rank, or be counted with a made-up time."""
    trace = import_trace(write(tmp_path, kineto_event(**{key: value})))
    assert trace.ranks == (0, 1)
    own = trace.frame("kernel").query("rank == 0")
    assert (len(own), (own["dur_ns"] >= 0).all()) == (kernels, True)
    assert mentions(texts(trace.limits), "Rank 0", words) or not words


def test_the_order_of_events_means_nothing(tmp_path):
    """Profilers that write threads one after the other would get other steps and positions."""
    shuffled = kineto_events(0)
    random.Random(5).shuffle(shuffled)
    there = load_trace(write(tmp_path / "a", KINETO))
    here = load_trace(write(tmp_path / "b", kineto_with(traceEvents=shuffled)))
    for name, columns in (("kernel", ["rank", "step"]), ("collective", ["rank", "step", "seq"])):
        first, second = (
            Counter(trace.frame(name)[[*columns, "start_ns"]].itertuples(index=False, name=None))
            for trace in (there, here)
        )
        assert first == second


@pytest.mark.parametrize("place", sorted(CAPTURE))
@pytest.mark.parametrize("what", ["pipe", "device", "link", "socket", "folder"])
def test_what_lies_in_the_place_of_a_file_of_a_run(tmp_path, monkeypatch, place, what):
    """A pipe or device in a run directory would block its reader for ever or fill its memory."""
    path = write(tmp_path / "run-1", CAPTURE)
    put(path / place, what, tmp_path, monkeypatch)
    capture = read_run(path)
    assert texts(capture.limits)
    assert rows_of(capture.tables | {"kernel": EMPTY, "op": EMPTY}) <= Counter(
        step=40, collective=40
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"world_size": (1 << 31) - 1}, "ranks missing"),
        ({"peak_flops": 1 << 63}, ""),
        ({"peak_flops": 10**400}, "peak_flops"),
        ({"peak_flops": float("nan")}, "peak_flops"),
        ({"run_id": "\ud800"}, ""),
        ({"device_name": "\x1b[31m"}, ""),
        ({"world_size": -5}, ""),
        ({"layout": {"tp": 0}}, "layout"),
        ({"layout": {"tp": "2"}}, "layout"),
        ({"layout": {"order": 5}}, "layout"),
    ],
)  # fmt: skip
def test_odd_values_of_a_run(tmp_path, changed, words):
    """A forged manifest would end in a traceback or fill the memory."""
    path = write(tmp_path / "run-1", CAPTURE)
    manifest = json.loads(CAPTURE["manifest.json"]) | changed
    (path / "manifest.json").write_text(json.dumps(manifest))
    trace = load_trace(path)
    assert trace.ranks == (0, 1)
    assert mentions(texts(trace.limits), words) or not words


@pytest.mark.parametrize(
    "group",
    [
        {"axis": {"a": 1}}, {"axis": 5}, {"ranks": [True, 1]}, {"ranks": [-1]}, {"ranks": [1 << 40]},
        {"ranks": "0,1"}, {"group_id": 5}, {"group_id": "\ud800"}, {"index": "0"}, {"description": []},
    ],
    ids=str,
)  # fmt: skip
def test_odd_groups_of_a_rank(tmp_path, group):
    """A forged manifest of one rank would hide all ranks."""
    path = write(tmp_path / "run-1", CAPTURE)
    place = path / "rank00001" / "manifest.json"
    manifest = json.loads(place.read_text())
    manifest["groups"][0] |= group
    place.write_text(json.dumps(manifest))
    trace = load_trace(path)
    assert trace.ranks == (0, 1)
    assert trace.tables["collective"].num_rows == 40


def test_a_rank_with_an_absurd_number(tmp_path):
    """A folder with a long number would make the reader count up to it."""
    path = write(tmp_path / "run-1", {k: v for k, v in CAPTURE.items() if k != "manifest.json"})
    (path / "rank00001").rename(path / "rank999999999")
    trace = load_trace(path)
    assert trace.ranks == (0, 999_999_999)
    assert mentions(texts(trace.limits), "999,999,998 of 1,000,000,000 ranks missing")


@pytest.mark.parametrize(
    "ending", [b"", b', "5": {"total": 1', b', "5"', b', "5": {"total": 10.0, "mem']
)
def test_a_cut_visualiser_dump_keeps_its_whole_iterations(tmp_path, ending):
    """The iterations before the cut would be lost with the last one."""
    files = SEEDS["pipeline_visualiser"]()
    whole = files["pp_rank_0.json"]
    trace = import_trace(write(tmp_path, {**files, "pp_rank_0.json": whole[:-1] + ending}))
    assert trace.frame("span").groupby("rank").size().to_dict() == {0: 8, 1: 8}
    assert mentions(texts(trace.limits), "pp_rank_0.json", "cut off", "2 are whole")


def test_a_cut_log_keeps_its_records(tmp_path):
    """The records before the cut would be lost with the torn one."""
    files = SEEDS["nccl_inspector"]()
    log = gzip.compress(files["host-pid0.log"] * 50, mtime=0)
    trace = import_trace(write(tmp_path, {**files, "host-pid0.log": log[: len(log) - 12]}))
    assert trace.frame("collective").groupby("rank").size().to_dict() == {0: 3, 1: 3}
    assert mentions(texts(trace.limits), "host-pid0.log", "cut off")


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("rank", None, "impossible values"), ("rank", -1, "impossible values"),
        ("rank", 1 << 40, "impossible values"), ("rank", 0.5, "impossible values"),
        ("seq_id", 100_000, "impossible values"), ("step", 1 << 40, "impossible values"),
        ("duration", -1.0, "impossible values"), ("start_ts", 1e300, "impossible values"),
        ("duration", None, "have no time"), ("start_ts", float("inf"), "have no time"),
        ("optype", None, "unknown types"), ("optype", "x" * 10_000, "unknown types"),
    ],
)  # fmt: skip
def test_rows_of_ndtimeline_that_cannot_be(tmp_path, column, value, words):
    """One row with a damaged value would end in a traceback or be given to another rank."""
    rows = ndtimeline_rows()
    rows[column] = [value, *rows[column][1:]]
    pq.write_table(pa.table(rows), tmp_path / "trace-J.parquet")
    trace = import_trace(tmp_path)
    assert trace.tables["span"].num_rows + trace.tables["p2p"].num_rows == 7
    assert mentions(texts(trace.limits), "1 of 8 operations", words)


@pytest.mark.parametrize("column", ["rank", "start_ts", "optype"])
@pytest.mark.parametrize(
    "values", [[[1]] * 8, [{"a": 1}] * 8, ["x"] * 8, pa.array([1] * 8, pa.timestamp("ns"))],
    ids=["lists", "structs", "texts", "dates"],
)  # fmt: skip
def test_columns_of_ndtimeline_of_another_kind(tmp_path, column, values):
    """A column of another kind would end in a traceback."""
    pq.write_table(pa.table({**ndtimeline_rows(), column: values}), tmp_path / "trace-J.parquet")
    with pytest.raises(TraceFormatError):
        import_trace(tmp_path)


@pytest.mark.parametrize(
    "meta", [b"pp_size: 0", b"pp_size: 99999999999999999999", "pp_size: \u00b2".encode(), b"\xff\xfe\x00",
             b"pp_size: " + b"1" * 100_000, None],
    ids=["zero", "huge", "superscript", "binary", "long", "pipe"],
)  # fmt: skip
def test_odd_sizes_of_an_ndtimeline_job(tmp_path, meta):
    """A damaged meta file would end in a traceback, or block the reader."""
    write(tmp_path, SEEDS["ndtimeline"]())
    place = tmp_path / "meta-J.yaml"
    place.unlink()
    if meta is None:
        os.mkfifo(place)
    else:
        place.write_bytes(meta)
    assert import_trace(tmp_path).run["world_size"] == 2


@pytest.mark.parametrize(
    ("key", "value"), [("pid", 1 << 70), ("pid", -5), ("dump_timestamp_us", 1 << 62), ("hostname", 5)]
)  # fmt: skip
def test_odd_numbers_in_a_log(tmp_path, key, value):
    """One odd line would end in a traceback."""
    files = SEEDS["nccl_inspector"]()
    first, *others = files["host-pid0.log"].splitlines()
    line = json.loads(first)
    line["metadata"][key] = value
    log = b"\n".join([json.dumps(line).encode(), *others])
    trace = import_trace(write(tmp_path, {**files, "host-pid0.log": log}))
    assert trace.tables["collective"].num_rows == 5
    assert mentions(texts(trace.limits), "1 line left out: torn, or no record")


def test_a_dump_that_is_no_text_is_left_out(tmp_path):
    """A dump with bytes that are no UTF-8 would end in a traceback."""
    files = SEEDS["flight_recorder_json"]()
    damaged = files["_dump_0.json"].replace(b"default_pg", b"default\x99pg")
    trace = import_trace(write(tmp_path, {**files, "_dump_0.json": damaged}))
    assert trace.ranks == (1,)
    assert mentions(texts(trace.limits), "_dump_0.json", "damaged")


BOMBS = """
import resource, sys
from meshscope.analyze import load_trace
from meshscope.probe.schema.errors import MeshscopeError

before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
for folder in sys.argv[1:]:
    try:
        print("read", load_trace(folder).ranks)
    except MeshscopeError as error:
        print("refused", error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib)
"""
CAP_BYTES, UNPACKED_BYTES, PIECE_BYTES = 256 << 20, 384 << 20, 8 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
def test_what_unpacks_to_too_much_is_refused_within_bounded_memory(tmp_path):
    """A small file that unpacks to gigabytes would take the machine down."""
    flood = {
        "pipeline_visualiser": ("pp_rank_0.json", b'{"3": {"fwd_start": [', b" "),
        "nccl_inspector": ("host-pid0.log", None, b" "),
        "flight_recorder_json": ("_dump_0.json", b'{"pg_config": {}, "x": [', b"[],"),
        "flight_recorder_pickle": ("_dump_0", b"\x80\x02pg_config", b"]"),
        "kineto": ("rank0.json", b'{"traceEvents": [', b" "),
    }
    folders = []
    for name, (victim, head, unit) in flood.items():
        files = SEEDS[name]()
        start = gzip.compress(files[victim] if head is None else head)
        # Members of one stream may follow each other, so that one piece is packed once.
        piece = gzip.compress(unit * (PIECE_BYTES // len(unit)))
        content = start + piece * (UNPACKED_BYTES // PIECE_BYTES)
        folders.append(write(tmp_path / name, {**files, victim: content}))
    done = subprocess.run(
        [sys.executable, "-c", BOMBS, *map(str, folders)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    *outcomes, grown_kib = done.stdout.splitlines()
    assert all(one.startswith("read") for one in outcomes), outcomes
    assert len(outcomes) == len(folders)
    assert int(grown_kib) << 10 < CAP_BYTES


def test_parquet_files_of_absurd_length_are_refused(tmp_path, monkeypatch):
    """Fails when a few kilobytes of Parquet, which may stand for a thousand million rows, fill the memory."""
    monkeypatch.setattr("meshscope.analyze.read.ndtimeline.columns.MOST_ROWS", 7)
    with pytest.raises(TraceFormatError, match="8 rows"):
        import_trace(write(tmp_path, SEEDS["ndtimeline"]()))
