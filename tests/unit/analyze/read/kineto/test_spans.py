"""Data loading and checkpoints that only Python stacks show."""

import pytest
from tests.kineto_files import complete, launched, step, write

from meshscope.analyze import load_trace

LENGTH = 50_000
LOADER = "torch/utils/data/dataloader.py(630): __next__"


def spans(tmp_path, *calls, note=None):
    """Return kind, start in us and length in us of the spans of two steps with these Python functions: name, thread, start, length."""
    events = []
    for number in range(2):
        at = number * LENGTH
        events += [
            step(number, at, LENGTH),
            *launched("gemm", at + 20_005, at + 20_050, 9000, number + 1),
        ]
        events += [
            complete("python_function", name, at + start, dur, tid=thread)
            for name, thread, start, dur in calls
        ]
        if note:
            events.append(complete("user_annotation", note, at + 100, 5000))
    table = load_trace(write(tmp_path / "rank0.json", events)).frame("span")
    times = table[["start_ns", "dur_ns"]].to_numpy() // 1000
    return [(str(kind), *row) for kind, row in zip(table["kind"], times.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (LOADER, "data_load"),
        ("C:\\py\\accelerate\\data_loader.py(550): __iter__", "data_load"),
        ("/opt/nvidia/dali/plugin/pytorch/__init__.py(211): __next__", "data_load"),
        ("/app/my_dataset.py(5): get_batch", "data_load"),
        ("torch/serialization.py(850): save", "checkpoint"),
        ("/megatron/training/checkpointing.py(300): save_checkpoint", "checkpoint"),
    ],
)
def test_functions_of_loaders_and_checkpoints_are_spans(tmp_path, name, kind):
    """Fails when data loading that only a stack shows is told as a host that launches nothing."""
    assert spans(tmp_path, (name, 1, 100, 8000)) == [(kind, 100, 8000), (kind, 50_100, 8000)]


@pytest.mark.parametrize(
    "name",
    [
        "dataset/train.py(10): main",
        "dataset/train.py(10): forward",
        "torch/nn/modules/module.py(1): __iter__",
        "/app/dataloader.py(10): __init__",
    ],
)
def test_other_functions_are_none(tmp_path, name):
    """Fails when a whole program counts as data loading because its folder is called so."""
    assert spans(tmp_path, (name, 1, 100, 8000)) == []


def test_functions_inside_others_count_once(tmp_path):
    """Fails when one wait for data is several."""
    inner = "torch/utils/data/dataloader.py(1316): _next_data"
    found = spans(tmp_path, (LOADER, 1, 100, 8000), (inner, 1, 200, 7000))
    assert [row[1:] for row in found] == [(100, 8000), (50_100, 8000)]


def test_background_threads_stop_nobody(tmp_path):
    """Fails when a thread that fetches ahead counts as a stall."""
    assert spans(tmp_path, (LOADER, 9, 100, 8000)) == []


def test_annotations_come_first(tmp_path):
    """Fails when a wait for data that is annotated too has two lengths."""
    note = "enumerate(DataLoader)#_Iter.__next__"
    found = spans(tmp_path, (LOADER, 1, 100, 8000), note=note)
    assert [row[2] for row in found] == [5000, 5000]
