"""What training code sees of the probe: it records, never raises, and leaves no trace."""

import copy
import gc
import os
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from meshscope import probe
from meshscope.probe import api
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.layout import ParallelLayout


@pytest.fixture(autouse=True)
def _detached():
    """Detach whatever a test leaves attached."""
    yield
    probe.detach()
    api._described.clear()


def train(steps=3, optimizers=1):
    """Train a tiny model and return its losses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    several = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model][:optimizers]
    losses = []
    for _ in range(steps):
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        for optimizer in several:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def recorded(run_dir):
    """Return the tables of a run as frames."""
    return {name: table.to_pandas() for name, table in read_run(run_dir).tables.items()}


def hooked_attributes():
    """Return every object that a hook may replace, by name."""
    from torch._C import _distributed_c10d as c10d
    from torch.distributed.pipelining import schedules, stage
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    found = {
        "Module.__call__": vars(nn.Module)["__call__"],
        "autograd.backward": torch.autograd.backward,
        "clip_grad_norm_": nn.utils.clip_grad_norm_,
        "save": torch.save,
        "loader": vars(dataloader._BaseDataLoaderIter)["__next__"],
        "pre": dict(optimizer._global_optimizer_pre_hooks),
        "post": dict(optimizer._global_optimizer_post_hooks),
        "gc": list(gc.callbacks),
        "fork": api._attached,
    }
    for owner in (c10d.Work, stage._PipelineStageBase, schedules._PipelineSchedule,
                  schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):  # fmt: skip
        found |= {f"{owner.__name__}.{name}": value for name, value in vars(owner).items()}
    for name in ("allreduce_", "send", "barrier"):
        found[name] = torch._C._dispatch_has_kernel_for_dispatch_key(
            f"c10d::{name}", "BackendSelect"
        )
    return found


def test_one_process_without_distributed_is_rank_zero(tmp_path):
    """Fails when the probe needs torch.distributed to record steps and compute."""
    session = probe.attach(tmp_path / "run")
    train(3)
    assert (session.rank, session.coverage) == (0, {})
    probe.detach()
    tables = recorded(tmp_path / "run")
    assert list(tables["step"]["step"]) == [0, 1, 2]
    spans = tables["span"]
    for kind in ("forward", "backward", "optimizer"):
        assert list(spans[spans["kind"] == kind]["step"]) == [0, 1, 2], kind
    assert set(tables["memory"]["phase"]) == {"step_start", "after_backward", "after_optimizer"}
    assert (tables["memory"]["rss_bytes"] > 1e7).all()
    assert tables["run"]["world_size"].item() == 1


def test_step_windows_are_gapless(tmp_path):
    """Fails when time between two steps belongs to neither, so that no account can be exact."""
    probe.attach(tmp_path / "run")
    train(4)
    probe.detach()
    steps = recorded(tmp_path / "run")["step"]
    assert list(steps["start_ns"][1:]) == list((steps["start_ns"] + steps["dur_ns"])[:-1])


def test_detach_restores_every_object(tmp_path):
    """Fails when anything that was hooked is not the same object afterwards."""
    before = hooked_attributes()
    probe.attach(tmp_path / "run")
    during = hooked_attributes()
    probe.detach()
    after = hooked_attributes()
    assert {name for name in before if before[name] is not during[name]} >= {
        "Module.__call__",
        "autograd.backward",
        "save",
        "Work.wait",
        "_PipelineStageBase.forward_one_chunk",
        "PipelineScheduleSingle.step",
        "allreduce_",
    }
    assert after.keys() == before.keys()
    for name, value in before.items():
        same = after[name] == value if isinstance(value, dict | list) else after[name] is value
        assert same, name


def test_the_loss_is_the_same_to_the_bit(tmp_path):
    """Fails when watching changes what is computed."""
    alone = train(5)
    probe.attach(tmp_path / "run")
    assert train(5) == alone


def test_several_optimizers_make_one_step(tmp_path):
    """Fails when a step with two optimizers counts as two."""
    probe.attach(tmp_path / "run")
    train(3, optimizers=2)
    probe.detach()
    assert len(recorded(tmp_path / "run")["step"]) == 3


def update(*optimizers):
    """Compute a gradient and let each optimizer update its parameter."""
    for optimizer in optimizers:
        optimizer.param_groups[0]["params"][0].square().sum().backward()
        optimizer.step()


def optimizers_of(count):
    """Return optimizers with one parameter each."""
    return [torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1) for _ in range(count)]


def test_an_optimizer_that_was_replaced_leads_no_longer(tmp_path):
    """Fails when steps end no more after a new optimizer, because a list holds the old one."""
    probe.attach(tmp_path / "run")
    old, new = optimizers_of(2)
    for optimizer in [old] * 5 + [new] * 20:
        update(optimizer)
    probe.detach()
    held = read_run(tmp_path / "run")
    steps = held.tables["step"].to_pandas()
    assert list(steps["step"]) == list(range(5 + 1 + 20 - 8))
    assert held.rank_manifests[0]["annotations"]["steps.led_anew"] == [5]


def test_a_critic_that_steps_more_often_ends_no_step_of_its_own(tmp_path):
    """Fails when an optimizer that steps five times for each step of the first takes its place."""
    probe.attach(tmp_path / "run")
    generator, critic = optimizers_of(2)
    for _ in range(4):
        update(generator, *[critic] * 5)
    probe.detach()
    assert len(recorded(tmp_path / "run")["step"]) == 4


@pytest.mark.parametrize(("often", "noted"), [(1, None), (5, [16, 3])])
def test_updates_that_are_not_once_a_step_are_noted(tmp_path, often, noted):
    """Fails when each update of a critic counts as a step, and nothing says so."""
    probe.attach(tmp_path / "run")
    critic, generator = optimizers_of(2)
    for _ in range(20):
        update(*[critic] * often, generator)
    probe.detach()
    annotations = read_run(tmp_path / "run").rank_manifests[0]["annotations"]
    assert annotations.get("steps.other_updates") in (noted, noted and [64, 12])


def test_own_step_marks_override_the_optimizer(tmp_path):
    """Fails when a step is counted both by the optimizer and by the training code."""
    probe.attach(tmp_path / "run")
    for _ in range(3):
        train(1)
        probe.step(tokens=128)
    probe.detach()
    steps = recorded(tmp_path / "run")["step"]
    assert list(steps["step"]) == [0, 1, 2]
    assert list(steps["tokens"][1:]) == [128, 128]


def test_own_spans_are_recorded(tmp_path):
    """Fails when a ``with probe.span`` block is lost, also one that raises."""
    probe.attach(tmp_path / "run")
    with probe.span("data_load"):
        pass
    with pytest.raises(KeyError), probe.span("no such kind"):
        raise KeyError
    probe.detach()
    kinds = set(recorded(tmp_path / "run")["span"]["kind"])
    assert {"data_load", "other"} <= kinds


def test_described_facts_reach_the_manifest(tmp_path):
    """Fails when layout, model or peak that the training code states are lost."""
    probe.attach(tmp_path / "run")
    layout = ParallelLayout(tp=2, dp=4)
    probe.describe(layout=layout, model={"num_layers": 3}, schedule="1f1b", peak_flops=1e12)
    probe.describe(model={"seq_len": 64})
    probe.detach()
    manifest = read_run(tmp_path / "run").manifest
    assert manifest["layout"] == layout.to_json()
    assert manifest["model"] == {"num_layers": 3, "seq_len": 64}
    assert (manifest["schedule"], manifest["peak_flops"]) == ("1f1b", 1e12)
    assert manifest["capture_level"] == "collectives"


def test_a_wrong_fact_is_reported_and_counted_not_raised(tmp_path, capsys):
    """Fails when a typing error in a description ends a training run, or passes in silence."""
    probe.attach(tmp_path / "run")
    probe.describe(schedule="no such schedule")
    probe.step()
    probe.detach()
    assert "no such schedule" in capsys.readouterr().err
    counters = read_run(tmp_path / "run").rank_manifests[0]["counters"]
    assert counters["session_errors"] == 1


def test_a_second_attach_returns_the_first_session(tmp_path):
    """Fails when attaching twice hooks everything twice."""
    first = probe.attach(tmp_path / "a")
    assert probe.attach(tmp_path / "b") is first
    assert not (tmp_path / "b").exists()


def test_the_kill_switch(tmp_path, monkeypatch):
    """Fails when MESHSCOPE_DISABLE does not keep the probe out."""
    monkeypatch.setenv("MESHSCOPE_DISABLE", "1")
    assert probe.attach(tmp_path / "run") is None
    assert not (tmp_path / "run").exists()


def test_an_unwritable_run_directory_costs_the_capture_only(tmp_path, capsys):
    """Fails when training cannot go on because nothing can be written."""
    (tmp_path / "file").write_text("no directory")
    probe.attach(tmp_path / "file")
    train(2)
    probe.step()
    probe.detach()
    assert capsys.readouterr().err.count("records nothing") == 1


class Full:
    """A stream that takes nothing."""

    def write(self, _text):
        """Refuse."""
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stderr", [None, Full()], ids=["closed", "full"])
def test_a_stderr_that_takes_nothing(tmp_path, monkeypatch, stderr):
    """Fails when what the probe has to say ends a training that nobody listens to."""
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("MESHSCOPE_MIN_GC_NS", "soon")
    monkeypatch.setattr("sys.stderr", stderr)
    probe.attach(tmp_path / "file")
    train(1)
    probe.detach()


def test_wrong_settings_in_the_environment_are_reported(tmp_path, monkeypatch, capsys):
    """Fails when a typing error in a variable ends a training run."""
    monkeypatch.setenv("MESHSCOPE_MIN_GC_NS", "soon")
    assert probe.attach(tmp_path / "run") is not None
    assert "MESHSCOPE_MIN_GC_NS: 'soon' is not a whole number" in capsys.readouterr().err


def test_everything_is_a_no_op_without_a_session():
    """Fails when instrumented training code needs the probe to run."""
    with probe.span("data_load"):
        probe.step(tokens=1)
    probe.describe(microbatches=4)
    probe.detach()
    assert train(1)


def test_a_broken_recorder_does_not_break_training(tmp_path, capsys):
    """Fails when an error of the probe reaches the training code or repeats without end."""
    alone = train(40)
    session = probe.attach(tmp_path / "run")
    real = session._capture.recorder

    class Broken(type(real)):
        def __init__(self):
            self.rank = self.step = 0

        def _fail(self, *_args, **_kwargs):
            raise ValueError("broken")

        record_span = record_step = record_memory = count = annotate = _fail

        def close(self):
            real.close()

    session._capture.recorder = Broken()
    assert train(40) == alone
    assert not any(
        hook.source.on
        for hook in session._hooks._installed.values()
        if hook.source.name == "compute"
    )
    probe.detach()
    reported = capsys.readouterr().err.splitlines()
    assert 0 < len(reported) < 20


def test_a_forked_child_records_nothing(tmp_path):
    """Fails when a data loader worker writes into its parent's capture or closes it."""
    session = probe.attach(tmp_path / "run")
    train(1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            train(1)
            probe.step()
            probe.detach()
            code = 0 if api._attached is None else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert api._attached is session
    train(1)
    probe.detach()
    assert len(recorded(tmp_path / "run")["step"]) == 2


def test_a_patch_of_another_tool_stays(tmp_path):
    """Fails when detaching removes what another tool put over our wrapper."""
    original = vars(nn.Module)["__call__"]
    probe.attach(tmp_path / "run")
    ours = vars(nn.Module)["__call__"]

    def theirs(module, *args, **kwargs):
        return ours(module, *args, **kwargs)

    nn.Module.__call__ = theirs
    try:
        probe.detach()
        assert vars(nn.Module)["__call__"] is theirs
        assert train(1)
    finally:
        nn.Module.__call__ = original


def test_models_can_still_be_copied_pickled_and_exported(tmp_path):
    """Fails when a wrapper gets in the way of other tools that take modules apart."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.ones(1, 4)
    expected = model(x)
    probe.attach(tmp_path / "run")
    for again in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.fx.symbolic_trace(model),
        torch.export.export(model, (x,)).module(),
    ):
        assert torch.equal(again(x), expected)
    for function in (torch.save, torch.nn.utils.clip_grad_norm_, dcp.save, dcp.async_save):
        assert pickle.loads(pickle.dumps(function)) is function


def test_sources_can_be_left_out(tmp_path):
    """Fails when a source that is not wanted is hooked all the same."""
    before = hooked_attributes()
    probe.attach(tmp_path / "run", probe.ProbeConfig(sources=("steps",)))
    during = hooked_attributes()
    assert during["Module.__call__"] is before["Module.__call__"]
    assert during["Work.wait"] is before["Work.wait"]
    train(2)
    probe.detach()
    tables = recorded(tmp_path / "run")
    assert set(tables["span"]["kind"]) == {"optimizer"}
    assert len(tables["memory"]) == 0


def test_the_training_may_say_its_step(tmp_path):
    """Fails when a trainer that resumed cannot say at which step."""
    probe.attach(tmp_path / "run")
    probe.describe(training_step=1200)
    for _ in range(3):
        probe.step()
    probe.detach()
    (row,) = read_run(tmp_path / "run").tables["attempt"].to_pylist()
    assert (row["first_step"], row["last_step"], row["training_step"]) == (0, 2, 1200)


def test_facts_stated_while_dormant_reach_the_manifest(tmp_path):
    """Fails when a job that is attached to later has lost what it said at its start."""
    probe.describe(model={"seq_len": 64})
    probe.describe(model={"num_layers": 4}, tokens_per_step=512, training_step=7)
    probe.attach(tmp_path / "run")
    train(2)
    probe.detach()
    manifest = read_run(tmp_path / "run").manifest
    assert manifest["model"] == {"seq_len": 64, "num_layers": 4}
    assert manifest["tokens_per_step"] == 512
    capture = read_run(tmp_path / "run")
    assert "training_step" not in capture.rank_manifests[0].get("annotations", {})


def test_a_linked_run_directory_costs_the_capture_only(tmp_path, capsys):
    """Fails when records follow a symbolic link, or training ends because of it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    probe.attach(tmp_path / "run")
    assert len(train()) == 3
    probe.detach()
    assert "is a symbolic link" in capsys.readouterr().err
    assert not list((tmp_path / "elsewhere").iterdir())
