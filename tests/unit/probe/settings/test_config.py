"""Settings are validated where they are made, with the field in the message."""

import gc
import json
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshscope import probe
from meshscope.probe import clock
from meshscope.probe.clock import now_ns
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.sampling import EARLY_WINDOW_STEPS, begins_window, is_recorded
from meshscope.probe.schema.terms import CaptureLevel
from meshscope.probe.session.sample_order import SAMPLING_FILE, Sample
from meshscope.probe.settings.config import (
    SOURCES,
    ProbeConfig,
    level_below,
    level_of,
    level_reached,
    sources_of,
)


def test_the_environment_overrides_the_defaults():
    """Fails when a MESHSCOPE_ variable is not read, or read into the wrong field."""
    config = ProbeConfig.from_environment(
        {"MESHSCOPE_SOURCES": "steps, gc", "MESHSCOPE_MEMORY_EVERY_STEPS": "5", "OTHER": "x"}
    )
    assert config == ProbeConfig(sources=("steps", "gc"), memory_every_steps=5)
    assert ProbeConfig.from_environment({}).sources == SOURCES


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"sources": ("steps", "telepathy")}, "telepathy"),
        ({"memory_every_steps": -1}, "memory_every_steps"),
        ({"max_source_errors": 0}, "max_source_errors"),
        ({"max_pending_works": -1}, "max_pending_works"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values, named):
    """Fails when a setting that cannot work is taken, or the message hides which one it is."""
    with pytest.raises(ConfigError, match=named):
        ProbeConfig(**values)


def test_a_variable_that_is_no_number_is_refused_by_name():
    """Fails when a typing error in a variable shows as a traceback of int()."""
    with pytest.raises(ConfigError, match="MESHSCOPE_MIN_GC_NS: '1ms' is not a whole number"):
        ProbeConfig.from_environment({"MESHSCOPE_MIN_GC_NS": "1ms"})


