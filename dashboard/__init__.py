"""Look at runs in a browser: run list, overview, findings, timeline and mesh."""

from .serving.app import create_app
from .serving.server import serve

__all__ = ["create_app", "serve"]
