"""Act when a module is imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Protocol

from ..compat.absent import UnsupportedError
from ..safety.threads import deaf_threads


class Failing(Protocol):
    """Who is told about an error in an action."""

    def failed(self, error: BaseException) -> None:
        """Count the error."""


Action = Callable[[], None]


class ImportWatch(MetaPathFinder):
    """Runs actions right after the body of a module has run.

    The module must look as if nobody had watched: the loader in its spec and
    in ``__loader__`` is its own again before its body runs, because
    ``inspect``, ``pickle`` and reloading read them.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[Action, Failing]]] = {}
        self._before: dict[str, tuple[Action, Failing]] = {}

    def start(self) -> None:
        """Begin to watch imports."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Cease to watch; actions that have not run never will."""
        self._waiting.clear()
        self._before.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def when_imported(self, name: str, action: Action, source: Failing) -> None:
        """Run an action now if the module is there, else when it has been imported."""
        module = sys.modules.get(name)
        if module is not None and not _is_initializing(module):
            _run(action, source)
        else:
            self._waiting.setdefault(name, []).append((action, source))

    def when_loading(self, name: str, action: Action, source: Failing) -> None:
        """Run an action right before the library of a module is loaded, if it is not there yet."""
        self._before[name] = (action, source)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders give, with a loader that tells us."""
        if fullname not in self._waiting and fullname not in self._before:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _TellingLoader(spec.loader, self)
                return spec
        return None

    def loading(self, name: str) -> None:
        """Run the action that is to come before a module."""
        if (before := self._before.pop(name, None)) is not None:
            _run(*before)

    def imported(self, name: str) -> None:
        """Run the actions that wait for a module."""
        for action, source in self._waiting.pop(name, []):
            _run(action, source)


class _TellingLoader(Loader):
    """Loads as the real loader does, then tells the watch."""

    def __init__(self, loader: Any, watch: ImportWatch) -> None:
        self._loader = loader
        self._watch = watch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as the real loader does.

        Threads that its library starts meanwhile get no signal. Python handles none then anyway.
        """
        self._watch.loading(spec.name)
        with deaf_threads():
            module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's body under its real loader, then its actions."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        # The import system does this next. An action may ask another watch
        # for the same module, which has to find it complete.
        if module.__spec__ is not None:
            module.__spec__._initializing = False  # type: ignore[attr-defined]
        self._watch.imported(module.__name__)


def _is_initializing(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


def _run(action: Action, source: Failing) -> None:
    try:
        action()
    except UnsupportedError as reason:
        source.failed(reason)
    except Exception as error:  # noqa: BLE001 - an import of the training code must not fail
        source.failed(error)
