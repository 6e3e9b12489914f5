"""Which file system holds a directory."""

import os

import pytest

from meshscope.probe.recording import file_system
from meshscope.probe.recording.file_system import UNKNOWN, file_system_of, slow_file_system_of

MOUNTS = """\
21 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw
22 21 0:20 / /runs rw - nfs4 server:/runs rw,vers=4.2
23 22 0:21 / /runs/local rw master:2 - tmpfs none rw
24 21 0:22 / /with\\040blank rw - lustre a@tcp:/fs rw
25 21 0:23 / /twice rw - ext4 /dev/b rw
26 25 0:24 / /twice rw - fuse.sshfs host:/ rw
a line of another form
"""


@pytest.fixture
def mounts(tmp_path, monkeypatch):
    """Let the kernel's list of mounts be a file of the test."""
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    monkeypatch.setattr(file_system, "_MOUNTS", path)
    return path


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/data/a", "ext4"),
        ("/runs", "nfs4"),
        ("/runs/a/rank00000", "nfs4"),
        ("/runs/local/a", "tmpfs"),
        ("/runs2/a", "ext4"),
        ("/with blank/a", "lustre"),
        ("/twice/a", "fuse.sshfs"),
    ],
)
def test_the_innermost_mount_counts(mounts, place, kind):
    """Fails when a network directory is taken for the local one around it, or the reverse."""
    assert file_system_of(place) == kind


def test_a_link_is_followed(mounts, tmp_path):
    """Fails when a run directory that is a link to a server is taken for a local one."""
    link = tmp_path / "runs"
    link.symlink_to("/runs/a")
    assert file_system_of(link) == "nfs4"


def test_this_machine_is_understood(tmp_path):
    """Fails when the real list of mounts is not understood."""
    assert file_system_of(tmp_path) != UNKNOWN
    if os.path.ismount("/dev/shm"):
        assert file_system_of("/dev/shm") == "tmpfs"


def test_what_is_not_known_may_wait(mounts):
    """Fails when a store is trusted not to wait where nobody knows what is mounted."""
    mounts.unlink()
    assert slow_file_system_of("/runs") == UNKNOWN


@pytest.mark.parametrize(
    ("kind", "is_slow"),
    [
        *(
            (kind, True)
            for kind in ("nfs", "nfs4", "lustre", "gpfs", "fuse.x", "cifs", "btrfs", "zfs")
        ),
        *((kind, False) for kind in ("ext4", "xfs", "tmpfs", "overlay")),
    ],
)
def test_servers_and_copy_on_write_may_wait(mounts, kind, is_slow):
    """Fails when training stores into a page that a server, or a full disk, can hold up."""
    mounts.write_text(f"21 1 259:1 / / rw,relatime shared:1 - {kind} /dev/nvme0n1p1 rw\n")
    assert slow_file_system_of("/runs") == (kind if is_slow else None)
