"""A recorded rank that is read some steps at a time: the same rows as of the whole rank, whatever it recorded."""

import math

import pyarrow as pa
import pytest

from meshscope.analyze.load.load import load_trace
from meshscope.analyze.scale import rank_pieces
from meshscope.analyze.scale.executors import InThisProcess
from meshscope.analyze.scale.outline import outline_of
from meshscope.analyze.scale.rank_pieces import INDEX_SHARE, PIECES_BYTES, STEP_BYTES, RankPieces
from meshscope.analyze.scale.store import write_summaries
from meshscope.analyze.scale.summary import summarise
from meshscope.analyze.scale.worker_memory import (
    SUMMARY_ROW_BYTES,
    UNPACKED_FACTOR,
    WORKER_BYTES,
)
from meshscope.analyze.wording.message import message
from meshscope.probe.reader import rank_records
from meshscope.probe.reader.part_sizes import unpacked_bytes
from meshscope.probe.recording.record_heads import collective_head, p2p_head, span_head
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.recording.step_sums import FullRecords
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.manifest import part_directories
from meshscope.probe.schema.records import LEVEL_CODES, SPAN_CODES
from meshscope.probe.schema.rundir import create_run
from meshscope.probe.schema.terms import CaptureLevel, SpanKind

STEPS = 42
STEP_NS = 1000
ALL = FullRecords(first_steps=0, every_steps=1)
FAR = 8
"""Steps after which one operation is waited for, and through which one span goes on."""
FORWARD, BACKWARD, SAVE = (
    SPAN_CODES[kind.value] for kind in (SpanKind.FORWARD, SpanKind.BACKWARD, SpanKind.CHECKPOINT)
)
LEVEL = LEVEL_CODES[CaptureLevel.COLLECTIVES]


def record_passes(recorder, place, at):
    """Record two passes of a step, what the device took for them, and their work."""
    for microbatch in range(2):
        kind = BACKWARD if microbatch else FORWARD
        begin = at + 5 + 400 * microbatch
        span = recorder.record_span(span_head(kind, 0, 0), begin, 300 + place, 5, microbatch)
        recorder.record_device_time(span, begin + 7, 290 + place)
        recorder.record_microbatch(microbatch, 100 + place, 1000 + place)


def record_communication(recorder, group, place, at, *, sends):
    """Record a message, if any, and a collective without its end; return the event of that."""
    event = recorder.issue_collective(collective_head(group, 0, -1), place, 64, at + 850)
    if sends:
        sent = recorder.issue_p2p(p2p_head(group, place % 2, 1, -1), place, 64, at + 900)
        recorder.complete(sent, at + 950, at + 910, at + 950)
    return event


