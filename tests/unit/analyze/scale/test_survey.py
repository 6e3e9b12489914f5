"""One look at each row keeps what all ranks finished, in their order."""

import numpy as np
import pyarrow as pa
import pytest

from meshscope.analyze.scale.rows import Rows
from meshscope.analyze.scale.summary import OWN_WORK
from meshscope.analyze.scale.survey import ALONG_DP, Looking
from meshscope.probe.schema.errors import TraceFormatError


def rows(*cells):
    """Return rows of (rank, step): each works 10 x rank + step seconds."""
    rank, step = (np.array(axis) for axis in zip(*cells, strict=True))
    zero = np.zeros(len(rank))
    columns = {"rank": rank, "step": step, "wall_s": 1.0 + rank, **dict.fromkeys(OWN_WORK, zero)}
    columns |= {OWN_WORK[0]: 10.0 * rank + step, ALONG_DP: 1.0 * step}
    return pa.table(columns)


def survey(*parts, every=1, most_ranks=0):
    """Return the survey of some parts."""
    looking = Looking(every, most_ranks)
    for part in parts:
        looking.add(Rows(part))
    return looking.survey("run")


def test_steps_that_some_rank_lacks_are_left_out():
    """Fails when a rank that ended early shifts the steps of the others."""
    first = rows((0, 3), (0, 4), (0, 5), (1, 3), (1, 5))
    second = rows((2, 2), (2, 3), (2, 4), (2, 5), (3, 2), (3, 3), (3, 4), (3, 5))
    found = survey(first, second)
    assert found.ranks.tolist() == [0, 1, 2, 3]
    assert found.steps.tolist() == [3, 5]
    assert found.own_s.tolist() == [[3, 5], [13, 15], [23, 25], [33, 35]]
    assert found.waits_s.tolist() == [[3, 5]] * 4
    assert found.longest_s.tolist() == [4.0, 4.0]
    assert found.mean_s.tolist() == [2.5, 2.5]


def test_ranks_come_in_their_order():
    """Fails when a file of later ranks comes first and ranks get the work of others."""
    found = survey(rows((2, 0), (3, 0)), rows((0, 0), (1, 0)))
    assert found.ranks.tolist() == [0, 1, 2, 3]
    assert found.own_s[:, 0].tolist() == [0, 10, 20, 30]


@pytest.mark.parametrize("most_ranks", [1, 3, 4, 9])
@pytest.mark.parametrize("last", [(3, 0), (3, 1)])
def test_room_for_all_ranks_changes_nothing(most_ranks, last):
    """Fails when ranks that are kept in place get the work of others, as soon as one has other steps."""
    parts = rows((2, 0), (2, 1)), rows((0, 0), (0, 1), (1, 0), (1, 1)), rows((3, 0), last)
    parts = parts if last == (3, 1) else (*parts[:2], rows((3, 0)))
    found, usual = survey(*parts, most_ranks=most_ranks), survey(*parts)
    assert found.ranks.tolist() == usual.ranks.tolist() == [0, 1, 2, 3]
    assert found.steps.tolist() == usual.steps.tolist()
    assert (found.own_s == usual.own_s).all()
    assert (found.waits_s == usual.waits_s).all()
    assert found.own_s[:, 0].tolist() == [0, 10, 20, 30]


def test_some_steps_are_spread_evenly():
    """Fails when a memory limit keeps other steps than it says."""
    part = rows(*((0, step) for step in range(13)))
    assert survey(part, every=2).steps.tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert survey(part, every=2).thinned(3).steps.tolist() == [0, 6, 12]
    assert survey(part, every=2).thinned(3).every == 6
    assert survey(part).thinned(1).every == 1


@pytest.mark.parametrize("steps", [range(1, 101, 10), range(7, 27, 2), [1]])
def test_some_of_any_steps_are_kept(steps):
    """Fails when a memory limit, and a recording of every tenth step from the first on, leave no step to look at."""
    first = rows(*((rank, step) for rank in (0, 1) for step in steps))
    second = rows(*((2, step) for step in steps))
    found = survey(first, second, every=2)
    assert found.steps.tolist() == [*steps][::2]
    assert found.own_s.tolist() == [
        [10 * rank + step for step in [*steps][::2]] for rank in range(3)
    ]
    assert found.thinned(2).steps.tolist() == [*steps][::4]


def test_no_common_step_is_an_error_with_a_remedy():
    """Fails when a run that hung in its first step ends in a traceback."""
    with pytest.raises(TraceFormatError, match="no step was finished by all ranks"):
        survey(rows((0, 1)), rows((1, 2)))
