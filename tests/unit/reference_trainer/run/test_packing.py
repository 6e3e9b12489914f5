"""Packed documents, and the work that they make."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.config import (
    DataConfig,
    ModelConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)
from meshscope.reference_trainer.run.packing import MicrobatchWork, document_lengths

PACKED = TrainerConfig(
    layout=ParallelLayout(dp=2),
    model=ModelConfig(seq_len=128),
    schedule=ScheduleConfig(microbatches=2),
    train=TrainConfig(global_batch=8),
    data=DataConfig(documents="long_tail", median_document=8),
)


def test_documents_fill_each_sequence_and_have_a_long_tail():
    """Fails if sequences are not full, or all documents are about as long."""
    packed = [document_lengths(PACKED, 0, sequence) for sequence in range(200)]
    assert {sum(lengths) for lengths in packed} == {128}
    lengths = sorted(length for lengths in packed for length in lengths)
    assert lengths[0] >= 1
    assert lengths[-1] > 8 * lengths[len(lengths) // 2]


def test_the_same_step_has_the_same_documents_on_every_rank():
    """Fails if stages of a pipeline would disagree on the work of a microbatch."""
    assert document_lengths(PACKED, 3, 5) == document_lengths(PACKED, 3, 5)
    assert document_lengths(PACKED, 3, 5) != document_lengths(PACKED, 4, 5)


def test_work_is_the_sum_of_squares_over_the_usual_one():
    """Fails if the work of a microbatch does not follow its documents, or is not usual on average."""
    work = MicrobatchWork(PACKED, 1)
    first, second = work.of_step(7)
    squares = [
        sum(length**2 for place in places for length in document_lengths(PACKED, 7, place))
        for places in ((4, 5), (6, 7))
    ]
    assert first / second == pytest.approx(squares[0] / squares[1])
    assert mean(ratio for step in range(300) for ratio in work.of_step(step)) == pytest.approx(
        1.0, rel=0.1
    )


def test_whole_sequences_have_equal_work():
    """Fails if a run without packing is uneven."""
    plain = TrainerConfig(train=TrainConfig(global_batch=8))
    assert MicrobatchWork(plain, 0).of_step(0) == [1.0] * 4


def test_what_is_reported_of_a_microbatch_is_what_makes_its_time():
    """Fails if the probe is told of documents that nothing in the model keeps apart."""
    work = MicrobatchWork(PACKED, 1)
    apart = work.sequences_of_step(7, apart=True)
    assert [sum(n * n for n in lengths) for lengths in apart] == pytest.approx(
        [ratio * work._usual for ratio in work.of_step(7)]
    )
    assert [sum(lengths) for lengths in apart] == [256, 256]
    even = work.sequences_of_step(7, apart=False)
    assert [sum(lengths) for lengths in even] == [256, 256]
    for lengths in even:
        assert sum(n * n for n in lengths) == pytest.approx(work._usual, rel=0.05)
    whole = MicrobatchWork(replace(PACKED, data=DataConfig()), 1)
    assert whole.sequences_of_step(7, apart=False) == [(128, 128)] * 2
