"""Where the sockets between Kineto and the agent are."""

import pytest

from meshscope.probe.deep.names import kineto_directory
from meshscope.probe.schema.errors import ConfigError


def test_sockets_of_a_run_have_room_for_the_name_of_the_client(short_dir, run_path, monkeypatch):
    """Fails if Kineto's client cannot bind its socket, and so never asks."""
    path = kineto_directory(run_path, {"XDG_RUNTIME_DIR": str(short_dir)})
    assert path.stat().st_mode & 0o777 == 0o700
    long = short_dir / ("x" * (38 - len(str(short_dir))))
    long.mkdir()
    monkeypatch.setattr("meshscope.probe.control.directory._USUAL", ())
    with pytest.raises(ConfigError, match="too long"):
        kineto_directory(run_path, {"XDG_RUNTIME_DIR": str(long)})
