"""What lies in an object store is fetched before a verb reads it."""

from __future__ import annotations

from pathlib import Path

from .output import say
from .progress import reading_progress


def fetched(text: str) -> Path:
    """Return the path of what an address names; of anything that is no address, that path.

    Raises:
        MeshscopeError: It cannot be fetched.
    """
    if "://" not in text:
        return Path(text)
    from meshscope.analyze.load.stores import Store, is_address

    if not is_address(text):
        return Path(text)
    if text.startswith("file://"):
        return Path(text.removeprefix("file://"))
    store = Store(text)
    with reading_progress(store.missing_bytes) as on_bytes:
        path = store.fetch(on_bytes)
    fetched_files = f"{len(store.missing):,} of {len(store.files):,} files"
    say(
        f"fetched {fetched_files} ({store.missing_bytes / 1e6:,.1f} MB) from {store.shown} into {path}"
    )
    return path
