"""Operations on a device: where its stream got to them, and how long it waited."""

import pytest
import torch
import torch.distributed as dist
from tests.device_queue import BOOT_NS, Queue
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshscope.probe.hooks import collective_times as module
from meshscope.probe.hooks import device_times as events_module
from meshscope.probe.hooks.base import Capture, Place, compute_span
from meshscope.probe.hooks.collective_times import CollectiveTimes
from meshscope.probe.hooks.collectives import CollectiveHook
from meshscope.probe.hooks.device_times import DeviceTimes
from meshscope.probe.hooks.tags import MessageTags
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.terms import SpanKind
from meshscope.probe.settings.config import ProbeConfig

MS = 1_000_000


class Job:
    """A rank whose host launches all at once, and whose device takes its time."""

    def __init__(self, capture, queue, run_path):
        """Install what a session at the level of kernels installs."""
        self.capture, self.queue, self._run_path = capture, queue, run_path
        self.stream = DeviceTimes(capture, lambda: queue)
        self.stream.install()
        self.stream.step_ended()
        self._hook = CollectiveHook(capture, MessageTags())
        self._hook.install()
        self.times = CollectiveTimes(capture, self._hook.groups)
        self.times.install()

    def forward(self, dur_ns, inside=lambda: None):
        """Compute a stage."""

        def call():
            self.queue.launch(dur_ns)
            inside()

        source = self.capture.source("compute")
        compute_span(source, Place(SpanKind.FORWARD), call, (), {})

    def wait(self, work, until_ns):
        """Have the stream wait for an operation that ends then."""
        begin = self.times.wait_begins(work)
        self.queue.free_at_ns = max(self.queue.free_at_ns, until_ns)
        self.times.wait_ended(begin)

    def rows(self, table="collective"):
        """Let the device finish, and return what was recorded, times from the first launch on."""
        self.queue.now_ns += 1000 * MS
        for _ in range(3):
            self.stream.step_ended()
            self.times.step_ended()
        self.capture.recorder.close()
        frame = read_run(self._run_path).tables[table].to_pandas()
        times = [name for name in frame if name.endswith("_ns") and name != "device_dur_ns"]
        frame[times] -= BOOT_NS
        return frame

    def close(self):
        """Take the hooks out."""
        self.times.remove()
        self._hook.remove()
        self.stream.remove()


@pytest.fixture
def job(make_recorder, monkeypatch, run_path):
    """Return a job in a group that sends nothing."""
    dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    monkeypatch.setattr(module, "device_work_timing", lambda: None)
    monkeypatch.setattr(module, "enable_device_timing", lambda group: None)
    monkeypatch.setattr(module, "device_duration_ns", lambda work: 3 * MS)
    queue = Queue()
    monkeypatch.setattr(events_module, "now_ns", queue.host_ns)
    capture = Capture(make_recorder(), ProbeConfig(), lambda: None)
    capture.recorder.step = 0
    found = Job(capture, queue, run_path)
    yield found
    found.close()
    dist.destroy_process_group()


def test_what_runs_on_the_stream_that_computes_holds_it_up(job, monkeypatch):
    """Fails when tensor parallelism over NCCL is counted as compute: its calls give no handle."""
    monkeypatch.setattr(job.times, "_unbox", lambda boxed: None)

    def reduce():
        begin = job.times.begin()
        job.queue.launch(2 * MS)
        # As NCCL: the operation is on the stream before the call returns.
        issue = job.capture.recorder.issue_collective
        event = issue(next(iter(heads())), 0, 64, job.queue.host_ns())
        job.times.issued(begin, None, event, receives=False)

    def heads():
        dist.all_reduce(torch.ones(4, device="meta"))
        group = job._hook.groups.any_object()
        yield from job._hook.groups.of(group.boxed()).heads[0].values()

    job.forward(5 * MS, reduce)
    row = job.rows().iloc[-1]
    assert (row["start_ns"], row["end_ns"]) == (5 * MS, 7 * MS)
    assert (row["wait_start_ns"], row["wait_end_ns"]) == (5 * MS, 7 * MS)
    assert row["device_dur_ns"] == 2 * MS
    assert row["source"] == "device_blocking"


def test_a_wait_is_what_the_stream_waited(job):
    """Fails when communication beside compute is counted as exposed, or what is exposed is not."""
    job.forward(5 * MS)
    work = dist.all_reduce(torch.ones(4, device="meta"), async_op=True)
    job.forward(4 * MS)
    job.wait(work, 12 * MS)
    row = job.rows().iloc[0]
    assert row["start_ns"] == 5 * MS
    assert (row["wait_start_ns"], row["wait_end_ns"]) == (9 * MS, 12 * MS)
    assert row["end_ns"] == 12 * MS
    assert row["device_dur_ns"] == 3 * MS
    assert row["source"] == "device_blocking"


