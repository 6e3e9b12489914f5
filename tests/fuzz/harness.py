"""Feeds one reader mutated bytes, guided by the coverage of the importers, until time is up.

``python -m tests.fuzz.harness FORMAT SECONDS FOLDER`` where FORMAT is one of the seeds or
``any``. An input that makes a reader raise anything but an error of ours, hang, or take too
much memory is left in FOLDER as ``crash-…``, and the exit code is not 0.
"""

import gzip
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["meshscope.analyze.read"]):
    from meshscope.analyze.read import import_trace

from tests.fuzz.seeds import SEEDS

from meshscope.probe.schema.errors import MeshscopeError

ANY = "any"
_MOST_SECONDS_AN_INPUT = 10
_MOST_MB = 2048


def reader(place: Path) -> Callable[[bytes], None]:
    """Return a function that reads bytes as a file at a place, whatever format they have."""

    def read(content: bytes) -> None:
        place.write_bytes(content)
        try:
            import_trace(place)
        except MeshscopeError as error:
            if not str(error).isprintable():
                raise AssertionError("an error that is no line of text") from error

    return read


def write_corpus(folder: Path, name: str) -> None:
    """Write the files of a format, or of all, plain and compressed, as first inputs."""
    for key in SEEDS if name == ANY else (name,):
        for number, content in enumerate(SEEDS[key]().values()):
            (folder / f"{key}-{number}").write_bytes(content)
            (folder / f"{key}-{number}-gz").write_bytes(gzip.compress(content, mtime=0))


def main(name: str, seconds: int, folder: Path) -> None:
    """Fuzz for some seconds; does not return."""
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    write_corpus(corpus, name)
    warnings.simplefilter("error")
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={_MOST_SECONDS_AN_INPUT}",
        f"-rss_limit_mb={_MOST_MB}",
        f"-artifact_prefix={folder}/",
        "-max_len=8192",
        "-verbosity=0",
        "-print_final_stats=1",
    ]
    # The name carries a rank, which some formats need.
    atheris.Setup([sys.argv[0], *options, str(corpus)], reader(folder / "pp_rank_0"))
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
