"""How settings are checked: one line that names the field and the remedy."""

from __future__ import annotations

from meshscope.probe.schema.errors import ConfigError


def require(holds: bool, what: str, *, where: str, remedy: str = "") -> None:  # noqa: FBT001
    """Raise ConfigError with the field and the remedy unless the condition holds."""
    if not holds:
        raise ConfigError(what, where=where, remedy=remedy)
