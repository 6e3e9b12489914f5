"""Messages of errors: made into sentences when they are shown."""

import pickle
import subprocess
import sys

import pytest

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.message import cell_to_json, message, message_to_cell, message_to_json
from meshscope.probe.schema.sentences import error_sentences

REFUSED = ConfigError(
    message("refused.no_level", word="everything"),
    where="level",
    remedy=message("advice.choose_from", known=["steps", "stages"]),
)
SHOWN = "level: 'everything' is not a level. Choose from steps, stages"


def test_an_error_is_shown_as_its_sentences():
    """A user would read codes."""
    assert str(REFUSED) == SHOWN
    assert repr(REFUSED) == f'ConfigError("{SHOWN}")'
    assert REFUSED.said["what"].values == {"word": "everything"}


def test_an_error_goes_to_another_process():
    """What a worker refused could not be separated at home."""
    back = pickle.loads(pickle.dumps(REFUSED))
    assert str(back) == SHOWN
    assert back.said == REFUSED.said


def test_a_process_that_shows_no_error_never_reads_the_catalogue():
    """A training process would read and parse a file for an error that it counts and forgets."""
    program = (
        "import sys\n"
        "from meshscope.probe.settings.config import level_of\n"
        "from meshscope.probe.schema.errors import ConfigError\n"
        "try:\n    level_of('everything')\n"
        "except ConfigError as error:\n    caught = error\n"
        "print('meshscope.probe.schema.sentences' in sys.modules, caught.where)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "False level\n"


def test_a_removed_catalogue_ends_in_no_traceback(monkeypatch):
    """A job whose package is replaced while it runs would die of an error's text."""

    def gone(*_):
        raise FileNotFoundError

    error_sentences.cache_clear()
    monkeypatch.setattr("meshscope.probe.schema.sentences.text_of", gone)
    assert str(REFUSED).startswith("level: refused.no_level {'word': 'everything'}")


def test_a_cell_of_a_table_holds_code_and_values():
    """A program that reads a table would have to take the share out of a sentence."""
    inner = message("level.over_budget", share=0.0234, allowed=0.01)
    said = message("level.incomplete", because=inner, level="kernels", missing=["a b", "ü"])
    assert cell_to_json(message_to_cell(said)) == message_to_json(said)
    assert message_to_cell(message("level.asked")) == "level.asked"
    assert cell_to_json("level.asked") == {"code": "level.asked", "values": {}}


@pytest.mark.parametrize(
    "text",
    ["asked for", "stated in mesh.toml", "", "a.b {1}", "a.b [1]", "a.b {" + "[" * 9999 + "}"],
)
def test_a_text_of_an_older_version_is_no_message(text):
    """An old run would end in a traceback, or show a part of a sentence as a code."""
    assert cell_to_json(text) is None
