"""A deep trace that is armed for a page."""

from meshscope.commands.arming import arm_aside


def test_why_nothing_is_recorded_is_reported_without_a_path(tmp_path):
    """Fails when the page of a job whose ranks do not answer says nothing, or where its folder lies."""
    (tmp_path / "job").mkdir()
    said = arm_aside(tmp_path / "job")
    assert said.startswith("job: ")
    assert str(tmp_path) not in said
