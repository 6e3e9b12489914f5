"""The sizes of pairs are read as they were noted, and never where they are damaged."""

import pytest

from meshscope.probe.recording.pair_notes import PairNotes
from meshscope.probe.schema.pair_sizes import (
    ENTRIES,
    HEAD_NUMBERS,
    MOST_MEMBERS,
    entry_numbers,
    pair_file_name,
    read_pair_sizes,
)


@pytest.fixture
def noted(tmp_path):
    """Return a directory in which group 2 has more all-to-alls than are kept."""
    notes = PairNotes(tmp_path)
    for seq in range(ENTRIES + 3):
        notes.note(2, seq, [seq, 1], [2, 10 * seq])
    return tmp_path


def test_the_last_ones_of_a_group_are_there(noted):
    """Fails when the all-to-all in which a job stands is overwritten, or read with another's sizes."""
    found = sorted(read_pair_sizes(noted), key=lambda one: one.seq)
    assert [one.seq for one in found] == list(range(3, ENTRIES + 3))
    assert found[-1] == (2, 10, (10, 1), (2, 100))


@pytest.mark.parametrize("number", [0, 2, 3, HEAD_NUMBERS, HEAD_NUMBERS + 1])
@pytest.mark.parametrize("value", [-1, 1 << 40])
def test_a_damaged_number_makes_no_pair_of_a_rank(noted, number, value):
    """Fails when a flipped number, or a half-written entry, ends in a traceback or names a rank."""
    path = noted / pair_file_name(2)
    raw = bytearray(path.read_bytes())
    raw[8 * number : 8 * number + 8] = value.to_bytes(8, "little", signed=True)
    path.write_bytes(raw)
    found = list(read_pair_sizes(noted))
    if number < HEAD_NUMBERS:
        assert found == []
    else:
        assert len(found) >= ENTRIES - 1
        assert all(min(one.sent) >= 0 for one in found)


@pytest.mark.parametrize("length", [0, 7, 40, 8 * (HEAD_NUMBERS + entry_numbers(2)) - 1])
def test_a_file_that_is_cut_off_gives_what_is_whole(noted, length):
    """Fails when a full disk leaves a run that cannot be read."""
    path = noted / pair_file_name(2)
    path.write_bytes(path.read_bytes()[:length])
    assert list(read_pair_sizes(noted)) == []


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path):
    """Fails when the probe writes through a link that another user planted."""
    target = tmp_path / "theirs"
    target.write_bytes(b"kept")
    own = tmp_path / "rank00000"
    own.mkdir()
    (own / pair_file_name(0)).symlink_to(target)
    PairNotes(own).note(0, 0, [1, 2], [3, 4])
    assert target.read_bytes() == b"kept"
    assert list(read_pair_sizes(own)) == []


def test_groups_without_room_are_left_out(tmp_path):
    """Fails when a group of thousands of ranks costs megabytes, or one of none a traceback."""
    notes = PairNotes(tmp_path)
    notes.note(0, 0, [], [])
    notes.note(1, 0, [1] * (MOST_MEMBERS + 1), [1] * (MOST_MEMBERS + 1))
    notes.note(-1, 0, [1], [1])
    assert list(tmp_path.iterdir()) == []
