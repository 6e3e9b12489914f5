"""Public names of a package that are imported when they are first used.

Whoever imports one module of a package runs its ``__init__``: what that imports, everybody
waits for and keeps in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def at_first_use(
    package: dict[str, Any], module_of: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: Its globals; a name is put there once it was used.
        module_of: The module of the package that defines each name.
    """

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        module = import_module(f".{module_of[name]}", package["__name__"])
        package[name] = found = getattr(module, name)
        return found

    def names() -> list[str]:
        return sorted({*package, *module_of})

    return find, names
