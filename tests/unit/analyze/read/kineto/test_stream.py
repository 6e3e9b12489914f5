"""Kineto files are read in pieces: no result depends on the pieces, and a cut loses only what it cut."""

import gzip
import json
import random
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.texts import texts

from meshscope.analyze.read import import_trace
from meshscope.analyze.read.files import InputFile
from meshscope.analyze.read.json_borders import elements, find_array
from meshscope.analyze.read.kineto import stream as kineto_stream
from meshscope.analyze.read.kineto.events import OtherPhase, to_int, to_integers
from meshscope.analyze.read.kineto.rank import Place, read_rank_file
from meshscope.analyze.read.kineto.stream import EventStream
from meshscope.analyze.tables.stored_tables import open_stored
from meshscope.analyze.wording.message import message
from meshscope.probe.schema.errors import TraceFormatError

COUNT = 60
HEADER = {
    "schemaVersion": 1,
    "comment": 'a "traceEvents": [{"ph": "X"}] in a text',
    "nested": {"traceEvents": [{"ph": "X", "cat": "kernel", "name": "no event", "ts": 1}]},
    "distributedInfo": {"rank": 3, "world_size": 4},
}
FOOTER = {
    "INFO": {"reverse": "]}", "list": [{"ph": "X"}, {"ph": "X"}]},
    "baseTimeNanoseconds": 7,
}
NAMES = (
    "plain",
    'brace } , { "ph" and "quote"',
    "bracket ]} and [{",
    "backslash \\",
    '\\" },{"ph": "X"',
    "ein Ümlaut 🚀",
)


def events(count=COUNT):
    """Return events of all roles whose texts look like borders."""
    found = [{"name": "process_name", "ph": "M", "args": {"name": "python"}}]
    for n in range(count):
        place = {"ph": "X", "name": NAMES[n % len(NAMES)], "pid": 0, "tid": 7}
        ts = float(f"{1000 + 10 * n}.{n:03d}")
        ids = {"External id": n + 1, "correlation": n + 1}
        borders = [{"ph": "X"}, {"ph": "X", "nested": [[], {}, "]"]}]
        found += [
            place | {"cat": "cpu_op", "ts": ts, "dur": 5, "args": ids | {"Input": borders}},
            place | {"cat": "cuda_runtime", "ts": ts + 1, "dur": 1, "args": ids},
            place | {"cat": "kernel", "ts": ts + 2, "dur": 2.125, "args": ids | {"stream": 9}},
            place | {"cat": "python_function", "ts": ts, "dur": 1, "args": {"Python id": n}},
            {"ph": "f", "id": n, "pid": 0, "tid": 7, "ts": ts, "cat": "ac2g", "name": "ac2g"},
        ]
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "ts": 1000, "dur": 300}
    return [*found, step]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    """Read files in pieces although they are small."""
    monkeypatch.setattr(kineto_stream, "_HEADER_BYTES", 1 << 10)


def text_of(layout, rows=None):
    """Return one file with keys around its events, written as ``layout`` says."""
    content = HEADER | {"traceEvents": events() if rows is None else rows} | FOOTER
    if layout == "compact":
        return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    if layout == "sorted":
        return json.dumps(content, sort_keys=True).encode()
    if layout == "tabs":
        return json.dumps(content, indent="\t").replace("\n", "\r\n").encode()
    return json.dumps(content, indent=2 if layout == "pretty" else None).encode()


def codes(notes):
    """Return the codes of what a reader notes."""
    return {note.code for note in notes}


def read(content, chunk_bytes=kineto_stream.CHUNK_BYTES):
    """Return what one file of these bytes gives, the large tables in memory too."""
    file = InputFile("rank3.json", None, content)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), "one")
        found = read_rank_file(file, place, default_rank=None, chunk_bytes=chunk_bytes)
        large = {name: open_stored(name, {3: path}) for name, path in found.stored.items()}
        tables = {name: table.whole() for name, table in large.items()}
    return replace(found, tables=found.tables | tables, stored={})