@pytest.fixture
def world():
    """Make this process rank 0 of two."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    probe.detach()
    dist.destroy_process_group()


def train(steps, x=None):
    """Run steps of a forward, an all-reduce, a send and an explicit boundary."""
    x = torch.ones(2) if x is None else x
    for _ in range(steps):
        torch.nn.Identity()(x)
        dist.all_reduce(x)
        dist.send(x, 1)
        probe.step()


def by_step(tables, name):
    """Return how many rows of a table each step has; of spans only forward passes count."""
    rows = tables[name].to_pandas()
    if name == "span":
        rows = rows[rows["kind"] == "forward"]
    return rows.groupby("step").size().to_dict()


def test_a_level_holds_from_its_step_on(world, tmp_path):
    """Fails when a change of level comes late, early, or in the middle of a step."""
    originals = (torch.nn.Module.__call__, torch.autograd.backward)
    session = probe.attach(tmp_path / "run")
    train(2)
    assert session.set_level("stages") == "stages from step 3 on"
    train(2)
    assert session.set_level("steps", from_step=6) == "steps from step 6 on"
    train(3)
    session.set_level("collectives")
    train(3)
    probe.detach()
    assert (torch.nn.Module.__call__, torch.autograd.backward) == originals
    run = read_run(tmp_path / "run")
    steps = run.tables["step"].to_pandas()
    assert list(steps["detail"]) == [*["full"] * 3, *["stages"] * 3, *["steps"] * 2, *["full"] * 2]
    assert by_step(run.tables, "collective") == dict.fromkeys((0, 1, 2, 8, 9), 1)
    assert by_step(run.tables, "p2p") == dict.fromkeys((0, 1, 2, 8, 9), 1)
    assert by_step(run.tables, "span") == dict.fromkeys((0, 1, 2, 3, 4, 5, 8, 9), 1)
    stretches = run.tables["recording"].to_pandas()
    assert list(stretches["step"]) == [0, 3, 6, 8]
    assert list(stretches["level"]) == ["collectives", "stages", "steps", "collectives"]
    assert list(stretches["reason"])[1:] == ["level.asked"] * 3
    # What lies before the first border is the start of the job.
    assert stretches["steps"].sum() == 9


@pytest.mark.skipif(
    clock.thread_queued_ns(threading.get_native_id()) is None, reason="the kernel does not count"
)
@pytest.mark.parametrize("is_moved", [False, True], ids=["one thread", "another thread"])
def test_queueing_of_the_thread_that_trains_is_counted(world, tmp_path, is_moved):
    """Fails when a capture does not say how long a rank waited for a CPU, or tells that of another thread."""
    probe.attach(tmp_path / "run")
    train(2)
    if is_moved:
        other = threading.Thread(target=train, args=(2,))
        other.start()
        other.join()
    probe.detach()
    (stretch,) = read_run(tmp_path / "run").tables["recording"].to_pylist()
    if is_moved:
        assert stretch["queued_ns"] is None
    else:
        assert 0 <= stretch["queued_ns"] <= stretch["dur_ns"]


def test_positions_are_not_given_twice(world, tmp_path):
    """Fails when a pause makes a later collective or message look like an earlier one."""
    session = probe.attach(tmp_path / "run")
    train(3)
    session.set_level("stages")
    train(3)
    session.set_level("collectives")
    train(4)
    probe.detach()
    tables = read_run(tmp_path / "run").tables
    for name in ("collective", "p2p"):
        rows = tables[name].to_pandas()
        assert rows["seq"].is_unique
        assert rows["seq"].is_monotonic_increasing
        assert len(rows) > 5


def test_a_level_can_be_chosen_at_the_start(world, tmp_path):
    """Fails when a job that asked for little is recorded in full."""
    probe.attach(tmp_path / "run", probe.ProbeConfig(level="steps"))
    train(2)
    probe.detach()
    run = read_run(tmp_path / "run")
    assert run.manifest["capture_level"] == "steps"
    assert run.tables["step"].num_rows == 2
    assert by_step(run.tables, "span") == by_step(run.tables, "collective") == {}


def test_an_unknown_level_is_refused(world, tmp_path):
    """Fails when a wrong word changes what is recorded."""
    session = probe.attach(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"'all' is not a level.*steps, stages"):
        session.set_level("all")


def test_timing_collectives_is_refused_where_it_harms(world, tmp_path, monkeypatch):
    """Fails when a job loses its overlap because somebody asked for more detail."""
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    session = probe.attach(tmp_path / "run")
    with pytest.raises(ConfigError, match="CUDA_DEVICE_MAX_CONNECTIONS=1"):
        session.set_level("kernels")
    probe.detach()
    forced = probe.attach(tmp_path / "forced", probe.ProbeConfig(force_collective_times=1))
    assert forced.set_level("kernels").startswith("kernels from step")


def test_a_level_that_this_machine_cannot_reach_says_so(world, tmp_path):
    """Fails when a capture claims device times of collectives that nobody could take."""
    session = probe.attach(tmp_path / "run")
    session.set_level("kernels")
    train(3)
    probe.detach()
    run = read_run(tmp_path / "run")
    if "collective_times.not_applicable" in run.rank_manifests[0]["annotations"]:
        last = run.tables["recording"].to_pylist()[-1]
        assert last["level"] == "collectives"
        assert "kernels" in last["reason"]
    assert run.tables["collective"].num_rows == 3


def test_too_dear_a_probe_records_less(world, tmp_path, capsys):
    """Fails when hooks over their budget go on, or the capture does not say that they ceased."""
    config = probe.ProbeConfig(cost_budget_ppm=1, cost_window_steps=40, full_first_steps=0)
    session = probe.attach(tmp_path / "run", config)
    for _ in range(40):
        train(40)
        if session._hooks.level is CaptureLevel.STEPS:
            break
    train(2)
    probe.detach()
    run = read_run(tmp_path / "run")
    stretches = run.tables["recording"].to_pandas()
    # Fast steps may reach the step of the order to thin out before the level is as low as it can be.
    stretches = stretches[~stretches["reason"].str.contains("level.sampled")].reset_index()
    assert list(stretches["level"]) == ["collectives", "stages", "steps"]
    assert all("level.over_budget" in reason for reason in stretches["reason"][1:])
    assert stretches["step"][1] >= 3 * 40
    assert (stretches["cost_ns"][:2] > 0).all()
    assert (stretches["cost_ns"] <= stretches["dur_ns"]).all()
    assert run.rank_manifests[0]["counters"]["levels_lowered"] == 2
    assert "lowered from collectives to stages" in capsys.readouterr().err


def test_a_budget_of_nothing_is_no_bound(world, tmp_path):
    """Fails when measuring jobs that want everything lose their records."""
    config = probe.ProbeConfig(cost_budget_ppm=0, cost_window_steps=1, full_first_steps=0)
    session = probe.attach(tmp_path / "run", config)
    train(30)
    assert session._hooks.level is CaptureLevel.COLLECTIVES


def test_the_hooks_measure_themselves(world, tmp_path):
    """Fails when the cost in a capture is not that of its calls."""
    probe.attach(tmp_path / "run", probe.ProbeConfig(cost_budget_ppm=0))
    train(400)
    probe.detach()
    annotations = read_run(tmp_path / "run").rank_manifests[0]["annotations"]
    (stretch,) = annotations["recording"]
    cost = annotations["cost"]
    assert cost["hop_ns"] > 0, annotations.get("cost.hop_unknown")
    assert all(value > 0 for value in cost["per_call_ns"].values() if value is not None)
    calls = 2 * 400 * cost["per_call_ns"]["communication"]
    # Steps of this job hold little else than hooks.
    assert 0.2 * calls < stretch["cost_ns"] <= stretch["dur_ns"]


def test_nothing_of_the_probe_is_in_a_paused_step_but_its_end(world, tmp_path):
    """Fails when windows without the probe pay for it, so that a comparison hides its cost."""
    plain = (torch.nn.Module.__call__, torch.autograd.backward, list(gc.callbacks))
    session = probe.attach(tmp_path / "run")
    train(2)
    assert torch.nn.Module.__call__ is not plain[0]
    for _ in range(2):
        session._hooks.pause()
        assert (torch.nn.Module.__call__, torch.autograd.backward, list(gc.callbacks)) == plain
        train(3)
        session._hooks.resume()
        assert torch.nn.Module.__call__ is not plain[0]
        train(2)
    cost = session._capture.meter
    assert 0 < cost.bare.median_ns() < 10_000_000
    probe.detach()
    tables = read_run(tmp_path / "run").tables
    assert set(by_step(tables, "step")) == set(range(12))
    watched = {0, 1, 5, 6, 10, 11}
    assert set(by_step(tables, "collective")) == set(by_step(tables, "span")) == watched
    assert set(by_step(tables, "memory")) <= watched | {2, 7, 12}
    assert read_run(tmp_path / "run").rank_manifests[0]["counters"].get("hooks_errors", 0) == 0


def test_paused_hooks_only_call_on(world, tmp_path):
    """Fails when the windows without the probe of a comparison still record, or never resume."""
    session = probe.attach(tmp_path / "run")
    train(2)
    session._hooks.pause()
    train(3)
    session._hooks.resume()
    train(2)
    probe.detach()
    tables = read_run(tmp_path / "run").tables
    assert set(by_step(tables, "step")) == set(range(7))
    assert set(by_step(tables, "collective")) == set(by_step(tables, "span")) == {0, 1, 5, 6}


def test_every_source_has_one_level():
    """Fails when a source belongs to no level, so that it is never installed."""
    assert sources_of(CaptureLevel.KERNELS) == SOURCES
    assert len(set(SOURCES)) == len(SOURCES)
    assert level_below(level_of("stages")) is CaptureLevel.STEPS
    assert level_below(CaptureLevel.STEPS) is None
    every = CaptureLevel.KERNELS
    assert level_reached({"steps", "device_times"}, every) is CaptureLevel.STEPS
    assert level_reached({"compute", "collective_times"}, every) is CaptureLevel.STAGES
    assert level_reached({"steps", "megatron"}, CaptureLevel.STEPS) is CaptureLevel.STEPS


def sampled_run(tmp_path, steps, *, one_in=2, first_step=0, **settings):
    """Return a run of some steps whose directory holds an order from the start."""
    path = tmp_path / "run"
    path.mkdir(parents=True)
    order = {"one_in": one_in, "first_step": first_step}
    (path / SAMPLING_FILE).write_text(json.dumps(order))
    session = probe.attach(path, probe.ProbeConfig(full_every_steps=1, **settings))
    session._levels.look_for_order()
    train(steps)
    probe.detach()
    return read_run(path)


def test_one_window_of_steps_in_two_is_recorded(world, tmp_path):
    """A run over its budget would go on as before, or nobody would know what it left out."""
    originals = (torch.nn.Module.__call__, torch.autograd.backward)
    run = sampled_run(tmp_path, 130)
    recorded = [step for step in range(130) if is_recorded(step, 2)]
    assert recorded[:11] == [*range(5), *range(10, 15), 20]
    assert recorded[-25:] == list(range(95, 120))
    for name in ("collective", "p2p", "span"):
        assert by_step(run.tables, name) == dict.fromkeys(recorded, 1)
    steps = run.tables["step"].to_pandas()
    assert list(steps["step"]) == list(range(130))
    detail = dict(zip(steps["step"], steps["detail"].astype(str), strict=True))
    assert [step for step in detail if detail[step] == "full"] == recorded
    assert {detail[step] for step in detail if step not in recorded} == {"steps"}
    assert (torch.nn.Module.__call__, torch.autograd.backward) == originals
    last = run.tables["recording"].to_pylist()[-1]
    assert (last["level"], last["one_in"]) == ("collectives", 2)
    assert last["reason"] == 'level.sampled {"one_in": 2}'


def test_messages_are_numbered_alike_on_ranks_that_missed_other_windows(world, tmp_path):
    """A rank that learns of the order later would have no message in common with its peers."""
    run = sampled_run(tmp_path, 130)
    numbers = run.tables["p2p"].to_pandas().groupby("step")["seq"].min()
    run = sampled_run(tmp_path / "late", 130, first_step=60)
    late = run.tables["p2p"].to_pandas().groupby("step")["seq"].min()
    assert late.loc[95:].to_dict() == numbers.loc[95:].to_dict() != {}
    assert set(late.index) == {*range(65), *range(70, 75), *range(95, 120)}


def test_an_order_holds_until_the_next_one_begins(world, tmp_path):
    """While a further order lies ahead everything would be recorded again."""
    path = tmp_path / "run"
    session = probe.attach(path, probe.ProbeConfig(full_every_steps=1))
    order = session._levels.order
    order.newest = Sample(2, 0)
    train(30)
    order.newest = Sample(4, 95)
    train(130)
    probe.detach()
    tables = read_run(path).tables
    recorded = {step for step in range(130) if is_recorded(step, 2)}
    assert set(by_step(tables, "p2p")) == recorded
    stretches = tables["recording"].to_pandas()
    assert list(stretches["one_in"]) == [1, 2, 4]
    assert list(stretches["step"]) == [0, 1, 95]


def test_a_rank_over_its_budget_asks_all_for_less(world, tmp_path, capsys):
    """What costs a little too much would be left out altogether."""
    config = probe.ProbeConfig(
        cost_budget_ppm=200_000, cost_window_steps=25, full_first_steps=0, full_every_steps=1
    )
    session = probe.attach(tmp_path / "run", config)
    control, meter = session._levels, session._capture.meter
    for _ in range(4):
        train(24)
        # Before the window ends, three times the budget, whatever the machine: the doubling is in the meter.
        meter.add_border(int(0.3 * (now_ns() - control._windows._start_ns)))
        train(1)
    assert control.order._wish is not None or control.order.newest is not None
    control.look_for_order()
    ordered = control.order.newest
    assert ordered.one_in in (2, 4, 8)
    assert ordered.first_step > 100
    assert "from step" in capsys.readouterr().err
    assert session._hooks.level is CaptureLevel.COLLECTIVES
    assert json.loads((tmp_path / "run" / SAMPLING_FILE).read_text()) == ordered._asdict()


def test_a_rank_far_over_its_budget_asks_in_its_first_steps(world, tmp_path):
    """A job would pay many times its budget for some hundred steps and a minute more."""
    session = probe.attach(tmp_path / "run")
    control, meter = session._levels, session._capture.meter
    for _ in range(40):
        started_ns = now_ns()
        train(1)
        # A tenth of all time, whatever the machine: the doubling is in the meter.
        time.sleep(0.02)
        meter.add_border(max(0, now_ns() - started_ns) // 20)
        asked = control.order._wish or control.order.newest
        if asked is not None:
            break
    assert asked is not None
    assert asked.one_in >= 8
    assert EARLY_WINDOW_STEPS <= asked.first_step < 150


def dear_steps(session, count, frac):
    """Train some steps in which the hooks take a share of the time, whatever the machine."""
    control, meter = session._levels, session._capture.meter
    for _ in range(count):
        started_ns = now_ns()
        # Sampled calls, without which a cost is not known.
        for _ in range(20):
            meter.add("span", 1)
        train(1)
        time.sleep(0.01)
        step_ns, is_recorded_now = now_ns() - started_ns, not session._hooks.steps.is_bare
        # The doubling is in the meter.
        meter.add_border(int(frac * step_ns / 2) if is_recorded_now else 0)
        control.look_for_order()


def test_an_order_of_dear_first_steps_is_taken_back(world, tmp_path, capsys):
    """A run whose caches are cold in its first steps would be recorded in part for good."""
    session = probe.attach(tmp_path / "run", probe.ProbeConfig(cost_budget_ppm=300_000))
    dear_steps(session, 12, 2.0)
    ordered = session._levels.order.newest
    assert ordered.one_in >= 4
    assert session._levels.order.is_own
    while session._levels.order.newest.one_in > 1 and session._capture.recorder.step < 800:
        dear_steps(session, 5, 0.05)
    taken_back = session._levels.order.newest
    assert taken_back.one_in == 1
    assert taken_back.round >= 1
    assert begins_window(taken_back.first_step)
    number = taken_back.first_step + 10
    dear_steps(session, number - session._capture.recorder.step, 0.05)
    probe.detach()
    run = read_run(tmp_path / "run")
    again = set(range(taken_back.first_step, number))
    assert again <= set(by_step(run.tables, "p2p"))
    last = run.tables["recording"].to_pylist()[-1]
    assert (last["reason"], last["one_in"]) == ("level.within_budget", 1)
    assert "take less than 30.00 % of the time: from step" in capsys.readouterr().err
    # Numbers begin anew there, on all ranks alike.
    seq = run.tables["p2p"].to_pandas().groupby("step")["seq"].min()
    assert seq.loc[taken_back.first_step] == taken_back.first_step << 20


def test_who_did_not_ask_takes_nothing_back(world, tmp_path):
    """A stage with little to record would have the dear ones record all again, in turns."""
    path = tmp_path / "run"
    path.mkdir(parents=True)
    (path / SAMPLING_FILE).write_text(json.dumps({"one_in": 4, "first_step": 5}))
    session = probe.attach(path, probe.ProbeConfig(cost_budget_ppm=300_000))
    dear_steps(session, 50, 0.05)
    assert session._levels.order.newest == Sample(4, 5)
    probe.detach()


def test_too_little_thinned_out_is_mended_at_the_end_of_a_window(world, tmp_path):
    """An order that rests on few samples would leave a job at twice its budget for 150 steps."""
    path = tmp_path / "run"
    path.mkdir(parents=True)
    (path / SAMPLING_FILE).write_text(json.dumps({"one_in": 2, "first_step": 5}))
    session = probe.attach(path, probe.ProbeConfig(cost_budget_ppm=100_000))
    dear_steps(session, 60, 0.9)
    assert session._levels.order.newest.one_in >= 4
    assert session._levels.order.newest.round == 0
    probe.detach()


def test_a_comparison_is_never_sampled(world, tmp_path):
    """What the doctor measures would be a part of what the probe takes."""
    run = sampled_run(tmp_path, 60, compare_window_steps=10)
    assert len(run.tables["recording"]) == 1
