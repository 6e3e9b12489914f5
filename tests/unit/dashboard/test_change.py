"""Changes from run to run whose interval is not known."""

import shutil

from tests.unit.dashboard.conftest import STEPS, write_job

from meshscope.analyze.output.text.comparison import NO_INTERVAL, comparison_document
from meshscope.dashboard.answers.views import comparison
from meshscope.dashboard.callbacks.navigation import page_of
from meshscope.dashboard.figures.change import is_beyond_chance
from meshscope.dashboard.view.state import ViewState

CHANCE = "#ADB5BD"


def test_a_change_of_one_step_is_grey(runs_dir, store):
    """Fails when the noise of a single step is shown in colour, as if it were known to be a change."""
    write_job(runs_dir / "one", steps=1, communicates=False)
    store.entries(max_new=9)
    page = page_of(store, "/run/job/compare", "?before=one")
    assert set(page["change-graph"].figure.data[0].marker.color[:-1]) == {CHANCE}
    text = str(page)
    assert f"grey means {NO_INTERVAL}" in text
    assert "ms-longer" not in text
    assert "ms-shorter" not in text
    result = comparison(store, store.get("job"), ViewState(before="one"))
    assert NO_INTERVAL in str(comparison_document(result))


def test_a_change_of_many_steps_has_its_colour(runs_dir, store):
    """Fails when no change is ever coloured."""
    assert STEPS > 1
    write_job(runs_dir / "silent", communicates=False)
    shutil.copytree(runs_dir / "job", runs_dir / "same")
    store.entries(max_new=9)
    text = str(page_of(store, "/run/job/compare", "?before=silent"))
    assert "ms-longer" in text
    assert NO_INTERVAL not in text
    assert "ms-longer" not in str(page_of(store, "/run/job/compare", "?before=same"))
    assert not is_beyond_chance(1.0, None)
