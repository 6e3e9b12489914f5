"""pandas, loaded when something of it is first used, so that short commands do without it.

Loading pandas takes as much time as all else that a command imports. Most modules here import it at
their top, though of a small input many of them never make a frame.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from copy import copy
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any

import pyarrow as pa

_NAME = "pandas"
_LOCK = RLock()
"""Another thread waits for the package; parts of it that ask for one another do not."""


def pandas_at_first_use() -> None:
    """Have ``import pandas`` wait until something of pandas is used.

    For processes that are ours, such as a command: it changes what the whole interpreter imports.
    Nothing happens where pandas was loaded already, or is not installed.
    """
    spec = None if _NAME in sys.modules else find_spec(_NAME)
    if spec is None:
        return
    _have_arrow_do_without()
    module = module_from_spec(spec)
    module.__class__ = _AtFirstUse
    sys.modules[_NAME] = module
    sys.meta_path.insert(0, _WholeBeforeParts(module))


class _AtFirstUse(ModuleType):
    """A package that is loaded when an attribute is asked for that it does not have yet."""

    def __getattr__(self, name: str) -> Any:
        _load(self)
        return getattr(self, name)


def _load(module: ModuleType) -> None:
    with _LOCK:
        if type(module) is not _AtFirstUse:
            return
        module.__class__ = _Loading  # type: ignore[assignment]
        assert module.__spec__ is not None
        assert module.__spec__.loader is not None
        try:
            module.__spec__.loader.exec_module(module)
        except BaseException:
            module.__class__ = _AtFirstUse
            raise
        module.__class__ = ModuleType  # type: ignore[assignment]
    # Arrow finds pandas from now on: it looks for it again where a frame is asked for.
    pa.schema([]).empty_table().to_pandas()


class _Loading(ModuleType):
    """A package that is being loaded: other threads wait, its own parts take what there is."""

    def __getattr__(self, name: str) -> Any:
        with _LOCK:
            if name in self.__dict__:
                return self.__dict__[name]
        raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")


class _WholeBeforeParts(MetaPathFinder):
    """Loads the package before the first of its modules that is imported by itself."""

    def __init__(self, package: ModuleType) -> None:
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_part = fullname.startswith(f"{_NAME}.") and type(self._package) is _AtFirstUse
        if not is_part:
            return None
        _load(self._package)
        part = sys.modules.get(fullname)
        if part is None or part.__spec__ is None:
            return None
        # The import system prefers the spec of a module that is there, and would load it once more.
        loaded, part.__spec__ = part.__spec__, copy(part.__spec__)
        part.__spec__.loader = _Loaded(part, loaded)
        return part.__spec__


class _Loaded(Loader):
    """Gives a module that came with the package."""

    def __init__(self, module: ModuleType, spec: ModuleSpec) -> None:
        self._module, self._spec = module, spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Hidden(MetaPathFinder):
    """Finds no pandas."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if fullname == _NAME:
            raise ModuleNotFoundError(f"No module named {_NAME!r}", name=_NAME)


def _have_arrow_do_without() -> None:
    """Have Arrow look for pandas in vain: it does with its first array, to know classes of pandas.

    Arrow 17 looks anew with each array: there nothing is saved.
    """
    hidden = _Hidden()
    sys.meta_path.insert(0, hidden)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(hidden)
