"""The system's own Chromium, driven by Playwright: for screenshots and browser tests."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.message import message

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_VARIABLE = "MESHSCOPE_CHROMIUM"

_ARGUMENTS = (
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    # A browser under test must ask nobody for updates or experiments.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def find_chromium() -> str:
    """Return the path of the browser.

    Raises:
        ConfigError: There is none.
    """
    named = os.environ.get(_VARIABLE)
    path = named or next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        raise ConfigError(
            message("refused.no_chromium"),
            remedy=message("advice.install_chromium", variable=_VARIABLE),
        )
    return path


def launch(playwright: Playwright) -> Browser:
    """Start the browser without a window; the caller closes it.

    Raises:
        ConfigError: There is no browser.
    """
    return playwright.chromium.launch(executable_path=find_chromium(), args=list(_ARGUMENTS))
