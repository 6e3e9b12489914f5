"""Public names that are imported when they are first used."""

import subprocess
import sys

import pytest

from meshscope import analyze, probe
from meshscope.probe.schema.first_use import at_first_use


def test_a_name_is_found_once_and_kept():
    """Fails when each use of a public name, such as that of a step, pays for an import."""
    package = {"__name__": "meshscope.probe.schema"}
    find, names = at_first_use(package, {"Axis": "terms"})
    assert "Axis" in names()
    assert package.get("Axis") is None
    assert (
        find("Axis")
        is package["Axis"]
        is __import__("meshscope.probe.schema.terms", fromlist=["Axis"]).Axis
    )


@pytest.mark.parametrize("package", [analyze, probe])
def test_other_names_are_no_attributes(package):
    """Fails when a misspelt name is anything but an AttributeError that tells it."""
    with pytest.raises(AttributeError, match="has no attribute 'atach'"):
        _ = package.atach
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize(
    ("module", "left_out"),
    [
        ("meshscope.probe", "meshscope.probe.api"),
        ("meshscope.analyze", "meshscope.analyze.load.load"),
    ],
)
def test_a_package_alone_imports_little(module, left_out):
    """Fails when the command line, or a reader of the schema, loads all hooks or all analyses."""
    program = f"import {module}, sys; print({left_out!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"False"
