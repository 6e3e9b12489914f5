"""Our frozen dataclasses, made in a third of the time while a command starts.

``dataclass`` compiles each method of each class by itself. A command makes two hundred classes before it
reads a byte: a seventh of a short command. Here methods that depend on nothing but the names of the fields are
shared, and only ``__init__`` is compiled. What a class does is the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any

_OURS = "meshscope."
_OTHER_THAN_FIELDS = ("ClassVar", "InitVar")
_FROZEN = ({"frozen": True, "slots": True}, {"frozen": True, "slots": True, "kw_only": True})
_MADE_HERE = ("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__")
_compiled = dataclasses.dataclass


class _Unset:
    def __repr__(self) -> str:
        return "<factory>"


_UNSET = _Unset()


def quick_dataclasses() -> None:
    """Have our modules that are imported from now on make their frozen dataclasses the quick way.

    For processes that are ours, such as a command: it changes what the whole interpreter imports.
    """
    dataclasses.dataclass = quick_dataclass


def quick_dataclass(cls: type | None = None, /, **stated: Any) -> Any:
    """Return a dataclass, or the decorator that makes one."""

    def decorate(given: type) -> type:
        is_quick = stated in _FROZEN and _is_plain(given)
        return _made(given, stated) if is_quick else _compiled(**stated)(given)

    return decorate if cls is None else decorate(cls)


def _is_plain(given: type) -> bool:
    """Tell whether a class is ours, and nothing but fields in the order of ``__init__`` and methods of its own."""
    own = given.__dict__
    annotations = own.get("__annotations__") or {}
    return (
        given.__module__.startswith(_OURS)
        and given.__bases__ == (object,)
        and bool(annotations)
        and not any(name in own for name in _MADE_HERE if own.get(name) is not None)
        and all(_is_field(name, text, own.get(name)) for name, text in annotations.items())
    )


def _is_field(name: str, annotation: object, default: object) -> bool:
    if not isinstance(annotation, str) or any(word in annotation for word in _OTHER_THAN_FIELDS):
        return False
    if not isinstance(default, dataclasses.Field):
        return name != "self"
    return default.init and default.repr and default.compare and default.hash is None


def _made(given: type, stated: dict[str, Any]) -> type:
    kw_only = stated.get("kw_only", False)
    make = _compiled(slots=True, kw_only=kw_only, init=False, repr=False, eq=False)
    made: Any = make(given)
    fields = dataclasses.fields(made)
    made.__init__ = _initializer(made, fields, kw_only)
    for name, method in _methods(made, tuple(field.name for field in fields)).items():
        method.__qualname__ = f"{made.__qualname__}.{name}"
        setattr(made, name, method)
    said = made.__dataclass_params__
    said.init = said.repr = said.eq = said.frozen = True
    return made  # type: ignore[no-any-return]


def _initializer(
    made: Any, fields: tuple[dataclasses.Field[Any], ...], kw_only: bool
) -> Callable[..., None]:
    known: dict[str, Any] = {"_set": object.__setattr__, "_unset": _UNSET}
    parameters, body = ["self", *(["*"] if kw_only else [])], []
    for at, field in enumerate(fields):
        value = parameter = field.name
        if field.default is not dataclasses.MISSING:
            known[f"_default{at}"] = field.default
            parameter = f"{value}=_default{at}"
        elif field.default_factory is not dataclasses.MISSING:
            known[f"_factory{at}"] = field.default_factory
            parameter = f"{value}=_unset"
            value = f"_factory{at}() if {value} is _unset else {value}"
        parameters.append(parameter)
        body.append(f" _set(self, {field.name!r}, {value})")
    if hasattr(made, "__post_init__"):
        body.append(" self.__post_init__()")
    names, lines = ", ".join(known), "\n ".join(body)
    source = (
        f"def make({names}):\n def __init__({', '.join(parameters)}):\n {lines}\n return __init__"
    )
    scope: dict[str, Any] = {}
    exec(source, {"__name__": made.__module__}, scope)
    begin: Callable[..., None] = scope["make"](**known)
    begin.__qualname__ = f"{made.__qualname__}.__init__"
    begin.__annotations__ = {field.name: field.type for field in fields} | {"return": None}
    return begin


def _methods(made: type, names: tuple[str, ...]) -> dict[str, Any]:
    """Return what compares, shows, keeps and pickles the fields of a class."""
    first = attrgetter(*names)
    values = first if len(names) > 1 else lambda one: (first(one),)
    return _reading(values, names) | _writing(made, values, names)


def _reading(values: Callable[[Any], Any], names: tuple[str, ...]) -> dict[str, Any]:
    @recursive_repr()
    def shown(self: Any) -> str:
        listed = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({listed})"

    def equals(self: Any, other: object) -> Any:
        same = other.__class__ is self.__class__
        return values(self) == values(other) if same else NotImplemented

    def hashed(self: Any) -> int:
        return hash(values(self))

    return {"__repr__": shown, "__eq__": equals, "__hash__": hashed}


def _writing(made: type, values: Callable[[Any], Any], names: tuple[str, ...]) -> dict[str, Any]:
    write = object.__setattr__

    def refuse_to_set(self: Any, name: str, value: object) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        write(self, name, value)

    def refuse_to_delete(self: Any, name: str) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    def state(self: Any) -> list[Any]:
        return list(values(self))

    def restore(self: Any, kept: list[Any]) -> None:
        for name, value in zip(names, kept, strict=False):
            write(self, name, value)

    return {
        "__setattr__": refuse_to_set,
        "__delattr__": refuse_to_delete,
        "__getstate__": state,
        "__setstate__": restore,
    }
