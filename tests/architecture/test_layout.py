"""Every module has tests that can be found: of its name, or of its folder, or those that contributing.md names."""

from __future__ import annotations

import ast
import re

import pytest

NO_TESTS = {"__init__", "__main__"}
TABLE = re.compile(r"^\| `([\w/]+/)` \| `(tests/[\w/*.]+)`", re.MULTILINE)
"""A row of the table in contributing.md: a folder, and the tests of its modules."""


@pytest.fixture(scope="module")
def imported(test_sources):
    """Return what tests import, by full name."""
    found = set()
    for source in test_sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("meshscope"):
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.fixture(scope="module")
def named(project_dir):
    """Return which tests cover a folder by the table of contributing.md."""
    page = (project_dir / "docs" / "contributing.md").read_text(encoding="utf-8")
    rows = dict(TABLE.findall(page))
    for folder, tests in rows.items():
        assert (project_dir / folder).is_dir(), folder
        assert list(project_dir.glob(tests)), tests
    return rows


def test_every_module_has_tests_that_can_be_found(sources, imported, named, project_dir):
    """Whoever changes a module would have to search for what covers it."""
    unit, lost = project_dir / "tests" / "unit", []
    for source in sources:
        parts = source.name.removesuffix(".py").split("/")
        if parts[-1] in NO_TESTS:
            continue
        own = unit.joinpath(*parts[:-1], f"test_{parts[-1]}.py")
        package = ".".join(["meshscope", *(part for part in parts[:-1] if part != "src")])
        is_direct = f"{package}.{parts[-1]}" in imported
        has_folder = any(unit.joinpath(*parts[:-1]).glob("test_*.py")) or (
            len(parts) > 2 and unit.joinpath(*parts[:-2], f"test_{parts[-2]}.py").exists()
        )
        by_table = any(source.name.startswith(folder) for folder in named)
        if not (own.exists() or is_direct or has_folder or by_table):
            lost.append(source.name)
    assert lost == []
