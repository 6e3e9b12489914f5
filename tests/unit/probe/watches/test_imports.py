"""Acting on an import is invisible to the module that is imported."""

import importlib
import inspect
import signal
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec

import pytest

from meshscope.probe.watches.imports import ImportWatch


class Failures(list):
    """A source that only collects errors."""

    def failed(self, error):
        """Keep the error."""
        self.append(error)


@pytest.fixture
def watch():
    """Return a watch that is stopped at the end."""
    watch = ImportWatch()
    watch.start()
    yield watch
    watch.stop()


@pytest.fixture
def module_name(tmp_path, monkeypatch):
    """Return the name of a module that nobody has imported."""
    name = "watched_module_of_a_test"
    (tmp_path / f"{name}.py").write_text("LOADER = __spec__.loader\nvalue = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_an_action_runs_after_the_body(watch, module_name):
    """Fails when hooks are put into a module whose classes do not exist yet."""
    seen, failures = [], Failures()
    watch.when_imported(module_name, lambda: seen.append(sys.modules[module_name].value), failures)
    assert seen == []
    importlib.import_module(module_name)
    assert (seen, failures) == ([1], [])


def test_a_module_that_is_there_is_acted_on_at_once(watch, module_name):
    """Fails when attaching after the import has no effect."""
    importlib.import_module(module_name)
    seen = []
    watch.when_imported(module_name, lambda: seen.append(1), Failures())
    assert seen == [1]


def test_the_module_keeps_its_own_loader(watch, module_name):
    """Fails when source lookup, reloading or pickling of a watched module breaks."""
    watch.when_imported(module_name, lambda: None, Failures())
    module = importlib.import_module(module_name)
    assert module.LOADER is module.__spec__.loader is module.__loader__
    assert "value = 1" in inspect.getsource(module)
    assert importlib.reload(module).value == 1


class Library(Loader):
    """Notes which signals are blocked while it is loaded."""

    def create_module(self, spec):
        """Load it."""
        self.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def exec_module(self, module):
        """Do nothing."""

    def find_spec(self, name, path, target=None):
        """Return the spec of the library that a test imports."""
        return ModuleSpec(name, self) if name == "library_of_a_test" else None


def test_threads_that_a_library_starts_take_no_signal(watch, monkeypatch):
    """Fails when Kineto's client gets the signals that a training blocks, and dies of them."""
    library, before = Library(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, library])
    watch.when_imported("library_of_a_test", lambda: None, Failures())
    importlib.import_module("library_of_a_test")
    del sys.modules["library_of_a_test"]
    assert signal.SIGTERM in library.blocked
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_an_action_may_ask_another_watch_for_the_same_module(watch, module_name):
    """Fails when the launcher's watch hands over to a session that then never starts."""
    seen, inner = [], ImportWatch()
    inner.start()

    def hand_over():
        inner.when_imported(module_name, lambda: seen.append(1), Failures())

    watch.when_imported(module_name, hand_over, Failures())
    importlib.import_module(module_name)
    inner.stop()
    assert seen == [1]


def test_an_error_in_an_action_does_not_fail_the_import(watch, module_name):
    """Fails when a bug of the probe makes ``import torch`` fail."""
    failures = Failures()
    watch.when_imported(module_name, lambda: 1 / 0, failures)
    assert importlib.import_module(module_name).value == 1
    assert [type(error) for error in failures] == [ZeroDivisionError]


def test_a_missing_module_stays_missing(watch):
    """Fails when watching hides that a module does not exist."""
    watch.when_imported("no_module_of_this_name", lambda: None, Failures())
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_module_of_this_name")


def test_stopping_leaves_the_import_path_as_it_was():
    """Fails when a detached probe stays in the import system."""
    before = list(sys.meta_path)
    watch = ImportWatch()
    watch.start()
    watch.stop()
    assert sys.meta_path == before


def test_what_is_to_come_before_a_library_comes_once_and_before(watch, monkeypatch):
    """Fails when ``import torch`` starts the thread that was to be asked about first."""
    library, seen = Library(), []
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, library])
    watch.when_loading("library_of_a_test", lambda: seen.append(hasattr(library, "blocked")), None)
    for _ in range(2):
        importlib.import_module("library_of_a_test")
        del sys.modules["library_of_a_test"]
    assert seen == [False]
