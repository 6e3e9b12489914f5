"""Operations on a device: timed by their handle, or by a pair of events where they have none."""

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshscope.probe.hooks import collective_times as module
from meshscope.probe.hooks.base import Capture
from meshscope.probe.hooks.collective_times import CollectiveTimes
from meshscope.probe.hooks.collectives import CollectiveHook
from meshscope.probe.hooks.tags import MessageTags
from meshscope.probe.settings.config import ProbeConfig


class Stream:
    """Event pairs on the stream of the caller."""

    def __init__(self):
        self.begun = 0
        self.ended = []

    def begin(self):
        """Count a begin and return its number."""
        self.begun += 1
        return self.begun

    def end(self, begin, event_id):
        """Keep what was ended."""
        self.ended.append((begin, event_id))


@pytest.fixture
def timed(make_recorder, monkeypatch):
    """Return event pairs, and the timer of the collectives of a group that sends nothing."""
    dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    monkeypatch.setattr(module, "device_work_timing", lambda: None)
    monkeypatch.setattr(module, "enable_device_timing", lambda group: None)
    capture = Capture(make_recorder(), ProbeConfig(), lambda: None)
    stream = capture.device_times = Stream()
    hook = CollectiveHook(capture, MessageTags())
    hook.install()
    times = CollectiveTimes(capture, hook.groups)
    times.install()
    yield stream, times
    times.remove()
    hook.remove()
    dist.destroy_process_group()


def test_only_what_runs_on_the_stream_of_the_caller_gets_events(timed):
    """Fails when collectives without a handle have no device time, or others pay for two."""
    stream, times = timed
    x = torch.ones(4, device="meta")
    dist.all_reduce(x, async_op=True)
    dist.barrier(async_op=True)
    assert stream.begun == 0
    dist.all_reduce(x)
    assert stream.begun == 1
    assert stream.ended == []  # this backend gave a handle, which tells more
    times.end(7, None, 40)
    assert stream.ended == [(7, 40)]


def test_what_is_gathered_is_not_timed_where_it_is_called(timed):
    """Fails when an operation that is launched later gets the time of its call, which is next to nothing."""
    stream, _ = timed
    x = torch.ones(4, device="meta")
    gathered = dist.distributed_c10d._world.pg_coalesce_state
    gathered[dist.group.WORLD] = []
    try:
        dist.reduce(x, 0)
    finally:
        gathered.clear()
    assert stream.begun == 0
    dist.reduce(x, 0)
    assert stream.begun == 1


def test_a_job_without_stage_times_goes_on(timed):
    """Fails when collectives are timed only together with stages, or break the job without."""
    stream, times = timed
    times._capture.device_times = None
    dist.all_reduce(torch.ones(4, device="meta"))
    times.end(None, None, 1)
    assert stream.begun == 0
    assert stream.ended == []
