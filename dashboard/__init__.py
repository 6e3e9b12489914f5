"""Look at runs in a browser: run list, overview, findings, timeline and mesh."""

from .app import create_app
from .server import serve

__all__ = ["create_app", "serve"]
