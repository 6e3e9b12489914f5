"""The private name of torch that tells which mode of torch functions is on."""

from __future__ import annotations

from typing import Any


def topmost_function_mode() -> Any:
    """Return the mode that is handed functions first, None without one."""
    from torch import overrides

    found: Any = getattr(overrides, "_get_current_function_mode", None)
    return None if found is None else found()