def stream(content, chunk_bytes=1024):
    """Return the events of a file by name and start, and what was lost."""
    found = EventStream(InputFile("rank3.json", None, content), chunk_bytes=chunk_bytes)
    rows = [
        ("", b"") if isinstance(e, OtherPhase) else (e.name, bytes(e.ts))
        for batch in found.batches()
        for e in batch
    ]
    return rows, found


@pytest.fixture(scope="module")
def whole():
    """Return the file as one piece gives it."""
    return read(text_of("plain"), 8 << 20)


def same(one, other):
    """Say whether two readings gave the same."""
    return (
        all(one.tables[name].equals(other.tables[name]) for name in one.tables)
        and one.notes == other.notes
        and (one.rank, one.world_size, one.has_base_time) == (3, 4, True)
    )


def test_the_whole_file_is_what_was_written(whole):
    """All other tests would compare one wrong reading with another."""
    kernel = whole.tables["kernel"].to_pydict()
    assert kernel["start_ns"] == [round((1002 + 10 * n) * 1000) + n + 7 for n in range(COUNT)]
    assert kernel["op_id"] == list(range(COUNT))
    assert set(kernel["step"]) == {4, -1}
    assert whole.tables["op"].num_rows == COUNT
    assert set(whole.tables["name"]["name"].to_pylist()) == {*NAMES, "ProfilerStep#4"}


@pytest.mark.parametrize("layout", ["plain", "compact", "pretty", "tabs", "sorted"])
@pytest.mark.parametrize("chunk_bytes", [1 << 10, 3_000, 1 << 16, 8 << 20])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["bare", "gzip"])
def test_no_result_depends_on_layout_compression_or_pieces(whole, layout, chunk_bytes, pack):
    """Events at the borders of pieces would be lost, doubled or torn."""
    assert same(read(pack(text_of(layout)), chunk_bytes), whole)


def test_a_stream_of_several_members_with_padding_is_one_file(whole):
    """Files written by parallel compressors, or copied from tape, would end after the first part."""
    text = text_of("plain")
    packed = gzip.compress(text[:5000]) + gzip.compress(text[5000:]) + bytes(1000)
    assert same(read(packed), whole)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["bare", "gzip"])
def test_a_cut_file_keeps_its_whole_events_and_invents_none(pack):
    """A crash of the job during export would lose the rank, or add events that never were."""
    text = pack(text_of("compact"))
    complete, _ = stream(pack(text_of("compact")))
    choose = random.Random(5)
    longest = 0
    refused = []
    for cut in sorted(choose.randrange(len(text)) for _ in range(100)):
        try:
            found, source = stream(text[:cut])
        except TraceFormatError as error:
            refused.append((longest, str(error)))
            continue
        assert found == complete[: len(found)]
        assert len(found) >= longest
        longest = len(found)
        assert len(source.losses) == 1
        assert "cut off" in str(source.losses[0])
    assert longest > len(complete) // 2
    assert all(re.search("no traceEvents|cut off", text) for _, text in refused)
    assert not any(before for before, _ in refused), "a longer file gave nothing"


def test_damage_in_the_middle_shows_how_much_it_hides():
    """A lost quote swaps texts and brackets up to the end: a mostly unread file would look whole."""
    text = b'{"traceEvents": [{"name": "a"}, {"name": "b}' + b', {"n": 1}' * 1000 + b"]}"
    found, source = stream(text)
    assert [name for name, _ in found] == ["a"]
    assert source.losses[0].code == "missing.cut_text"
    assert source.losses[0].values["whole_bytes"] < 50
    assert source.losses[0].values["size_bytes"] == len(text)


def test_a_cut_in_the_text_loses_no_event_before_it():
    """Whole events in the last piece would be dropped together with the torn one."""
    text = text_of("compact")
    begin = find_array(text, "traceEvents")
    ends = [begin + end for end in elements(text[begin:]).ends]
    for number in (1, 2, 50, len(ends) - 1):
        assert len(stream(text[: ends[number - 1]])[0]) == number
        assert len(stream(text[: ends[number] - 1])[0]) == number


