"""Names of trace files, forth and back."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.probe.schema.deep_trace import (
    TraceName,
    description_file,
    raw_file,
    raw_name,
    read_description,
    sealed_file,
    sealed_name,
)

names = st.builds(
    lambda first, count, ticket: TraceName(first, first + count, ticket),
    st.integers(0, 10**12),
    st.integers(0, 999),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", fullmatch=True),
)


@given(names, st.integers(0, 10**6), st.integers(1, 10**8))
def test_a_name_is_read_as_it_was_written(name, rank, pid):
    """Fails if a trace is taken for one of other steps, of another request or process."""
    folder = Path("traces")
    assert raw_name(raw_file(folder, name, pid)) == (name, pid)
    assert sealed_name(sealed_file(folder, name, rank)) == name
    assert sealed_name(raw_file(folder, name, pid)) is None
    assert raw_name(sealed_file(folder, name, rank)) is None


@pytest.mark.parametrize("text", ["", "step.json", "step1-2.a_3.json", "x/step000001-000002.json"])
def test_other_files_have_no_name(text):
    """Fails if a file of somebody else is compressed and removed."""
    assert raw_name(Path(text)) is None
    assert sealed_name(Path(text)) is None


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00"])
def test_a_damaged_description_says_nothing(tmp_path, text):
    """Fails if a description that cannot be read stops the reader of a run."""
    sealed = sealed_file(tmp_path, TraceName(1, 2, "a"), 3)
    assert read_description(sealed) == {}
    description_file(sealed).write_text(text)
    assert read_description(sealed) == {}
