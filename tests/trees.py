"""Files as sysfs and proc show them."""

from pathlib import Path


def write(path: Path, value: object) -> None:
    """Write a file in place, so that a descriptor that is open sees the new value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="ascii") as file:
        file.write(f"{value}\n")
