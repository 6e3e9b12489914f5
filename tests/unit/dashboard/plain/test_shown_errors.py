"""Errors as a page shows them."""

from pathlib import Path

from meshscope.analyze.wording.message import error_to_json, message
from meshscope.dashboard.plain.shown_errors import shown_from
from meshscope.probe.schema.errors import RunDirectoryError, TraceFormatError

FOLDER = Path("/data/runs")


def test_an_error_keeps_its_codes_and_loses_the_folder():
    """A program would read no code of a run that cannot be read, or every reader the paths of the host."""
    error = TraceFormatError(
        message("refused.because", what=message("refused.no_trace"), reasons=[FOLDER / "a" / "x"]),
        where=str(FOLDER / "a"),
        remedy=message("advice.path"),
    )
    shown = shown_from(error, FOLDER)
    assert isinstance(shown, RunDirectoryError)
    assert str(shown) == "a: is not a trace that meshscope reads (a/x). Check the path"
    assert error_to_json(shown)["error_messages"] == {
        "what": {
            "code": "refused.because",
            "values": {"what": {"code": "refused.no_trace", "values": {}}, "reasons": ["a/x"]},
        },
        "remedy": {"code": "advice.path", "values": {}},
    }
