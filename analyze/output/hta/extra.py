"""Whether HolisticTraceAnalysis is there, in a version that this bridge knows."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from meshscope.probe.schema.errors import ConfigError

SUPPORTED = "0.5.0"
_INSTALL = "Install it with: pip install 'meshscope[hta]'"


def require_hta() -> None:
    """Return if HolisticTraceAnalysis can be imported and works in full.

    Raises:
        ConfigError: It is not installed, is another version, or stands beside pandas 3, with
            which its critical path and its kernel sequences fail.
    """
    try:
        found = version("HolisticTraceAnalysis")
    except PackageNotFoundError:
        raise ConfigError("HolisticTraceAnalysis is not installed", remedy=_INSTALL) from None
    if found != SUPPORTED:
        raise ConfigError(
            f"HolisticTraceAnalysis {found} keeps its traces differently from {SUPPORTED}",
            remedy=_INSTALL,
        )
    pandas = version("pandas")
    if int(pandas.split(".", maxsplit=1)[0]) >= 3:
        raise ConfigError(
            f"HolisticTraceAnalysis {SUPPORTED} does not work with pandas {pandas}",
            remedy="Install it with pandas below 3: pip install 'meshscope[hta]'",
        )
    if find_spec("psutil") is None:
        raise ConfigError(
            "psutil is not installed, which HolisticTraceAnalysis needs", remedy=_INSTALL
        )
