"""`meshscope gate ab` from the command line: what is refused, and a job that fails."""

from __future__ import annotations

import sys

import pytest
from tests.unit.test_gate_command import run

from meshscope.probe.schema.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--base", "", "--cand", "true"), "--base: is empty"),
        (("--base", "true", "--cand", "echo 'x"), "--cand: No closing quotation"),
        (("--base", "true", "--cand", "true", "--margin", "2"), "For 1 % write 0.01"),
        (("--base", "true", "--cand", "true", "--junit", "no/folder/x.xml"), "there is no folder"),
    ],
)
def test_slips_are_refused_before_a_job_starts(words, part, tmp_path):
    """An hour of two jobs would end in an error that was there from the start."""
    with pytest.raises(ConfigError, match=part):
        run("ab", *words, "--runs-dir", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_job_that_fails_ends_the_comparison(tmp_path):
    """A broken candidate would be compared by what it did before it broke."""
    command = f'{sys.executable} -c "raise SystemExit(3)"'
    with pytest.raises(ConfigError, match="ended with exit code 3"):
        run("ab", "--base", command, "--cand", command, "--runs-dir", tmp_path)
