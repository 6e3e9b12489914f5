"""Synthetic batches are a function of seed, step and replica."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest
import torch

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.config import (
    DataConfig,
    ModelConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)
from meshscope.reference_trainer.config.fault_plan import parse_fault, resolve
from meshscope.reference_trainer.faults.faults import SlowLoading
from meshscope.reference_trainer.run.data import (
    MicrobatchWork,
    batches,
    document_lengths,
    global_batch,
)

CONFIG = TrainerConfig(layout=ParallelLayout(dp=2))


def test_the_replicas_share_the_global_batch_without_overlap():
    """Fails if replicas train on the same or on missing sequences."""
    shares = zip(batches(CONFIG, 0), batches(CONFIG, 1), strict=True)
    for step, parts in enumerate(shares):
        ids, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        expected_ids, expected_labels = global_batch(CONFIG, step)
        assert torch.equal(ids, expected_ids)
        assert torch.equal(labels, expected_labels)


def test_steps_differ_and_labels_are_the_next_tokens():
    """Fails if every step repeats the same batch, or the task is shifted."""
    ids, labels = global_batch(CONFIG, 0)
    assert torch.equal(ids[:, 1:], labels[:, :-1])
    assert not torch.equal(ids, global_batch(CONFIG, 1)[0])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_resumed_run_reads_on_where_it_was(num_workers):
    """Fails if a run that goes on repeats or skips data, or calls a step by another number."""
    config = replace(CONFIG, train=TrainConfig(steps=4), data=DataConfig(num_workers=num_workers))
    held = (resolve(parse_fault("data_stall:rank=0,delay_ms=1,start=3"), config.layout, 0),)
    steps = []
    rest = batches(
        config, 0, first_step=2, stall=SlowLoading(held), log=lambda step, _: steps.append(step)
    )
    whole = [ids for ids, _ in batches(config, 0)]
    assert [torch.equal(a, b) for a, (b, _) in zip(whole[2:], rest, strict=True)] == [True, True]
    assert steps == [3]


def test_workers_load_the_same_batches_and_tell_when_they_were_held_up():
    """Fails if worker processes change the data, or a stall in one of them is lost."""
    config = replace(CONFIG, train=TrainConfig(steps=3), data=DataConfig(num_workers=1))
    stalls = []
    stall = SlowLoading(
        (resolve(parse_fault("data_stall:rank=0,delay_ms=5,start=1,stop=2"), config.layout, 0),)
    )
    loaded = list(
        batches(config, 0, stall=stall, log=lambda step, span: stalls.append((step, span)))
    )
    for (ids, _), (expected, _) in zip(loaded, batches(config, 0), strict=True):
        assert torch.equal(ids, expected)
    assert [step for step, _ in stalls] == [1]
    start_ns, end_ns = stalls[0][1]
    assert end_ns - start_ns >= 5_000_000


def test_packed_documents_start_anew_and_labels_are_the_next_tokens():
    """Fails if packing shifts the task, or fills sequences with one document."""
    config = replace(CONFIG, data=DataConfig(documents="long_tail", median_document=4))
    ids, labels = global_batch(config, 0)
    assert torch.equal(ids[:, 1:], labels[:, :-1])
    assert ids.shape == (config.train.global_batch, config.model.seq_len)
    strides = (labels - ids) % config.model.vocab
    assert (strides > 4).any()
    assert (strides <= 4).float().mean() > 0.5


def test_a_text_is_read_as_bytes_from_places_that_the_seed_draws(tmp_path):
    """Fails if tokens are not those of the file, or every step reads the same place."""
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(256)) * 4)
    config = replace(CONFIG, data=DataConfig(text=str(path)))
    ids, labels = global_batch(config, 0)
    assert torch.equal((ids + 1) % 256, labels)
    assert not torch.equal(ids, global_batch(config, 1)[0])
    path.write_bytes(b"short")
    with pytest.raises(ConfigError, match="5 bytes, fewer than the 33"):
        global_batch(config, 0)
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        global_batch(config, 0)


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
