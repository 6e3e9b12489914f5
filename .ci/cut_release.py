"""Write the changelog and the version of a release: ``make cut VERSION=0.1.0``.

1. towncrier turns ``changes/`` into a section of ``CHANGELOG.md`` with today's date. A fragment that begins as an item of
   a list does not become an item of an item.
2. Entries under *Unreleased* join that section.
3. ``src/meshscope/__init__.py`` gets the version.

It commits, tags and uploads nothing; docs/contributing.md has the steps around it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
_UNRELEASED = re.compile(r"^## \[Unreleased\]\n(.*?)(?=^## \[|\Z)", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"\A\s*[-*]\s+")
_VERSION = re.compile(r'^__version__ = ".*"$', re.MULTILINE)


def cut(project: Path, version: str, date: str | None = None) -> None:
    """Write changelog and version of a release.

    Args:
        project: Root of a checkout.
        version: Such as 0.1.0.
        date: As YYYY-MM-DD; today if not given.

    Raises:
        SystemExit: The version is no version, or the changelog has it already.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise SystemExit(f"error: {version!r} is no version; write for example VERSION=0.1.0")
    changelog = project / "CHANGELOG.md"
    if f"## [{version}]" in changelog.read_text(encoding="utf-8"):
        raise SystemExit(f"error: CHANGELOG.md has {version} already; take the next version")
    for fragment in (project / "changes").glob("*.*.md"):
        text = fragment.read_text(encoding="utf-8")
        fragment.write_text(_ITEM.sub("", text), encoding="utf-8")
    command = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", version]
    command += ["--dir", str(project), *(["--date", date] if date else [])]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    changelog.write_text(joined(changelog.read_text(encoding="utf-8"), version), encoding="utf-8")
    source = project / "src" / "meshscope" / "__init__.py"
    text = _VERSION.sub(f'__version__ = "{version}"', source.read_text(encoding="utf-8"))
    source.write_text(text, encoding="utf-8")


def joined(changelog: str, version: str) -> str:
    """Return a changelog whose unreleased entries are part of a version, below its own ones."""
    unreleased = _UNRELEASED.search(changelog)
    if unreleased is None:
        return changelog
    changelog = changelog.replace(unreleased.group(), "")
    start = changelog.index(f"## [{version}]")
    end = changelog.find("\n## [", start)
    section = changelog[start:] if end < 0 else changelog[start:end]
    title, own = section.split("\n", 1)
    entries = _by_heading(own)
    for heading, text in _by_heading(unreleased.group(1)).items():
        entries[heading] = "\n".join(part for part in (entries.get(heading), text) if part)
    body = "\n\n".join(f"### {heading}\n\n{text}" for heading, text in entries.items())
    rest = "" if end < 0 else changelog[end:]
    return f"{changelog[:start]}{title}\n\n{body}\n{rest}"


def _by_heading(section: str) -> dict[str, str]:
    parts = re.split(r"^### (.*)\n", section, flags=re.MULTILINE)[1:]
    return {
        heading: text.strip("\n") for heading, text in zip(parts[::2], parts[1::2], strict=True)
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    cut(PROJECT, parser.parse_args().version)
