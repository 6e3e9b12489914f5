"""A dataclass that a command makes quickly is the one that Python makes."""

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, dataclass, field
from typing import ClassVar

import pytest

from meshscope.commands.quick_dataclasses import quick_dataclass


@pytest.fixture
def twice(monkeypatch):
    """Return what makes a class as Python makes it and as a command makes it."""

    def both(name, source, **stated):
        for decorate in (dataclass, quick_dataclass):
            module = type(sys)("meshscope.of_a_test")
            module.__dict__.update(field=field, ClassVar=ClassVar)
            monkeypatch.setitem(sys.modules, module.__name__, module)
            exec("from __future__ import annotations\n" + source, module.__dict__)
            made = decorate(**stated)(getattr(module, name))
            setattr(module, name, made)
            yield made

    return both


_POINT = """
class Point:
    "A place."
    x: int
    label: str = "none"
    marks: list[int] = field(default_factory=list)

    def __post_init__(self):
        if self.x < 0:
            raise ValueError("x")
"""
_ONE = "class One:\n    value: object\n"
_ODD = {
    "hidden": "class Odd:\n    a: int\n    b: int = field(repr=False, compare=False, default=2)\n",
    "constant": "class Odd:\n    kind: ClassVar[int] = 3\n    a: int = 1\n    b: int = 2\n",
    "own equality": "class Odd:\n    a: int\n    b: int = 2\n    def __eq__(self, other): return True\n",
    "not by init": "class Odd:\n    a: int\n    b: int = field(init=False, default=7)\n",
}


def _outcome(call):
    try:
        return call()
    except (TypeError, ValueError, AttributeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("kw_only", [False, True])
def test_a_quick_class_does_what_the_usual_one_does(twice, kw_only):
    """Fails when records of a command compare, hash, show, copy or refuse otherwise than those of a library."""
    stated = {"frozen": True, "slots": True} | ({"kw_only": True} if kw_only else {})
    seen = []
    for cls in twice("Point", _POINT, **stated):
        assert inspect.isfunction(cls.__init__)
        one, same, other = cls(x=1), cls(x=1), cls(x=1, label="b", marks=[2])
        seen.append(
            [
                str(inspect.signature(cls)),
                cls.__doc__,
                cls.__slots__,
                cls.__match_args__,
                repr(other),
                (one == same, one == other, one != 1),
                _outcome(lambda cls=cls: cls()),
                _outcome(lambda cls=cls: cls(1)) == _outcome(lambda cls=cls: cls(x=1)),
                _outcome(lambda cls=cls: cls(x=-1)),
                _outcome(lambda one=one: hash(one)),
                _outcome(lambda one=one: setattr(one, "x", 2)),
                _outcome(lambda one=one: delattr(one, "x")),
                one.marks is not same.marks,
                dataclasses.replace(one, label="c") == cls(x=1, label="c"),
                dataclasses.asdict(other),
                copy.deepcopy(other) == other,
                pickle.loads(pickle.dumps(other)) == other,
                [
                    (f.name, f.type, f.default is dataclasses.MISSING)
                    for f in dataclasses.fields(cls)
                ],
                cls.__dataclass_params__.frozen,
            ]
        )
    for usual, quick in zip(*seen, strict=True):
        assert usual == quick


def test_a_field_alone_is_hashed_as_a_field(twice):
    """Fails when a record of one field has another hash than in a library, or cannot be pickled."""
    usual, quick = twice("One", _ONE, frozen=True, slots=True)
    assert hash(quick(3)) == hash(usual(3)) == hash((3,))
    assert quick(3) == quick(3) != quick(4)
    with pytest.raises(FrozenInstanceError, match="value"):
        quick(3).value = 4


@pytest.mark.parametrize("odd", _ODD)
def test_what_is_not_plain_is_made_the_usual_way(twice, odd):
    """Fails when a class with special fields or methods of its own loses them in a command."""
    usual, quick = twice("Odd", _ODD[odd], frozen=True, slots=True)
    assert str(inspect.signature(quick)) == str(inspect.signature(usual))
    assert repr(quick(a=1)) == repr(usual(a=1))
    assert (quick(a=1) == quick(a=2)) == (usual(a=1) == usual(a=2))


def test_classes_of_others_are_left_alone():
    """Fails when a package that a command loads gets other dataclasses than Python's."""

    @quick_dataclass(frozen=True, slots=True)
    class Theirs:
        a: "int"

    assert Theirs.__setattr__.__module__ != "meshscope.commands.quick_dataclasses"


def test_a_command_that_reads_makes_them_so(tmp_path):
    """Fails when a short command spends a seventh of its time on methods of classes again."""
    program = (
        "import sys\nfrom meshscope.cli import main\n"
        f"sys.argv = ['meshscope', 'diagnose', {str(tmp_path)!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "from meshscope.analyze.tables.results import Finding\n"
        "print(Finding.__setattr__.__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["meshscope.commands.quick_dataclasses"]
