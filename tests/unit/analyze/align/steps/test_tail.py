"""What manifests of ranks tell about steps and saves."""

from meshscope.analyze.align.steps.tail import led_anew, other_updates, unrecorded_saves


def test_a_change_of_the_optimizer_that_ends_steps_is_reported():
    """Fails when a long step before the change has no explanation, or a manifest of another form stops."""
    (limit,) = led_anew({0: {"annotations": {"steps.led_anew": [5]}}, 1: {"annotations": None}})
    assert "From step 5 on" in str(limit)
    assert led_anew({0: {}, 1: {"annotations": {"steps.led_anew": "no list"}}}) == []


def test_updates_of_another_optimizer_are_told():
    """Fails when the steps of a GAN are updates of its critic, and nobody is told."""
    (limit,) = other_updates({0: {"annotations": {"steps.other_updates": [64, 12]}}, 1: {}})
    assert "had 12 updates in 64 steps" in str(limit)
    assert other_updates({0: {"annotations": {"steps.other_updates": ["many"]}}, 1: {}}) == []


def test_saves_in_the_background_are_what_a_hang_may_be_in():
    """Fails when a deadlock in an asynchronous save is not said to be out of sight."""
    saved = {"counters": {"background_save_collectives": 3}}
    (limit,) = unrecorded_saves({0: saved, 1: saved, 2: {}})
    assert str(limit).startswith("6 collectives of checkpoints")
    assert unrecorded_saves({0: {"counters": {}}}) == []
