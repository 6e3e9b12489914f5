"""Work at the end of a step that another thread asked for."""

from meshscope.probe.listeners import StepListeners


def test_listeners_come_and_go():
    """Fails when a listener is not called, or still called after it was removed."""
    listeners, heard, errors = StepListeners(), [], []

    def once(step):
        heard.append(("once", step))
        remove_once()

    remove = listeners.add(lambda step: heard.append(("always", step)))
    remove_once = listeners.add(once)
    listeners.ended(4, errors.append)
    listeners.ended(5, errors.append)
    remove()
    listeners.ended(6, errors.append)
    assert heard == [("always", 4), ("once", 4), ("always", 5)]
    assert (listeners.step, errors) == (6, [])
    assert listeners.ended_ns > 0
    listeners.reset()
    assert (listeners.step, listeners.ended_ns) == (-1, -1)


def test_who_waits_for_a_step_is_reported_that_none_comes():
    """Fails when what began at a border goes on for ever because the hooks were taken out."""
    listeners, heard, errors = StepListeners(), [], []
    listeners.add(heard.append)
    listeners.add(heard.append, lambda: 1 / 0)
    remove = listeners.add(heard.append, lambda: heard.append("gone"))
    listeners.hooks_gone(errors.append)
    remove()
    listeners.hooks_gone(errors.append)
    assert heard == ["gone"]
    assert [type(error) for error in errors] == [ZeroDivisionError] * 2


def test_a_listener_that_fails_is_heard_once():
    """Fails when an error reaches the training thread, or comes back at every step."""
    listeners, heard, errors = StepListeners(), [], []
    listeners.add(lambda _: 1 / 0)
    listeners.add(heard.append)
    listeners.ended(1, errors.append)
    listeners.ended(2, errors.append)
    assert heard == [1, 2]
    assert [type(error) for error in errors] == [ZeroDivisionError]
