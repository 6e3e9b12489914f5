"""A process that learns its rank from an argument is found, and nothing is left behind."""

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

from meshscope.probe.watches.imports import ImportWatch
from meshscope.probe.watches.job_watch import GroupWatch

ORIGINAL = dist.init_process_group


class Told:
    """Keeps the errors that it is told about."""

    def __init__(self):
        self.errors = []

    def failed(self, error):
        """Keep one."""
        self.errors.append(error)


@pytest.fixture
def join(tmp_path):
    """Return a function that joins a group of one rank by some module's function."""

    def join(module=dist):
        store = dist.FileStore(str(tmp_path / "store"), 1)
        module.init_process_group("gloo", store=store, rank=0, world_size=1)

    yield join
    if dist.is_initialized():
        dist.destroy_process_group()
    assert dist.init_process_group is distributed_c10d.init_process_group is ORIGINAL


@pytest.mark.parametrize("module", [dist, distributed_c10d])
def test_who_joins_a_group_is_reported_once(join, module):
    """Ranks that ``spawn`` started would not be recorded, or be attached to twice."""
    seen = []
    GroupWatch(lambda: seen.append(dist.get_rank()), Told()).start(ImportWatch())
    assert dist.init_process_group.__name__ == "init_process_group"
    join(module)
    assert seen == [0]


def test_a_group_that_cannot_be_joined_is_waited_for(join):
    """A second try after a failed one would go unseen."""
    seen = []
    GroupWatch(lambda: seen.append(dist.get_rank()), Told()).start(ImportWatch())
    with pytest.raises(ValueError, match=r"rank|world|backend"):
        dist.init_process_group("gloo", init_method="file:///nowhere", rank=-1, world_size=0)
    assert seen == []
    join()
    assert seen == [0]


def test_an_error_of_ours_does_not_reach_the_training(join):
    """A capture that cannot begin would end the job."""
    reported = Told()
    GroupWatch(lambda: 1 / 0, reported).start(ImportWatch())
    join()
    assert [type(error) for error in reported.errors] == [ZeroDivisionError]


def test_a_function_that_somebody_else_replaced_stays(join):
    """The patch of another tool would be undone with ours."""
    watch = GroupWatch(lambda: None, Told())
    watch.start(ImportWatch())
    ours = dist.init_process_group

    def theirs(*arguments, **keywords):
        ours(*arguments, **keywords)

    dist.init_process_group = theirs
    try:
        watch.stop()
        assert dist.init_process_group is theirs
        assert distributed_c10d.init_process_group is ORIGINAL
    finally:
        dist.init_process_group = ORIGINAL
