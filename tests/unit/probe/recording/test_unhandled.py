"""What ends a process of multiprocessing is noted, though no exception reaches its interpreter."""

import multiprocessing

import pytest

from meshscope.probe.recording import unhandled


def child(way, path):
    """End in some way, and write what was noted of it after that."""
    told = []
    unhandled.watch_unhandled(told.append)
    multiprocessing.util.Finalize(
        None,
        lambda: path.write_text(f"{unhandled.unhandled_exception()} {len(told)}"),
        exitpriority=0,
    )
    if way == "raised":
        raise ValueError("secret")
    try:
        raise KeyError("secret")
    except KeyError:
        if way == "caught by a launcher":
            raise SystemExit(1)  # noqa: B904 - as torch.multiprocessing does
    if way == "status":
        raise SystemExit(3)
    if way == "in order by exit":
        raise SystemExit(0)


@pytest.mark.parametrize(
    ("way", "noted"),
    [
        ("raised", "ValueError 1"),
        ("caught by a launcher", "KeyError 1"),
        ("status", "SystemExit 0"),
        ("in order by exit", "None 0"),
        ("in order", "None 0"),
    ],
)
def test_the_exception_of_a_spawned_rank_is_noted(tmp_path, way, noted):
    """Fails when a rank of mp.spawn that raised reads as one that was waited for and never came."""
    path = tmp_path / "noted"
    process = multiprocessing.get_context("fork").Process(target=child, args=(way, path))
    process.start()
    process.join(30)
    assert path.read_text() == noted
