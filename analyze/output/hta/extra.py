"""Whether HolisticTraceAnalysis is there, in a version that this bridge knows."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from meshscope.probe.schema.errors import ConfigError

from ...wording.message import message

SUPPORTED = "0.5.0"
_INSTALL = message("advice.install_hta")


def require_hta() -> None:
    """Return if HolisticTraceAnalysis can be imported and works in full.

    Raises:
        ConfigError: It is not installed, is another version, or stands beside pandas 3, with
            which its critical path and its kernel sequences fail.
    """
    try:
        found = version("HolisticTraceAnalysis")
    except PackageNotFoundError:
        raise ConfigError(message("refused.no_hta"), remedy=_INSTALL) from None
    if found != SUPPORTED:
        raise ConfigError(
            message("refused.other_hta", found=found, supported=SUPPORTED),
            remedy=_INSTALL,
        )
    pandas = version("pandas")
    if int(pandas.split(".", maxsplit=1)[0]) >= 3:
        raise ConfigError(
            message("refused.hta_with_pandas", supported=SUPPORTED, pandas=pandas),
            remedy=message("advice.older_pandas"),
        )
    if find_spec("psutil") is None:
        raise ConfigError(message("refused.no_psutil"), remedy=_INSTALL)
