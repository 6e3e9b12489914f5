"""Copies of a file in its folder are one recording; two recordings of one rank and time are not."""

import gzip

import pytest
from tests.kineto_files import launched, step, write
from tests.texts import texts

from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError


def _events(length=600):
    return [step(0, 0, 1_000), *launched("gemm", 5, 100, length, 1)]


def test_a_copy_is_left_out(tmp_path):
    """Fails when a file that lies beside its compressed form is refused as a second run."""
    plain = write(tmp_path / "rank0.json", _events())
    (tmp_path / "rank0.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    trace = import_trace(tmp_path)
    assert trace.row_count("kernel") == 1
    assert any(
        "rank0.json.gz left out: it holds the same as" in said for said in texts(trace.limits)
    )


def test_another_recording_is_refused(tmp_path):
    """Fails when one of two runs is silently taken for a copy of the other."""
    write(tmp_path / "rank0.json", _events())
    write(tmp_path / "rank0 (1).json", _events(601))
    with pytest.raises(TraceFormatError):
        import_trace(tmp_path)


def test_a_rank_of_many_digits_is_absurd(tmp_path):
    """Fails when the header is said to name no rank although it names one."""
    trace = import_trace(write(tmp_path / "rank1.json", _events(), rank=12_345_678_901))
    assert trace.ranks == (1,)
    assert any("absurd rank" in said for said in texts(trace.limits))
