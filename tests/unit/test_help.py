"""The list of verbs: each is said in whole words."""

from typer.testing import CliRunner

from meshscope.cli import app


def test_no_summary_of_a_verb_is_cut_off():
    """Fails when the only line about a verb ends before its object."""
    listing = CliRunner().invoke(app, ["--help"]).stdout.split("Commands:")[1]
    assert "..." not in listing
    assert "Predict the step time after a repair or a changed setting" in listing


def test_a_run_in_place_of_the_folder_of_runs_is_refused(tmp_path):
    """Fails when the dashboard of a single run is served empty."""
    run = tmp_path / "runs" / "mine"
    (run / "rank00000").mkdir(parents=True)
    done = CliRunner().invoke(app, ["dashboard", str(run)])
    assert done.exit_code != 0
    assert "is one run, not a folder of runs" in str(done.exception)
    assert f"meshscope dashboard {tmp_path / 'runs'}" in str(done.exception)
