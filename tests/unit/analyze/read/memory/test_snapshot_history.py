"""The actions of an allocator as columns, against the same told one action at a time."""

from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.read.memory.moments import CATEGORIES, UNKNOWN, categories
from meshscope.analyze.read.memory.snapshot import Block, History

FORWARD = [{"name": "forward", "filename": "model.py", "line": 1}]
STEP = [{"name": "step", "filename": "/torch/optim/adam.py", "line": 2}]
SILENT = [{"name": "main", "filename": "train.py", "line": 3}, None, "odd"]
STACKS = [[], FORWARD, STEP, SILENT, SILENT + STEP]
KINDS = ["alloc", "free_completed", "free_requested", "segment_alloc", "segment_unmap", "oom", 7]

ACTIONS = st.lists(
    st.fixed_dictionaries(
        {
            "action": st.sampled_from(KINDS),
            "addr": st.sampled_from([1, 2, 3, None, "0x4"]),
            "size": st.integers(0, 100) | st.sampled_from([-5, None, "12", 2**60]),
            "time_us": st.integers(0, 1000) | st.none(),
            "frames": st.sampled_from(STACKS),
        }
    )
    | st.none(),
    max_size=30,
)
BLOCKS = st.lists(
    st.builds(
        Block,
        address=st.sampled_from([1, 2, 3, 9]),
        requested=st.integers(0, 100),
        held=st.just(512),
        category=st.integers(0, UNKNOWN),
    ),
    max_size=5,
)


def one_by_one(trace, blocks):
    """Return what is in use by category at the end, and category of each change."""
    live, reported = {}, []
    for action in trace:
        if action is None:
            continue
        address = {None: -1, "0x4": 4}.get(action["addr"], action["addr"])
        if action["action"] == "alloc":
            live[address] = int(categories([action["frames"]])[0])
            reported.append(live[address])
        elif action["action"] == "free_completed":
            reported.append(live.pop(address, UNKNOWN))
        elif action["action"] in ("segment_alloc", "segment_unmap"):
            reported.append(CATEGORIES.index("other"))
    at_end = [0] * (UNKNOWN + 1)
    for block in blocks:
        at_end[live.get(block.address, block.category)] += block.requested
    return at_end, reported


@given(ACTIONS, BLOCKS)
def test_columns_tell_what_single_actions_tell(trace, blocks):
    """Memory would be booked to another purpose, or to one freed long ago."""
    history = History.of(trace, blocks)
    at_end, reported = one_by_one(trace, blocks)
    assert history.at_end.tolist() == at_end
    assert history.category.tolist() == reported
    assert len(history.failures) == sum(one is not None and one["action"] == "oom" for one in trace)


@given(ACTIONS, BLOCKS)
def test_the_end_is_what_is_in_use(trace, blocks):
    """A history of which the beginning is lost would not lead to the known end."""
    history = History.of(trace, blocks)
    last = history.moments(1000)[-1]
    assert last.allocated_bytes == sum(block.requested for block in blocks)
    assert last.reserved_bytes == 1000


def test_the_innermost_frame_that_tells_wins():
    """An optimizer's states would be booked as activations, or as unknown."""
    names = [*CATEGORIES, "unknown"]
    reported = [names[place] for place in categories([*STACKS, STEP + FORWARD]).tolist()]
    assert reported == ["unknown", "activations", "optimizer", "other", "optimizer", "optimizer"]
