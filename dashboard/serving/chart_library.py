"""The library of charts: a bundle of plotly.js with bars, points and heatmaps, which are all that pages draw.

A browser reads it in a third of the time that all of plotly.js takes. ``charts/`` holds it as its makers publish it:
``plotly-cartesian.min.js`` of the npm package ``plotly.js-cartesian-dist-min``.
"""

from __future__ import annotations

import gzip
from functools import cache
from hashlib import sha256
from pathlib import Path

from flask import Flask, Response, request

ADDRESS = "_dash-component-suites/plotly/package_data/plotly.min.js"
"""Where Dash looks for all of plotly.js, once a page with a chart is there; browsers get it before."""
_FILE = Path(__file__).resolve().parents[1] / "charts" / "plotly-cartesian.min.js"
_FOR_S = 600
"""The address has no version: after so long a browser asks whether it is still the same."""


def register(server: Flask) -> None:
    """Answer with the bundle where Dash asks for all of plotly.js."""

    @server.get(f"/{ADDRESS}")
    def chart_library() -> Response:
        plain, packed, tag = _contents()
        is_packed = request.accept_encodings.quality("gzip") > 0
        response = Response(packed if is_packed else plain, mimetype="text/javascript")
        if is_packed:
            response.content_encoding = "gzip"
        response.vary.add("Accept-Encoding")
        response.cache_control.private = True
        response.cache_control.max_age = _FOR_S
        response.set_etag(f"{tag}{'-gzip' * is_packed}")
        return response.make_conditional(request)  # type: ignore[return-value]


@cache
def _contents() -> tuple[bytes, bytes, str]:
    """Return the bundle as it is and compressed, and what names this version of it."""
    plain = _FILE.read_bytes()
    return plain, gzip.compress(plain, mtime=0), sha256(plain).hexdigest()[:16]
