"""What a recorder is given comes back from the run directory, and damage never passes for it."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshscope.probe.reader.run import read_run
from meshscope.probe.recording.record_heads import carried, collective_head, p2p_head, span_head
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.schema.records import MEMORY_VALUES
from meshscope.probe.schema.ring import COMMIT_OFFSET, HEADER_BYTES, SLOT_BYTES, read_ring
from meshscope.probe.schema.segment import SegmentFile, read_segment
from meshscope.probe.schema.terms import CollectiveKind, Direction, MemoryPhase, SpanKind

SLOTS = 256
ASLEEP = StorageSettings(wake_s=3600.0, slot_count=SLOTS, free_floor_frac=0.0)
GROUPS = ("g0", "g1", "g2")
DTYPES = ("f32", "bf16")

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
known_ns = st.integers(1, (1 << 63) - 1)
count = st.integers(-1, (1 << 63) - 1)
maybe_ns = st.sampled_from([0, -1]) | known_ns

steps = st.fixed_dictionaries({"step": int64, "start_ns": int64, "dur_ns": int64, "tokens": count})
spans = st.fixed_dictionaries(
    {
        "kind": st.integers(0, len(SpanKind) - 1),
        "start_ns": int64,
        "dur_ns": int64,
        "cpu_ns": count,
        "stage": int32,
        "chunk": int32,
        "microbatch": int32,
    }
)
message = {
    "group": st.integers(0, len(GROUPS) - 1),
    "seq": int64,
    "size_bytes": int64,
    "dtype": st.integers(-1, len(DTYPES) - 1),
    "issue_ns": known_ns,
}
collectives = st.fixed_dictionaries(
    message | {"kind": st.integers(0, len(CollectiveKind) - 1)},
)
p2ps = st.fixed_dictionaries(
    message
    | {
        "direction": st.integers(0, len(Direction) - 1),
        "peer": int32,
        "microbatch": int32,
        "chunk": int32,
    }
)
memories = st.fixed_dictionaries(
    {"phase": st.integers(0, len(MemoryPhase) - 1), "stage": int32},
    optional={name: st.none() | count for name in MEMORY_VALUES},
)
lengths = st.lists(st.integers(1, 1 << 20), max_size=4)
microbatches = st.builds(
    lambda number, of: {
        "microbatch": number,
        "tokens": sum(of),
        "sum_sq": sum(n * n for n in of),
    },
    int32,
    lengths,
)
completions = st.lists(st.tuples(maybe_ns, maybe_ns, maybe_ns), max_size=3)
VOCABULARIES = {
    ("span", "kind"): SpanKind,
    ("collective", "kind"): CollectiveKind,
    ("p2p", "direction"): Direction,
    ("memory", "phase"): MemoryPhase,
}


HEADS = {
    "span": (span_head, ("kind", "stage", "chunk")),
    "collective": (collective_head, ("group", "kind", "dtype")),
    "p2p": (p2p_head, ("group", "direction", "peer", "dtype")),
}


def tagged(name: str, values: st.SearchStrategy) -> st.SearchStrategy:
    """Return events of one table; communication comes with its completions."""
    ends = completions if name in ("collective", "p2p") else st.just([])
    return st.tuples(st.just(name), values, ends, st.booleans())


events = st.lists(
    tagged("step", steps)
    | tagged("span", spans)
    | tagged("collective", collectives)
    | tagged("p2p", p2ps)
    | tagged("memory", memories)
    | tagged("microbatch", microbatches),
    max_size=30,
)


def record(recorder: Recorder, name: str, values: dict, ends: list) -> None:
    """Give one event and its completions to the recorder."""
    if name in HEADS:
        head, names = HEADS[name]
        shared = {key: values[key] for key in names}
        values = {key: value for key, value in values.items() if key not in names}
        values["head"] = head(**shared)
    if name == "p2p":
        values["carried"] = carried(values.pop("microbatch"), values.pop("chunk"))
    if name in ("collective", "p2p"):
        event_id = getattr(recorder, f"issue_{name}")(**values)
        for times in ends:
            recorder.complete(event_id, *times)
    else:
        getattr(recorder, f"record_{name}")(**values)


def row_of(name: str, values: dict, ends: list) -> dict:
    """Return what the row of an event must hold."""
    row = {key: value for key, value in values.items() if key not in ("group", "dtype")}
    for column in ("tokens", "cpu_ns", *MEMORY_VALUES):
        if row.get(column) == -1:
            row[column] = None
    for (table, column), words in VOCABULARIES.items():
        if table == name:
            row[column] = list(words)[row[column]].value
    if name in ("collective", "p2p"):
        row["group_id"] = GROUPS[values["group"]]
        row["dtype"] = None if values["dtype"] == -1 else DTYPES[values["dtype"]]
        for place, column in enumerate(("end_ns", "wait_start_ns", "wait_end_ns")):
            known = [times[place] for times in ends if times[place] > 0]
            row[column] = known[-1] if known else None
    return row


@given(events=events, closed=st.booleans())
def test_records_become_the_same_rows(events, closed):
    """Fails when any value changes, or any event is lost or doubled, between recorder and table."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder), 0, settings=ASLEEP)
        try:
            for group in GROUPS:
                recorder.register_group(group, [0], "")
            for dtype in DTYPES:
                recorder.register_dtype(dtype)
            for name, values, ends, flush in events:
                record(recorder, name, values, ends)
                if flush:
                    recorder.flush()
            if closed:
                recorder.close()
            tables = read_run(Path(folder)).tables
        finally:
            recorder.close()
    for table in ("step", "span", "collective", "p2p", "memory", "microbatch"):
        wanted = [row_of(name, values, ends) for name, values, ends, _ in events if name == table]
        rows = tables[table].to_pylist()
        assert len(rows) == len(wanted)
        for row, want in zip(rows, wanted, strict=True):
            assert {key: row[key] for key in want} == want


