"""A run or a trace in an object store, copied to this machine as far as it is not there yet.

Readers map files into memory and read them more than once, so what is read of a store is kept on the
disk. One listing says of every file which version it is; only files that are new or other than those kept
are fetched. Whatever address fsspec opens will do: ``s3://``, ``gs://``, ``abfs://``, ``hf://``, ``https://``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from meshscope.probe.schema.errors import ConfigError, MeshscopeError, RunDirectoryError
from meshscope.probe.schema.manifest import read_json, write_json
from meshscope.probe.schema.printable import printable

from ..wording.message import message

T = TypeVar("T")

VERSIONS = "versions.json"
"""Which version of each file is kept; it lies beside the folder of the files."""
_VERSION_KEYS = (
    "size",
    "ETag",
    "etag",
    "md5Hash",
    "content_md5",
    "crc32c",
    "generation",
    "blob_id",
    "version_id",
    "mtime",
    "updated",
    "last_modified",
    "LastModified",
    "created",
)
"""What the stores that fsspec knows say of a file that changes with its content."""
_REQUESTS_AT_ONCE = 16
"""A store answers one request in 10 to 100 ms whatever its size; more than 16 get slowed down by it."""
_TRIES = 4
_FIRST_PAUSE_S = 0.25
_SPARE_BYTES = 64 << 20
"""Left free on the disk: other programs write there as well."""


def is_address(text: str) -> bool:
    """Return whether a text names something in a store, and not a path of this machine.

    >>> is_address("s3://bucket/run"), is_address("runs/a"), is_address("C://x")
    (True, False, False)
    """
    protocol, mark, _ = text.partition("://")
    return bool(mark) and len(protocol) > 1 and protocol.replace("+", "").replace(":", "").isalnum()


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where copies are kept: ``meshscope/stores`` in the user's folder of caches."""
    named = environment.get("XDG_CACHE_HOME", "")
    root = Path(named) if named.startswith("/") else Path.home() / ".cache"
    return root / "meshscope" / "stores"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file in a store."""

    name: str
    """Its path below the address, with slashes."""
    remote: str
    size: int
    version: str


class Store:
    """What lies at an address, as one listing gave it.

    Args:
        address: Where it lies.
        kept_in: The folder of all copies.

    Raises:
        ConfigError: The package that reads such addresses is missing.
        RunDirectoryError: Nothing is there, or the store does not answer.
    """

    def __init__(self, address: str, kept_in: Path | None = None) -> None:
        self.shown = shown(address)
        self._fs, root = _opened(address, self.shown)
        self._root = root.rstrip("/")
        key = hashlib.sha256(address.encode()).hexdigest()[:16]
        self._folder = (kept_in or cache_folder()) / key
        self._single = False
        self.files = self._listed()
        self._kept = self._kept_versions()
        self.missing = [one for one in self.files if not self._is_kept(one)]

    @property
    def missing_bytes(self) -> int:
        """How much is to be fetched."""
        return sum(one.size for one in self.missing)

    @property
    def path(self) -> Path:
        """The copy on this machine."""
        name = PurePosixPath(_literal(self._root)).name or "store"
        return self._folder / name if not self._single else self._folder / name / self.files[0].name

    def fetch(self, on_bytes: Callable[[int], None] = lambda _: None) -> Path:
        """Bring the copy up to date and return it; what was fetched before an error is kept.

        Args:
            on_bytes: Told of each file how large it was.

        Raises:
            RunDirectoryError: A file could not be fetched, or there is no room for all of them.
        """
        self._make_room()
        try:
            self._fetch_missing(on_bytes)
            self._remove_gone()
        finally:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_json(self._folder / VERSIONS, {"address": self.shown, "files": self._kept})
        return self.path

    def _listed(self) -> list[StoredFile]:
        found = _asked(self._find, self.shown)
        files = [self._stored(remote, listed) for remote, listed in sorted(found.items())]
        files = [one for one in files if one.name]
        if not files:
            raise RunDirectoryError(
                message("refused.nothing_there"), where=self.shown, remedy=message("advice.address")
            )
        return files

    def _find(self) -> dict[str, dict[str, Any]]:
        if has_magic(self._root):
            listed: dict[str, dict[str, Any]] = self._fs.glob(self._root, detail=True)
            return {name: one for name, one in listed.items() if one["type"] == "file"}
        listed = self._fs.find(self._root, detail=True)
        self._single = list(listed) == [self._root]
        return listed

    def _stored(self, remote: str, listed: dict[str, Any]) -> StoredFile:
        base = str(PurePosixPath(self._root).parent) if self._single else _literal(self._root)
        name = remote[len(base) :].lstrip("/") if remote.startswith(base) else remote
        if any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
            # A store takes any name; one that leads out of the copy is not ours to write.
            name = ""
        version = ",".join(
            f"{key}={listed[key]}" for key in _VERSION_KEYS if listed.get(key) is not None
        )
        return StoredFile(name, remote, int(listed.get("size") or 0), version)

    def _kept_versions(self) -> dict[str, str]:
        try:
            kept = read_json(self._folder / VERSIONS).get("files")
        except (OSError, MeshscopeError, ValueError):
            return {}
        return dict(kept) if isinstance(kept, dict) else {}

    def _local(self, name: str) -> Path:
        folder = self._folder / (PurePosixPath(_literal(self._root)).name or "store")
        return folder / name

    def _is_kept(self, one: StoredFile) -> bool:
        # Without anything that changes with the content but the size, a copy may be old.
        known = "," in one.version and self._kept.get(one.name) == one.version
        return known and self._local(one.name).is_file()

    def _make_room(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        free = shutil.disk_usage(self._folder).free
        if self.missing_bytes + _SPARE_BYTES > free:
            raise RunDirectoryError(
                message(
                    "refused.cache_full",
                    needed_bytes=self.missing_bytes,
                    free_bytes=free,
                    folder=printable(str(self._folder.parent)),
                ),
                where=self.shown,
                remedy=message("advice.cache_home"),
            )

    def _fetch_missing(self, on_bytes: Callable[[int], None]) -> None:
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix="meshscope-store") as pool:
            waiting = {pool.submit(self._fetch_one, one): one for one in self.missing}
            try:
                for done in as_completed(waiting):
                    done.result()
                    one = waiting[done]
                    self._kept[one.name] = one.version
                    on_bytes(one.size)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _fetch_one(self, one: StoredFile) -> None:
        local = self._local(one.name)
        local.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Beside the copy: one that a kill left behind is no file of the run.
        name = hashlib.sha256(one.name.encode()).hexdigest()[:16]
        partial = self._folder / f"{name}.{os.getpid()}.part"
        try:
            _asked(
                lambda: self._fs.get_file(one.remote, str(partial)), f"{self.shown} ({one.name})"
            )
            os.replace(partial, local)
        finally:
            partial.unlink(missing_ok=True)

    def _remove_gone(self) -> None:
        there = {one.name for one in self.files}
        for name in [name for name in self._kept if name not in there]:
            del self._kept[name]
            if ".." not in PurePosixPath(name).parts and not name.startswith("/"):
                self._local(name).unlink(missing_ok=True)


def shown(address: str) -> str:
    """Return an address without what may be a secret: user, password, and what follows the path.

    >>> shown("https://me:secret@host.example/run.json?sig=abc")
    'https://host.example/run.json'
    """
    parts = urlsplit(address)
    return printable(
        urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    )


def _literal(root: str) -> str:
    """Return the part of a pattern above its first wildcard; a path without one is whole."""
    if not has_magic(root):
        return root
    parts = root.split("/")
    return "/".join(parts[: next(i for i, part in enumerate(parts) if has_magic(part))])


def _opened(address: str, listed: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ConfigError(
            message("refused.no_fsspec"), where=listed, remedy=message("advice.install_cluster")
        ) from None
    try:
        # A listing that was cached in this process would hide what was written since.
        files, root = url_to_fs(address, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            message("refused.no_package_for_store", error=printable(str(error))),
            where=listed,
            remedy=message("advice.packages_of_stores"),
        ) from error
    return files, str(root)


def _asked(question: Callable[[], T], where: str) -> T:
    """Return what a store answers; a failure that may pass is asked again, with growing pauses.

    Raises:
        RunDirectoryError: Nothing is there, access is denied, or it failed each time.
    """
    for trial in range(_TRIES):
        try:
            return question()
        except FileNotFoundError as error:
            # Over HTTP, a server that nobody reaches is reported as a file that is missing.
            what = message("refused.nothing_there")
            if error.__cause__ is not None:
                what = message("refused.because", what=what, reasons=[_short(error.__cause__)])
            raise RunDirectoryError(what, where=where, remedy=message("advice.address")) from error
        except PermissionError as error:
            raise RunDirectoryError(
                message("refused.access_denied", error=_short(error)),
                where=where,
                remedy=message("advice.credentials"),
            ) from error
        except Exception as error:  # each client of a store raises errors of its own library
            if trial + 1 == _TRIES:
                raise RunDirectoryError(
                    message("refused.store_failed", times=_TRIES, error=_short(error)),
                    where=where,
                    remedy=message("advice.store"),
                ) from error
            time.sleep(_FIRST_PAUSE_S * 2**trial)
    raise AssertionError("the last trial returns or raises")


def _short(error: BaseException) -> str:
    text = printable(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"