def test_a_wait_right_after_the_issue_is_a_wait(job):
    """Fails when an operation that is waited for at once gets the length of the wait for its own."""
    job.forward(5 * MS)
    work = dist.all_reduce(torch.ones(4, device="meta"), async_op=True)
    job.wait(work, 15 * MS)
    row = job.rows().iloc[0]
    assert row["start_ns"] == row["wait_start_ns"] == 5 * MS
    assert row["wait_end_ns"] == 15 * MS
    assert row["device_dur_ns"] == 3 * MS  # as the backend says: it began 7 ms after its issue


def test_what_is_over_before_it_is_waited_for_holds_up_nobody(job):
    """Fails when an operation that compute hides costs time."""
    work = dist.all_reduce(torch.ones(4, device="meta"), async_op=True)
    job.forward(4 * MS)
    job.wait(work, 3 * MS)
    row = job.rows().iloc[0]
    assert row["wait_start_ns"] == row["wait_end_ns"] == 4 * MS


def test_a_group_of_messages_is_one_wait_for_what_is_received(job, monkeypatch):
    """Fails when messages of a pipeline that NCCL launches together have no ends."""
    x = torch.ones(4, device="meta")
    job.forward(5 * MS)
    work = dist.all_reduce(x, async_op=True)  # a handle, as the end of a group gives one
    group = dist.group.WORLD
    monkeypatch.setattr(type(group), "_start_coalescing", lambda *_: None)
    monkeypatch.setattr(type(group), "_end_coalescing", lambda *_: work)
    job.times._patches.restore()
    job.times.install()
    group._start_coalescing(x.device)
    dist.isend(x, 0)
    dist.irecv(x, 2)
    assert group._end_coalescing(x.device) is work
    job.wait(work, 8 * MS)
    rows = job.rows("p2p").set_index("direction")
    assert (rows["end_ns"] == 8 * MS).all()
    assert (rows["start_ns"] == 5 * MS).all()
    assert rows.loc["recv", "wait_start_ns"] == 5 * MS
    assert rows.loc["send", "wait_start_ns"] == 8 * MS


def test_what_another_stream_does_holds_up_nobody(job, monkeypatch):
    """Fails when gathers on a stream of their own, as of FSDP2, are counted as waits of the compute."""
    monkeypatch.setattr(job.times, "_unbox", lambda boxed: None)
    job.forward(5 * MS)
    job.queue.current = 2
    dist.all_reduce(torch.ones(4, device="meta"))
    job.queue.current = 1
    row = job.rows().iloc[0]
    assert row["start_ns"] == row["end_ns"] == 5 * MS
    assert row[["wait_start_ns", "wait_end_ns"]].isna().all()


def test_the_wait_of_a_reducer_is_around_its_callback(job):
    """Fails when the gradient sum of DistributedDataParallel hides in the backward: C++ waits for it."""
    engine = torch.autograd.Variable._execution_engine
    weights = torch.ones(4, device="meta", requires_grad=True)
    buckets = []

    def reduce(gradient):
        job.queue.launch(3 * MS)
        buckets.append(dist.all_reduce(torch.ones(4, device="meta"), async_op=True))
        buckets.clear()  # As the reducer's, which are held in C++ only.
        if len(seen) == 1:
            engine.queue_callback(lambda: setattr(job.queue, "free_at_ns", 14 * MS))
        seen.append(gradient)

    seen = []
    held = dist.all_reduce(torch.ones(4, device="meta"), async_op=True)
    doubled = weights * 2
    doubled.register_hook(reduce)
    weights.register_hook(reduce)
    job.forward(5 * MS)
    doubled.sum().backward()
    job.forward(1 * MS)
    rows = job.rows()
    assert len(rows) == 3
    first, second = rows.iloc[1], rows.iloc[2]
    assert (first["start_ns"], second["start_ns"]) == (8 * MS, 11 * MS)
    assert (second["wait_start_ns"], second["wait_end_ns"]) == (11 * MS, 14 * MS)
    assert first["wait_start_ns"] == first["wait_end_ns"] == first["end_ns"] == 14 * MS
    assert rows["end_ns"].isna()[0]  # The training code holds it, and may wait for it later.
    assert held is not None


def test_handles_are_let_go(job):
    """Fails when operations that nobody waits for keep their tensors and events for good."""
    for step in range(4):
        job.capture.recorder.step = step
        dist.all_reduce(torch.ones(4, device="meta"), async_op=True)
        job.times.step_ended()
        job.stream.step_ended()
    assert not job.times._waited
    assert job.rows()["device_dur_ns"].notna().all()


def test_an_error_of_ours_is_counted_and_the_wait_goes_on(job, monkeypatch, capsys):
    """Fails when a broken event of the probe raises into ``wait()`` of the training code."""
    work = dist.all_reduce(torch.ones(4, device="meta"), async_op=True)
    monkeypatch.setattr(job.stream, "mark", lambda: 1 / 0)
    assert work.wait()
    assert job.times.source.on
    assert "collective_times: ZeroDivisionError" in capsys.readouterr().err


def test_a_job_without_stage_times_goes_on(job):
    """Fails when collectives break a job whose stages are not timed."""
    job.capture.device_times = None
    work = dist.all_reduce(torch.ones(4, device="meta"), async_op=True)
    assert job.times.wait_begins(work) is None
    work.wait()
    assert job.rows()["end_ns"].isna().all()
