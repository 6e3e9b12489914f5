"""Tests that measure time run alone, and the others beside each other."""

import threading

from tests.turns import turn

PATIENCE_S = 60


class Test:
    """A test of another process, which waits for its turn and then runs until it is told to end."""

    __test__ = False

    def __init__(self, place, *, alone):
        """Start it."""
        self.runs, self.end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._take, args=(place, alone))
        self._thread.start()

    def _take(self, place, alone):
        with turn(place, alone=alone):
            self.runs.set()
            self.end.wait(PATIENCE_S)

    def finish(self):
        """End it, once it has had its turn."""
        assert self.runs.wait(PATIENCE_S)
        self.end.set()
        self._thread.join()


def test_a_test_that_must_be_alone_waits_for_all_others_and_they_for_it(tmp_path):
    """Fails when a test that measures time runs beside another, or all run one by one."""
    first, second = (Test(tmp_path / "turn", alone=False) for _ in range(2))
    assert first.runs.wait(PATIENCE_S)
    assert second.runs.wait(PATIENCE_S)
    alone = Test(tmp_path / "turn", alone=True)
    first.finish()
    assert not alone.runs.is_set()
    second.finish()
    assert alone.runs.wait(PATIENCE_S)
    late = Test(tmp_path / "turn", alone=False)
    assert not late.runs.is_set()
    alone.finish()
    late.finish()
