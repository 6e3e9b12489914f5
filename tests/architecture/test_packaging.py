"""What a user installs."""

import tomllib
from importlib.metadata import distributions

import pytest
from packaging.specifiers import SpecifierSet

OLDEST_PYTHON = "3.11.2"
"""That of Debian 12. The README promises that Python 3.11 is enough."""


@pytest.fixture(scope="module")
def wheel_names(built):
    """Return the names in the wheel."""
    return built.wheel_names


def test_wheel_holds_one_package(wheel_names):
    """Fails when the wheel puts a second top-level name into a user's environment."""
    tops = {name.split("/")[0] for name in wheel_names}
    assert "meshscope" in tops
    assert not [top for top in tops - {"meshscope"} if not top.endswith(".dist-info")]


def test_wheel_holds_every_source(wheel_names, sources, project_dir):
    """Fails when a module or data file of the sources is missing from the wheel."""
    wanted = {
        f"meshscope/{source.name}".replace("meshscope/src/meshscope", "meshscope")
        for source in sources
    }
    for folder, pattern in (
        ("dashboard/assets", "*"),
        ("dashboard/charts", "*"),
        ("reference_trainer/configs", "*.toml"),
        ("analyze/wording", "*.toml"),
        ("probe/schema", "*.toml"),
    ):
        files = [path for path in (project_dir / folder).glob(pattern) if path.is_file()]
        wanted |= {f"meshscope/{path.relative_to(project_dir).as_posix()}" for path in files}
    assert not wanted - wheel_names
    assert "meshscope/py.typed" in wheel_names


def test_wheel_brings_its_licence(wheel_names):
    """Fails when the licence text does not travel with the package."""
    assert any(name.endswith("/licenses/LICENSE") for name in wheel_names)


def test_constraints_pin_every_requirement(project_dir):
    """Fails when a package that CI installs is not pinned to one version."""
    project = tomllib.loads((project_dir / "pyproject.toml").read_text())["project"]
    asked = set(project["dependencies"])
    for extra, requirements in project["optional-dependencies"].items():
        asked |= set(requirements) if extra != "all" else set()
    lines = (project_dir / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all("==" in pin for pin in pins)
    pinned = {_plain_name(pin) for pin in pins}
    assert not {_plain_name(requirement) for requirement in asked} - pinned


def _plain_name(requirement: str) -> str:
    name = requirement
    for end in "[<>=!~; ":
        name = name.split(end)[0]
    return name.lower().replace("_", "-")


def test_the_pins_fit_the_oldest_python():
    """Fails when `make demo` ends in a riddle of the resolver on a machine of the README."""
    too_new = [
        f"{own.metadata['Name']} {own.version} needs {needs}"
        for own in distributions()
        if (needs := own.metadata.get("Requires-Python"))
        and not SpecifierSet(needs).contains(OLDEST_PYTHON)
    ]
    assert not too_new