def test_the_place_of_a_cut_is_reported(tmp_path):
    """The reader of a report would take the part for the whole."""
    text = text_of("compact")
    (tmp_path / "rank3.json").write_bytes(text[: len(text) // 2])
    (tmp_path / "rank2.json.gz").write_bytes(
        gzip.compress(text.replace(b'"rank":3', b'"rank":2'))[:-60]
    )
    trace = import_trace(tmp_path)
    assert trace.ranks == (2, 3)
    assert trace.tables["kernel"].num_rows > COUNT // 2
    place = f"of {len(text) // 2:,}"
    assert any("Rank 3" in limit and place in limit for limit in texts(trace.limits))
    assert any(
        "Rank 2" in limit and "gzip stream ends early" in limit for limit in texts(trace.limits)
    )


def test_keys_behind_a_cut_are_not_believed():
    """Half a time base would move a rank by decades."""
    text = text_of("compact")
    cut = text.index(b'"baseTimeNanoseconds":7') + len('"baseTimeNanoseconds":7')
    found = read(text[:cut])
    assert not found.has_base_time
    assert "missing.header_after_events" in codes(found.notes)


def test_a_missing_checksum_is_reported():
    """A file that was still being copied would pass for a verified one."""
    found = read(gzip.compress(text_of("plain"))[:-5])
    assert found.tables["kernel"].num_rows == COUNT
    assert "missing.checksum" in codes(found.notes)


def test_damage_inside_a_stream_is_refused():
    """Numbers out of a corrupted stream would be reported as measured."""
    packed = bytearray(gzip.compress(text_of("plain")))
    packed[-6] ^= 1
    with pytest.raises(TraceFormatError, match="damaged"):
        read(bytes(packed))


@pytest.mark.parametrize("rest", [b"more", b"\0\0more", b"\x1fmore"])
def test_what_follows_the_end_of_a_whole_stream_is_left_out(rest):
    """Fails when a file whose checksum is right is refused, though gunzip reads it, or nothing is said of the rest."""
    found = read(gzip.compress(text_of("plain")) + rest)
    assert found.tables["kernel"].num_rows == COUNT
    assert "missing.second_document" in codes(found.notes)


@pytest.mark.parametrize("chunk_bytes", [1 << 10, 1 << 20])
def test_only_events_that_need_it_are_repaired(chunk_bytes):
    """One infinite bandwidth would change texts of other events, depending on the pieces."""
    rows = [{"ph": "X", "cat": "kernel", "name": "see: NaN", "ts": n, "dur": 1} for n in range(99)]
    rows[40] |= {"name": "bad", "args": {"bandwidth": float("inf")}}
    names = [name for name, _ in stream(text_of("plain", rows), chunk_bytes)[0]]
    assert names == ["see: NaN"] * 40 + ["bad"] + ["see: NaN"] * 58


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"traceEvents": [{"ph": "X"}, null]}', "not an object"),
        (b'{"traceEvents": [{"ph": "X"} oops {"ph": "X"}]}', "cannot be read"),
        (b'{"traceEvents": [{"ph": "X"},, {"ph": "X"}]}', "cannot be read"),
        (b'{"traceEvents": [{"ph": "X"} {"ph": "X"}]}', "no comma"),
        (b'{"traceEvents": [, {"ph": "X"}]}', "cannot be read"),
        (b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b', "traceEvents": []}', "too deeply"),
        (b'{"traceEvents": {"ph": "X"}}', "no traceEvents"),
        (b'{"a": {"traceEvents": [{"ph": "X"}]}}', "no traceEvents"),
        (b'{"traceEvents": [{"ph": "X"}], "traceEvents": [{"ph": "X"}]}', "twice"),
    ],
)
def test_text_of_another_shape_is_refused(content, words):
    """Damage in the middle would be passed over without a word."""
    with pytest.raises(TraceFormatError) as caught:
        stream(content)
    assert words in str(caught.value)


GOOD = b'{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}'