def record(
    run,
    *,
    steps=STEPS,
    full=ALL,
    origin=0,
    every=1,
    flush=3,
    numbers=None,
    close=True,
    name="data",
    slots=64,
    sends_until=STEPS,
):
    """Record a part of rank 0: passes, communication that is waited for later and much later, work of microbatches.

    The collective of a step is waited for in the next one, that of step 20 ``FAR`` steps later, and a save of
    step 18 ends as much later. Only each so many steps communicate. Blocks do not end where steps do.
    """
    settings = StorageSettings(
        slot_count=slots, wake_s=3600.0, free_floor_frac=0.0, full_records=full
    )
    recorder = Recorder(run, 0, settings=settings)
    group = recorder.register_group("world", [0, 1], name)
    recorder.step, before, late = 0, None, None
    for place in range(steps):
        number, at = (numbers or range(steps))[place], origin + place * STEP_NS
        recorder.step = number
        record_passes(recorder, place, at)
        if place % flush == 0:
            recorder.flush()
        if place == 18 + FAR:
            recorder.step = number - FAR
            recorder.record_span(span_head(SAVE), at - FAR * STEP_NS + 10, FAR * STEP_NS + 20, 5)
            recorder.step = number
        if before is not None:
            recorder.complete(before, at + 320, at + 310, at + 320)
        before = None
        if (place + 1) % every == 0:
            sends = place < sends_until
            before = record_communication(recorder, group, place, at, sends=sends)
        if place == 20:
            late, before = before, None
        if place == 20 + FAR and late is not None:
            recorder.complete(late, at + 700, at + 330, at + 700)
        recorder.record_step(number, at, STEP_NS, 10, LEVEL)
    recorder.step += 1
    recorder.record_span(span_head(FORWARD, 0, 0), origin + steps * STEP_NS + 5, 300, 5, 0)
    if close:
        recorder.close()
    else:
        recorder.flush()
        for microbatch in range(2):
            at = origin + steps * STEP_NS + 400 * (microbatch + 1)
            recorder.record_span(span_head(BACKWARD, 0, 0), at, 300, 5, microbatch)
        recorder.record_step(steps, origin + steps * STEP_NS, 2 * STEP_NS, 10, LEVEL)
    return recorder


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a new run; pieces may be as small as they can be."""
    monkeypatch.setattr(rank_pieces, "LEAST_PIECE_BYTES", 0)
    return create_run(tmp_path, "run", {"world_size": 2})


def parts(run):
    """Return the directories of rank 0."""
    return list(part_directories(run)[0].values())


def small(run):
    """Return the pieces of a rank where there is room for a few of its steps."""
    whole = RankPieces(run, 0, math.inf, math.inf)
    room = needed(whole) + whole._sizes.largest_bytes
    return RankPieces(run, 0, room, 1e9)


def needed(pieces):
    """Return the least room that a rank needs."""
    unpacked = sum(unpacked_bytes(part.directory) for part in pieces._parts)
    beside = PIECES_BYTES + unpacked * INDEX_SHARE + len(pieces._sizes.number) * STEP_BYTES
    return pieces._sizes.largest_bytes + beside


def rows(pieces):
    """Return the rows of all pieces."""
    return pa.concat_tables([pieces.rows(*one) for one in pieces.ranges]).combine_chunks()


def whole(run):
    """Return the rows of the whole rank."""
    return summarise(load_trace(run), [0])


def recorded_restart(run):
    """Record a job that was killed and began anew."""
    record(run, steps=25, close=False)
    record(run, origin=1_000_000)


KINDS = {
    "plain": record,
    "large blocks": lambda run: record(run, flush=20),
    "recording": lambda run: record(run, close=False),
    "thinned": lambda run: record(run, full=FullRecords(first_steps=5, every_steps=7)),
    "seldom synchronised": lambda run: record(run, every=5),
    "restarted": recorded_restart,
    "numbers left out": lambda run: record(run, numbers=[*range(15), *range(20, 11 + STEPS)]),
    "in the ring alone": lambda run: record(run, steps=14, slots=1024, flush=99, close=False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_give_the_rows_of_the_whole_rank(run, kind):
    """Fails when a limit of memory changes a row: by what reaches into a step from afar, by which steps are analysed."""
    KINDS[kind](run)
    pieces, expected = small(run), whole(run)
    assert len(pieces.ranges) >= 3
    assert expected.num_rows
    assert rows(pieces).equals(expected)


def test_all_pieces_agree_on_the_axis_of_a_group(run):
    """Fails when a piece infers it by itself: waiting would move from one axis to the other in the middle of a run."""
    record(run, sends_until=STEPS // 2, name="default")
    found = rows(small(run)).to_pandas()
    used = [name for name in found if name.startswith("exposed_") and (found[name] > 0).any()]
    assert len(used) == 1


def test_what_reaches_far_counts_in_each_step(run):
    """Fails when the test above has nothing that lies apart from the step that it is charged to."""
    record(run)
    found = whole(run).to_pandas().set_index("step")
    exposed = found["exposed_dp_s"]
    assert exposed[20 + FAR] > 1.5 * exposed[20 + FAR - 1]
    assert (found["checkpoint_s"] > 0).sum() > FAR / 2


def test_a_piece_unpacks_its_own_blocks(run, monkeypatch):
    """Fails when each piece unpacks all that the rank recorded: the cost would rise with the square of it."""
    record(run)
    pieces, decoded, decode = small(run), [], rank_records.decode_records
    monkeypatch.setattr(
        rank_records, "decode_records", lambda one: decoded.append(one) or decode(one)
    )
    load_trace(run)
    of_all = len(decoded)
    decoded.clear()
    rows(pieces)
    assert of_all >= STEPS // 3
    # A piece of three steps and their neighbours lies in four blocks at most, and one for what is far.
    assert len(decoded) / len(pieces.ranges) <= 5


def test_a_step_without_room_is_refused_with_what_is_needed(run):
    """The command would take more than it was given without a word, or the system would kill it."""
    record(run)
    pieces = RankPieces(run, 0, math.inf, math.inf)
    room, limit = needed(pieces), 300e6
    with pytest.raises(ConfigError) as refused:
        RankPieces(run, 0, room - 1, limit)
    size = int(pieces._sizes.largest_bytes / UNPACKED_FACTOR)
    assert 0 < size < unpacked_bytes(parts(run)[0]) / 10
    assert refused.value.what == str(message("refused.steps_need_memory", size_bytes=size))
    assert refused.value.remedy == str(message("advice.memory_limit", least=310))
    assert len(RankPieces(run, 0, room, limit).ranges) > 10


def test_steps_out_of_order_are_no_pieces(run):
    """Fails when a range of steps is read by itself though a counter that was set back mixes it with others."""
    record(run, numbers=[*range(15), *range(STEPS)])
    size = unpacked_bytes(parts(run)[0])
    with pytest.raises(ConfigError) as refused:
        RankPieces(run, 0, size * UNPACKED_FACTOR, 1e9)
    words = message("refused.rank_needs_memory_unpacked", size_bytes=size)
    assert refused.value.what == str(words)


def test_a_rank_without_steps_has_no_pieces(run):
    """Fails when a rank that died before its first step ended ends the summary of all others."""
    record(run, steps=0)
    assert not RankPieces(run, 0, 1e6, 1e9).ranges
    assert not whole(run).num_rows


def test_a_limit_below_a_rank_gives_the_same_summary_under_another_name(run, tmp_path, monkeypatch):
    """Fails when the command refuses a rank for its length, changes a row, or makes a finished file again."""
    record(run)
    pieces = RankPieces(run, 0, math.inf, math.inf)
    room = needed(pieces) + pieces._sizes.largest_bytes
    # As if the records took far more: those of a small run always have room.
    monkeypatch.setattr("meshscope.analyze.scale.segments.UNPACKED_FACTOR", 1e6)
    monkeypatch.setattr("meshscope.analyze.scale.outline.UNPACKED_FACTOR", 1e6)
    limit = WORKER_BYTES + (STEPS + 1) * SUMMARY_ROW_BYTES + room
    folders = [tmp_path / "whole", tmp_path / "limited", tmp_path / "limited"]
    made = [
        write_summaries(run, InThisProcess(), lambda _: None, folder, limit_bytes=own)
        for folder, own in zip(folders, (None, limit, limit), strict=True)
    ]
    (free,), (limited,), (again,) = (one.segments for one in made)
    assert (limited.is_new, again.is_new) == (True, False)
    assert limited.name == again.name != free.name
    content = [
        (folder / one.name).read_bytes()
        for folder, one in zip(folders, (free, limited), strict=False)
    ]
    assert content[0] == content[1]
    assert made[0].outline == made[1].outline


def test_the_outline_is_read_within_the_limit(run, monkeypatch):
    """Fails when the command reads a whole rank for mesh and schedule, whatever the limit is."""
    record(run)
    monkeypatch.setattr("meshscope.analyze.scale.outline.UNPACKED_FACTOR", 1e6)
    read, load = [], rank_pieces.load_trace
    monkeypatch.setattr(
        rank_pieces,
        "load_trace",
        lambda run, wanted: read.append(load(run, wanted=wanted)) or read[-1],
    )
    limited = outline_of(run, [0], 300e6)
    assert len(read) == 2
    assert limited == outline_of(run, [0])
