"""The variable and the file that keep the probe off."""

import pytest

from meshscope.probe.job import kill_switch
from meshscope.probe.job.kill_switch import DisableWatch, why_disabled


@pytest.mark.parametrize(
    ("value", "is_off"), [("1", True), ("yes", True), ("0", False), ("", False)]
)
def test_the_variable(value, is_off):
    """Fails when the variable is not obeyed, or 0 counts as set."""
    assert bool(why_disabled({"MESHSCOPE_DISABLE": value}, None)) is is_off


def test_the_file(tmp_path):
    """Fails when a file of that name does not count, whatever it is."""
    assert why_disabled({}, tmp_path) == ""
    (tmp_path / "disable").symlink_to("nowhere")
    assert str(tmp_path) in why_disabled({}, tmp_path)


def test_the_watch_looks_in_time_and_acts_once(tmp_path, monkeypatch):
    """Fails when the file is looked for at each wake, too late, or acted upon twice."""
    clock = [0]
    acted = []
    monkeypatch.setattr(kill_switch, "now_ns", lambda: clock[0])
    watch = DisableWatch(tmp_path, lambda: acted.append(clock[0]))
    (tmp_path / "disable").touch()
    for clock[0] in (1, kill_switch.LOOK_NS - 1, kill_switch.LOOK_NS, 3 * kill_switch.LOOK_NS):
        watch.look()
    assert acted == [kill_switch.LOOK_NS]