@pytest.fixture(scope="module")
def ring_bytes(tmp_path_factory) -> bytes:
    """Return a ring that 400 steps have lapped."""
    folder = tmp_path_factory.mktemp("ring")
    recorder = Recorder(folder, 0, settings=ASLEEP)
    for step in range(400):
        recorder.record_step(step, 1, 2)
    recorder.close()
    return (folder / "rank00000" / "ring.bin").read_bytes()


@given(
    slot=st.integers(0, SLOTS - 1),
    byte=st.integers(0, SLOT_BYTES - 1),
    bit=st.integers(0, 7),
)
def test_a_flipped_bit_of_a_slot_costs_one_record(ring_bytes, slot, byte, bit):
    """Fails when a flipped number or type is not noticed, or any bit takes other records along."""
    content = bytearray(ring_bytes)
    content[HEADER_BYTES + slot * SLOT_BYTES + byte] ^= 1 << bit
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ring.bin")
        path.write_bytes(content)
        found = read_ring(path)
    tells = byte <= 8 or byte >= COMMIT_OFFSET
    assert len(found.damaged) + found.uncommitted == tells
    own = max(seq for seq in range(1, 401) if seq % SLOTS == slot)
    rows = found.records["step"]
    assert len(rows) == SLOTS - tells
    others = rows[rows["slot_seq"] != own]
    assert set(others["step"].tolist()) == set(range(400 - SLOTS, 400)) - {own - 1}


@settings(max_examples=200)
@given(
    payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=6),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_any_flipped_bit_of_a_segment_is_noticed(payloads, place, bit):
    """Fails when some bit of a segment is outside the checksums, or costs more than its block."""
    with tempfile.TemporaryDirectory() as folder:
        file = SegmentFile(Path(folder), rank=0, number=1)
        for payload in payloads:
            file.append(payload)
        file.close()
        content = bytearray(file.path.read_bytes())
        content[int(place * len(content))] ^= 1 << bit
        file.path.write_bytes(content)
        found = read_segment(file.path)
    assert found.problems
    assert len(found.payloads) >= len(payloads) - 1
    remaining = iter(payloads)
    assert all(payload in remaining for payload in found.payloads)


@settings(max_examples=200)
@given(content=st.binary(max_size=200), prefix=st.sampled_from([b"", b"MSBD", b"MSBH\x05\0\0\0"]))
def test_arbitrary_bytes_never_break_the_segment_reader(content, prefix):
    """Fails when some file makes the reader crash or loop."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "seg-000001.arrows")
        path.write_bytes(prefix + content)
        found = read_segment(path)
    assert found.payloads == []
    assert found.problems
