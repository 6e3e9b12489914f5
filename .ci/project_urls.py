"""Write the addresses of the project into ``pyproject.toml``, where the address of its repository is known.

A release takes it from ``PROJECT_URL``, or from what GitHub says of the repository whose tag it builds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
_PAGES = {
    "Homepage": "",
    "Documentation": "/blob/HEAD/docs/index.md",
    "Issues": "/issues",
    "Changelog": "/blob/HEAD/CHANGELOG.md",
}
_NEXT = "[project.optional-dependencies]\n"


def address_in(environment: Mapping[str, str]) -> str:
    """Return the address of the repository; empty where nothing says it."""
    server, name = (environment.get(f"GITHUB_{key}", "") for key in ("SERVER_URL", "REPOSITORY"))
    return environment.get("PROJECT_URL") or (f"{server}/{name}" if server and name else "")


def with_urls(pyproject: str, address: str) -> str:
    """Return the text of a ``pyproject.toml`` with the addresses below one repository."""
    lines = [f'{name} = "{address.rstrip("/")}{page}"' for name, page in _PAGES.items()]
    return pyproject.replace(_NEXT, "\n".join(["[project.urls]", *lines, "", _NEXT]), 1)


if __name__ == "__main__" and (found := address_in(os.environ)):
    file = PROJECT / "pyproject.toml"
    file.write_text(with_urls(file.read_text(encoding="utf-8"), found), encoding="utf-8")
