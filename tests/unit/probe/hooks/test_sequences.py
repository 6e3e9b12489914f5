"""What the training code tells of the sequences of its microbatches."""

import numpy as np
import pytest
import torch
from torch import nn

from meshscope import probe
from meshscope.probe.hooks.sequences import work_of
from meshscope.probe.reader.run import read_run


@pytest.fixture(autouse=True)
def _detached():
    """Detach whatever a test leaves attached."""
    yield
    probe.detach()


def rows(run_dir):
    """Return step, microbatch, tokens and sum of squares of what was recorded."""
    frame = read_run(run_dir).tables["microbatch"].to_pandas()
    return frame[["step", "microbatch", "tokens", "sum_sq"]].to_numpy().tolist()


@pytest.mark.parametrize(
    "lengths",
    [
        [3, 4],
        (n for n in (3, 4)),
        np.array([3, 4], np.int32),
        torch.tensor([3, 4], dtype=torch.int32),
    ],
    ids=["list", "generator", "numpy", "torch"],
)
def test_work_is_the_sum_of_lengths_and_of_their_squares(lengths):
    """Fails when one of the forms in which programs hold lengths is not understood."""
    assert work_of(lengths) == (7, 25)


def test_squares_do_not_overflow():
    """Fails when the square of a long sequence is taken in 32 bits."""
    assert work_of(np.array([1 << 17], np.int32)) == (1 << 17, 1 << 34)


@pytest.mark.parametrize("wrong", [[-1], [1.5], [[1]], 3, None, torch.empty(2, device="meta")])
def test_what_is_no_length_is_counted_and_training_goes_on(tmp_path, wrong, capfd):
    """Fails when a wrong call ends a training, makes it wait for a device, or leaves a number behind."""
    probe.attach(tmp_path / "run")
    probe.sequences(wrong)
    probe.sequences([5])
    probe.step()
    probe.detach()
    assert rows(tmp_path / "run") == [[0, 1, 5, 25]]
    assert "sequences: " in capfd.readouterr().err


def test_calls_of_a_step_are_its_microbatches_in_their_order(tmp_path):
    """Fails when the numbers do not begin anew with each step, or one that is named is ignored."""
    probe.attach(tmp_path / "run")
    for reported in ([[1], [2, 2]], [[3]]):
        for lengths in reported:
            probe.sequences(lengths)
        probe.step()
    probe.sequences([4], microbatch=5)
    probe.sequences([6])
    probe.step()
    probe.detach()
    assert rows(tmp_path / "run") == [
        [0, 0, 1, 1],
        [0, 1, 4, 8],
        [1, 0, 3, 9],
        [2, 5, 4, 16],
        [2, 6, 6, 36],
    ]


def test_what_is_reported_before_the_rank_is_known_is_kept(tmp_path):
    """Fails when the first step of a job, which begins before its process group, lacks its work."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe.attach(tmp_path / "run")
    for length in (7, 9):
        probe.sequences([length])
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    probe.detach()
    assert rows(tmp_path / "run") == [[0, 0, 7, 49], [1, 0, 9, 81]]


def test_nothing_is_done_without_a_session():
    """Fails when a training that is not watched pays for, or is ended by, what it would tell."""
    probe.sequences(None)


def test_nothing_is_kept_where_only_steps_are(tmp_path):
    """Fails when the cheapest level pays for records that no pass goes with, or the numbers of later ones move."""
    session = probe.attach(tmp_path / "run")
    probe.step()
    session.set_level("steps")
    probe.step()
    probe.sequences([3])
    session.set_level("stages")
    probe.step()
    probe.sequences([4])
    probe.step()
    probe.detach()
    assert rows(tmp_path / "run") == [[3, 0, 4, 16]]


def test_what_is_reported_is_part_of_the_cost(tmp_path):
    """Fails when a program that tells thousands of lengths a step is not seen to pay for it."""
    session = probe.attach(tmp_path / "run")
    before = session._capture.meter.total_ns()
    for _ in range(100):
        probe.sequences(range(1000))
    assert session._capture.meter.total_ns() - before > 100 * 10_000
