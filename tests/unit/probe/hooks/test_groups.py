"""Process groups keep their name, numbering and members apart."""

import gc
from types import SimpleNamespace

import pytest

from meshscope.probe.hooks.base import Capture
from meshscope.probe.hooks.groups import GroupTable, _group_id, axis_named
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.terms import Axis, Direction
from meshscope.probe.settings.config import ProbeConfig


class ProcessGroup:
    """A group that nobody registered with torch.distributed, as C++ makes them."""

    group_desc = "undefined"

    def __init__(self, name, size, operations=None):
        self.group_name = name
        self._size = size
        self._operations = operations

    def size(self):
        """Return the number of members."""
        return self._size

    def _get_sequence_number_for_group(self):
        if self._operations is None:
            raise RuntimeError("does not yet support sequence numbers")
        return self._operations


@pytest.fixture
def table(make_recorder, monkeypatch):
    """Return a table of groups whose script objects are the groups themselves."""
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    capture = Capture(make_recorder(), ProbeConfig(), lambda: None)
    return GroupTable(capture, unbox=lambda group: group)


def test_an_object_is_looked_up_once(table):
    """Fails when every call pays for the discovery of its group."""
    group = ProcessGroup("0", 4)
    assert table.of(group) is table.of(group)
    assert table.of(group).ranks == (0, 1, 2, 3)


def test_numbering_goes_on_when_a_group_is_made_again(table):
    """Fails when (group, seq) is not unique because a group of the same name comes back."""
    group = ProcessGroup("0", 4)
    table.of(group).seq = 9
    del group
    gc.collect()
    assert table.by_object == {}
    assert table.of(ProcessGroup("0", 4)).seq == 9


def test_late_ranks_start_at_the_count_of_the_backend(table):
    """Fails when ranks that attach at different moments number the same collective differently."""
    assert table.of(ProcessGroup("late", 4, operations=12)).seq == 12
    assert table.of(ProcessGroup("new", 4)).seq == 0


def test_ranks_that_resume_together_agree_whatever_their_backends_counted(table):
    """Fails when messages, which gloo counts with collectives, shift the numbers of the first stage."""
    capture, numbers = table._capture, []
    for operations, before in ((40, 7), (56, 21)):
        group, earlier = ProcessGroup("0", 4, operations), GroupTable(capture, lambda group: group)
        earlier.of(group).seq = before
        earlier.of(group).channel(Direction.SEND, 1).seq = before
        resumed = GroupTable(capture, lambda group: group, earlier, first_seq=1 << 20).of(group)
        ends = [(Direction.SEND, 1), (Direction.RECV, 1)]
        numbers.append([resumed.seq, *(resumed.channel(*end).seq for end in ends)])
    assert numbers == [[1 << 20] * 3] * 2


def test_members_that_nobody_knows_are_not_guessed(table, run_path):
    """Fails when a part of the world is taken for some other part."""
    group = table.of(ProcessGroup("part", 2))
    assert group.ranks == ()
    assert group.global_rank(1) == -1
    table._capture.recorder.close()
    assert read_run(run_path).rank_manifests[0]["counters"] == {"group_members_unseen": 1}


def test_messages_count_by_peer_and_direction(table):
    """Fails when a send and a receive, or two peers, share one numbering."""
    group = table.of(ProcessGroup("0", 4))
    group.channel(Direction.SEND, 1).seq += 1
    ends = [(Direction.SEND, 1), (Direction.RECV, 1), (Direction.SEND, 2)]
    assert [group.channel(*end).seq for end in ends] == [1, 0, 0]


def test_sibling_groups_have_different_ids():
    """Fails when two groups that share a name are joined as one."""
    siblings = [("1", (0, 1)), ("1", (2, 3)), ("1", tuple(range(64))), ("1", tuple(range(64, 128)))]
    shuffled = ("1", (0, *range(62, 0, -1), 63))
    assert len({_group_id(*group) for group in [*siblings, shuffled]}) == 5
    assert _group_id("1", (0, 1)) == "1[0,1]"


@pytest.mark.parametrize(
    ("description", "axis"),
    [("mesh_tp", Axis.TP), ("PP", Axis.PP), ("mesh_dp_shard", Axis.DP), ("undefined", None)],
)
def test_the_axis_comes_from_the_name_or_not_at_all(description, axis):
    """Fails when a group's name is not used, or an axis is made up."""
    assert axis_named(description.removeprefix("mesh_")) is axis


def test_a_group_that_was_never_used_counts_nothing(table, monkeypatch):
    """Fails when a rank that others wait for in the first operation of a group looks as if it was not in it."""
    used, unused, other = (
        ProcessGroup(name, 4, count) for name, count in (("0", 7), ("1", 0), ("2", None))
    )
    table.of(used)
    world = SimpleNamespace(pg_map=dict.fromkeys((used, unused, other)), pg_group_ranks={})
    monkeypatch.setattr("torch.distributed.distributed_c10d._world", world)
    assert table.operations_so_far() == {"0[0,1,2,3]": 7, "1[0,1,2,3]": 0}