@pytest.mark.parametrize(
    "odd",
    [
        b'{"ph": 1}',
        b'{"ph": "X", "cat": null}',
        b'{"ph": "X", "name": 5}',
        b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"ph": "X", "args": [1]}',
    ],
    ids=["phase", "category", "name", "depth", "arguments"],
)
def test_an_odd_event_is_left_out_and_counted(odd):
    """One event that a tool wrote differently would cost the whole rank."""
    events, reader = stream(b'{"traceEvents": [%b]}' % b", ".join([GOOD, odd, GOOD]))
    assert [name for name, _ in events] == ["k", "k"]
    assert reader.losses == [message("missing.unreadable_events", count=1)]


@pytest.mark.parametrize("chunk_bytes", [1 << 10, 1 << 20])
def test_events_that_name_no_phase_cost_no_others(chunk_bytes):
    """Files that leave the phase away in some events would lose the kernels around them."""
    rows = [json.loads(GOOD) | {"ts": n} for n in range(200)]
    rows[100:100] = [{"name": "note", "ts": 5}, {"ph": "i", "name": 7, "ts": 6}]
    found, reader = stream(text_of("plain", rows), chunk_bytes)
    assert found.count(("note", b"5")) == 1
    assert found.count(("", b"")) == 1
    assert [ts for name, ts in found if name == "k"] == [b"%d" % n for n in range(200)]
    assert reader.losses == []


def test_a_file_of_odd_events_is_refused():
    """A file of another tool would be read as an empty rank."""
    with pytest.raises(TraceFormatError, match="Expected `str`"):
        stream(b'{"traceEvents": [%b]}' % b", ".join([b'{"ph": 1}'] * 200))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("baseTimeNanoseconds", b'"x"'),
        ("baseTimeNanoseconds", b"99999999999999999999"),
        ("deviceProperties", b"{}"),
        ("distributedInfo", b"[]"),
        ("distributedInfo.pg_config", b'{"rank": 3, "pg_config": {}}'),
    ],
)
def test_an_odd_key_of_the_header_is_taken_as_absent(key, value):
    """One key that a version writes differently would cost the whole rank."""
    name = key.partition(".")[0].encode()
    events, reader = stream(b'{"traceEvents": [%b], "%b": %b}' % (GOOD, name, value))
    assert len(events) == 1
    assert message("missing.header_key", key=key) in reader.losses
    if key.endswith("pg_config"):
        assert reader.header.distributed_info.rank == 3


def test_half_a_character_is_replaced():
    """A name that was cut in the middle of a character would cost the whole rank."""
    (event,), _ = stream(b'{"traceEvents": [{"ph": "X", "name": "\\ud800gemm \\ud83d\\ude00"}]}')
    assert event[0] == "\ufffdgemm \U0001f600"


@pytest.mark.parametrize(
    "around",
    [
        (b'{"traceEvents": [{"name": "', b'"}]}'),
        (b'{"x": "', b'", "traceEvents": []}'),
        (b'{"traceEvents": [], "x": "', b'"}'),
    ],
    ids=["event", "header", "footer"],
)
def test_a_compressed_flood_is_refused_early(monkeypatch, around):
    """A small file that unpacks to gigabytes would take all memory."""
    monkeypatch.setattr(kineto_stream, "_MOST_BYTES", 1 << 20)
    flood = gzip.compress(around[0] + bytes(b"a" * (9 << 20)) + around[1], 1)
    found = EventStream(InputFile("rank3.json", None, flood), chunk_bytes=1 << 10)
    with pytest.raises(TraceFormatError, match="larger than 1 MiB"):
        list(found.batches())


def test_space_between_events_takes_no_memory(monkeypatch):
    """A pretty-printer gone wild would be refused as one large event."""
    monkeypatch.setattr(kineto_stream, "_MOST_BYTES", 1 << 16)
    space = b" " * (1 << 20)
    text = b'{"traceEvents": [{"name": "a"},' + space + b'{"name": "b"}' + space + b"]}"
    assert [name for name, _ in stream(text)[0]] == ["a", "b"]


@settings(max_examples=60)
@given(
    st.lists(
        st.none()
        | st.integers(-(2**65), 2**65)
        | st.sampled_from(["7", "0x10", "x", 1.5, True, ""])
    ),
    st.sampled_from([32, 64]),
)
def test_columns_of_integers_are_those_of_their_values(values, bits):
    """An odd argument would change those of other events in the same batch."""
    assert to_integers(values, bits=bits).tolist() == [to_int(v, bits=bits) for v in values]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.text(st.sampled_from('"\\{}[],: aé\n'), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60)
