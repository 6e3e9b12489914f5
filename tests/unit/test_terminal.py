"""Results in the width of a terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from meshscope.analyze.output.document import Item, Lines, Listing, Table
from meshscope.analyze.output.render import to_plain
from meshscope.analyze.synthetic import SyntheticJob, generate
from meshscope.analyze.synthetic.run_directory import write_run
from meshscope.commands.terminal import LEAST_WIDTH, on_terminal
from meshscope.probe.schema.layout import ParallelLayout

HEADERS = ("rank", "work vs peers", "waited ms/step", "came early ms/step", "arrived last")
ROWS = [
    [rank, f"{1 + rank / 9:.3f} x", "17.556", "22.790", f"{270 + rank}/504"] for rank in range(12)
]


def drawn(document, width):
    """Return the lines of a document as a terminal of a width shows it, without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(document, width)).split("\n")


def test_a_wide_table_goes_on_below_with_its_first_column():
    """Fails when the terminal breaks the lines of a table, or a cell gets lost."""
    lines = drawn([Table(HEADERS, ROWS)], LEAST_WIDTH)
    assert max(map(len, lines)) <= LEAST_WIDTH
    first, second = "\n".join(lines).split("\n\n")
    for part in (first, second):
        assert [line.split()[0] for line in part.split("\n")] == ["rank", *map(str, range(12))]
    shown = " ".join(lines)
    assert all(header in shown for header in HEADERS)
    assert all(str(cell) in shown for row in ROWS for cell in row)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_long_sentence_goes_on_under_its_first_word(width):
    """Fails when words are lost, or the lines of a finding cannot be distinguished from the next one."""
    words = " ".join(f"word{number}" for number in range(40))
    lines = drawn([Listing([Item(words, [words])], first_number=12)], width)
    assert max(map(len, lines)) <= width
    assert {len(line) - len(line.lstrip()) for line in lines} == {0, 4, 6}
    assert " ".join(lines).split().count("word39") == 2


def test_bars_keep_their_proportions():
    """Fails when the waterfall is cut, so that long bars look alike."""
    rows = [("forward " + 24 * "-", "75.00 %", "12.000"), ("other", "25.00 %", "4.000")]
    lines = drawn([Table(("class", "share", "ms"), rows, bars=[1.0, 0.5])], 70)
    bars = [line.count("#") for line in lines[1:]]
    assert max(map(len, lines)) <= 70
    assert 0 < bars[0] < 32
    assert abs(bars[0] - 2 * bars[1]) <= 1


def test_what_fits_is_not_touched():
    """Fails when spaces of a report change though there is room."""
    document = [Table(("rank", "ms"), [[0, 1]]), Lines(["a limit"])]
    assert drawn(document, LEAST_WIDTH) == to_plain(document).split("\n")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a small run whose report is wider than most terminals."""
    job = SyntheticJob(layout=ParallelLayout(dp=2), steps=4)
    return write_run(job, generate(job)[0], None, tmp_path_factory.mktemp("runs"))


def seen_on_a_terminal(command, columns):
    """Return what a command writes to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(command, stdout=theirs, env=environment) as process:
        os.close(theirs)
        parts = []
        while part := _read(ours):
            parts.append(part)
    os.close(ours)
    assert process.returncode == 0
    return b"".join(parts).decode().replace("\r\n", "\n")


def _read(descriptor):
    """Return some bytes of a terminal, none once nobody holds its other end."""
    try:
        return os.read(descriptor, 65_536)
    except OSError:
        return b""


def test_a_terminal_gets_its_width_and_a_pipe_the_whole_lines(run):
    """Fails when a person gets lines that are broken anywhere, or a program broken ones."""
    command = [sys.executable, "-m", "meshscope", "diagnose", str(run)]
    piped = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    shown = seen_on_a_terminal(command, 72)
    body = re.sub(r"\x1b\[[0-9;]*m", "", shown.split("\nPages: ")[0])
    assert max(map(len, body.split("\n"))) <= 72 < max(map(len, piped.split("\n")))
    # The command to go on with is copied as one line.
    assert shown.split("\nPages: ")[1] == piped.split("\nPages: ")[1]
