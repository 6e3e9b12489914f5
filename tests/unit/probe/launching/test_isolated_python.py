"""A Python that cannot be reached is found out before it starts."""

import pytest

from meshscope.probe.launching.isolated_python import deaf_option


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["python", "-I", "train.py"], "-I"),
        (["/usr/bin/python3.11", "-uE", "train.py"], "-E"),
        (["python3", "-X", "dev", "-S", "train.py"], "-S"),
        (["python3", "-Xdev", "-W", "error", "-I", "-m", "train"], "-I"),
        (["python", "-P", "train.py"], ""),
        (["python", "-u", "train.py", "-I"], ""),
        (["python", "-m", "train", "-E"], ""),
        (["python", "-cimport S"], ""),
        (["python", "-W", "-I", "train.py"], ""),
        (["torchrun", "-S", "train.py"], ""),
        (["python-config", "-I"], ""),
        (["python"], ""),
    ],
)
def test_the_option_that_keeps_it_from_us(command, option):
    """Fails when nothing is recorded and nobody is told why, or a user is warned for nothing."""
    assert deaf_option(command, path="") == option


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("#!/usr/bin/python3 -I", "-I"),
        ("#!/usr/bin/env -S python3 -E", "-E"),
        ("#!/usr/bin/env python3", ""),
        ("#!/bin/sh -E", ""),
        ("", ""),
    ],
)
def test_the_first_line_of_a_script(tmp_path, line, option):
    """Fails when a program that a package has installed for ``python -I`` is started in silence."""
    script = tmp_path / "train"
    script.write_text(line + "\nprint()\n", encoding="utf-8")
    script.chmod(0o755)
    assert deaf_option([str(script)], path="") == option