@given(
    st.lists(st.dictionaries(st.text(st.sampled_from('"\\{}[]a'), max_size=3), VALUES, max_size=3)),
    st.booleans(),
)
def test_borders_are_those_of_a_json_parser(rows, is_ascii):
    """A bracket or an escaped quote in a text would be taken for the end of an event."""
    texts = [json.dumps(row, ensure_ascii=is_ascii) for row in rows]
    text = ", ".join(texts).encode() + b'], "rest": [{}]}'
    found = elements(text)
    ends, place = [], 0
    for row in texts:
        place += len(row.encode())
        ends.append(place)
        place += 2
    assert found.ends == ends
    assert found.array_end == text.index(b'], "rest": [{}]}', ends[-1] if ends else 0)


@pytest.mark.parametrize(
    "bad",
    [
        r'"name": "C:\py\Users\x"', '"name": "a\x01b\tc"', '"name": "a "quoted" word"',
        '"name": "one quote too many""', '"name": oops', '"name": "k"} {"ph": "X"', '"ts": 1-2',
    ],
)  # fmt: skip
@pytest.mark.parametrize("chunk_bytes", [64, 1 << 20])
def test_one_bad_character_refuses_no_file(tmp_path, bad, chunk_bytes):
    """Fails when a trace of an hour is refused, or ends, for one name that is quoted badly."""
    events = [
        f'{{"ph": "X", "cat": "kernel", "name": "k", "ts": {at}, "dur": 1}}' for at in range(60)
    ]
    events[30] = f'{{"ph": "X", "cat": "kernel", "ts": 30, "dur": 1, {bad}}}'
    path = tmp_path / "rank0.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": [' + ", ".join(events) + "]}")
    reader = EventStream(InputFile(str(path), path), chunk_bytes=chunk_bytes)
    count = sum(len(batch) for batch in reader.batches())
    assert 58 <= count <= 61
    assert not reader.is_cut
    assert reader.header.trace_events == []
    assert not {"missing.cut_text", "missing.cut_gzip"} & codes(reader.losses)


def test_a_comma_behind_the_last_event_is_no_damage(tmp_path):
    """Fails when a trace that a script has put together is said to have lost events."""
    path = tmp_path / "rank0.json"
    path.write_text('{"traceEvents": [{"ph": "X", "ts": 1}, {"ph": "X", "ts": 2},\n], "a": 1}')
    reader = EventStream(InputFile(str(path), path))
    assert sum(len(batch) for batch in reader.batches()) == 2
    assert reader.losses == []


def test_zeros_behind_a_document_are_no_second_one(tmp_path):
    """Fails when a file that was allotted in whole blocks is said to be of two processes."""
    path = tmp_path / "trace.json"
    path.write_bytes(
        b'{"traceEvents": [{"ph": "X", "ts": 1}], "distributedInfo": {"rank": 5}}' + bytes(9)
    )
    reader = EventStream(InputFile(str(path), path))
    assert sum(len(batch) for batch in reader.batches()) == 1
    assert "missing.second_document" not in codes(reader.losses)


@pytest.mark.parametrize(
    "second", ['{"schemaVersion": 1, "traceEvents": [{"ph": "X"}]}', 'd": 3}]}']
)
def test_a_file_that_two_ranks_wrote_is_not_cut_off(tmp_path, second):
    """Fails when two ranks with one file name are told that their disk was full."""
    first = '{"traceEvents": [{"ph": "X", "ts": 1}], "distributedInfo": {"rank": 5}}'
    path = tmp_path / "trace.json"
    path.write_text(first + second)
    reader = EventStream(InputFile(str(path), path))
    assert sum(len(batch) for batch in reader.batches()) == 1
    assert reader.header.distributed_info.rank == 5
    assert "missing.second_document" in codes(reader.losses)
    assert not {"missing.cut_text", "missing.cut_gzip"} & codes(reader.losses)
