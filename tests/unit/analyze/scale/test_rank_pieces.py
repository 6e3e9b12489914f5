"""A recorded rank that is read some steps at a time: the same rows as of the whole rank, whatever it recorded."""

import math

import pyarrow as pa
import pytest
from tests.recorded_steps import FAR, KINDS, STEPS, record

from meshscope.analyze.load.load import load_trace
from meshscope.analyze.scale import rank_pieces
from meshscope.analyze.scale.executors import InThisProcess
from meshscope.analyze.scale.outline import outline_of
from meshscope.analyze.scale.rank_pieces import STEP_BYTES, RankPieces
from meshscope.analyze.scale.store import write_summaries
from meshscope.analyze.scale.summary import summarise
from meshscope.analyze.scale.worker_memory import (
    SUMMARY_ROW_BYTES,
    UNPACKED_FACTOR,
    WORKER_BYTES,
    looking_bytes,
)
from meshscope.analyze.wording.message import message
from meshscope.probe.reader import rank_records
from meshscope.probe.reader.part_sizes import unpacked_bytes
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.manifest import part_directories
from meshscope.probe.schema.rundir import create_run


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
    beside = looking_bytes(unpacked) + len(pieces._sizes.number) * STEP_BYTES
    return pieces._sizes.largest_bytes + beside


def rows(pieces):
    """Return the rows of all pieces."""
    return pa.concat_tables([pieces.rows(*one) for one in pieces.ranges]).combine_chunks()


def whole(run):
    """Return the rows of the whole rank."""
    return summarise(load_trace(run), [0])


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
    assert len(RankPieces(run, 0, room + 1, limit).ranges) > 10


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
