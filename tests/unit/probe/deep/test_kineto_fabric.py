"""Kineto's datagrams, and who gets an answer to them."""

import os
import socket
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.probe.deep.kineto_fabric import ENDPOINT, KinetoDaemon, configuration, decode_request

HEAD = struct.Struct("=Q32s")


def request(*pids, wanted=3, kind=b"req"):
    """Return the datagram that a client sends."""
    body = struct.pack("=iiq", wanted, len(pids), 0) + struct.pack(f"={len(pids)}i", *pids)
    return HEAD.pack(len(body), kind) + body


@pytest.fixture
def daemon(short_dir):
    """Return a daemon that answers in a short folder."""
    served = KinetoDaemon(short_dir)
    served.start()
    yield served
    served.stop()


class Client:
    """What libkineto's client does, from this process."""

    def __init__(self, folder, name="client"):
        """Bind a socket beside the daemon's."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / name))
        self.socket.settimeout(5)
        self.target = str(folder / ENDPOINT)

    def ask(self, packet):
        """Send a datagram and return the text of the reply."""
        self.socket.sendto(packet, self.target)
        reply = self.socket.recv(65536)
        size, kind = HEAD.unpack_from(reply)
        assert size == len(reply) - HEAD.size
        return kind.rstrip(b"\0"), reply[HEAD.size :]


@pytest.fixture
def client(daemon, short_dir):
    """Return a client of this process."""
    found = Client(short_dir)
    yield found
    found.socket.close()


def test_an_order_is_taken_once_and_only_by_its_process(daemon, client):
    """Fails if a process records what another was told to, or records twice."""
    own = os.getpid()
    assert client.ask(request(own, 1)) == (b"req", b"")
    daemon.order(own, "TEXT=1\n")
    daemon.order(own + 1, "TEXT=2\n")
    assert client.ask(request(own, wanted=1)) == (b"req", b"")
    assert client.ask(request(own)) == (b"req", b"TEXT=1\n")
    assert client.ask(request(own)) == (b"req", b"")
    assert daemon.clients() == [own]


def test_a_process_cannot_ask_for_another(daemon, client):
    """Fails if any process of the user can take the order of a rank away."""
    daemon.order(1, "TEXT=1\n")
    client.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.ask(request(1, os.getpid()))
    assert daemon.refused == 1
    assert daemon.clients() == []


def test_a_client_that_registers_is_counted(client):
    """Fails if a client on a machine with a GPU waits in vain at its start."""
    assert client.ask(request(os.getpid(), kind=b"ctxt")) == (b"ctxt", struct.pack("=i", 1))


def test_damaged_datagrams_end_nothing(daemon, client):
    """Fails if one odd datagram stops the answers to all processes."""
    for packet in (b"", b"x" * 4096, HEAD.pack(1 << 60, b"req"), request(*range(64))[:-1]):
        client.socket.sendto(packet, client.target)
    assert client.ask(request(os.getpid())) == (b"req", b"")


@given(st.binary(max_size=300))
def test_no_bytes_make_the_decoder_fail(packet):
    """Fails if a datagram can raise in the thread that answers."""
    assert decode_request(packet) is None
    found = decode_request(HEAD.pack(len(packet), b"req") + packet)
    assert found is None or found.pids


def test_a_socket_that_a_killed_daemon_left_is_taken_over(short_dir):
    """Fails if no deep trace can be made after the agent was killed; or two agents answer."""
    code = f"import socket; s=socket.socket(1, 2); s.bind({str(short_dir / ENDPOINT)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    first = KinetoDaemon(short_dir)
    first.start()
    with pytest.raises(OSError, match="in use"):
        KinetoDaemon(short_dir)
    first.stop()
    assert not (short_dir / ENDPOINT).exists()


def test_a_configuration_names_iterations_and_file(tmp_path):
    """Fails if Kineto records for a time instead of for the steps that were asked for."""
    lines = configuration(tmp_path / "a.json", 71, 3).splitlines()
    assert f"ACTIVITIES_LOG_FILE={tmp_path / 'a.json'}" in lines
    assert "PROFILE_START_ITERATION=71" in lines
    assert "ACTIVITIES_ITERATIONS=3" in lines


def test_an_order_that_was_cancelled_is_not_taken(daemon, client):
    """Fails if a trace that was called off is recorded all the same."""
    own = os.getpid()
    daemon.order(own, "TEXT=1\n", "first")
    daemon.order(own + 1, "TEXT=2\n", "second")
    assert daemon.cancel("second") == [own + 1]
    assert daemon.cancel("third") == []
    assert daemon.cancel() == [own]
    assert client.ask(request(own)) == (b"req", b"")


def test_what_killed_clients_left_goes_with_the_daemon(short_dir):
    """Fails if every run leaves a directory of dead sockets on the node."""
    folder = short_dir / "k-1"
    folder.mkdir()
    daemon = KinetoDaemon(folder)
    daemon.start()
    dead, alive = (Client(folder, f"dynoconfigclient{n}") for n in range(2))
    dead.socket.close()
    daemon.stop()
    assert [path.name for path in folder.iterdir()] == ["dynoconfigclient1"]
    alive.socket.close()
    again = KinetoDaemon(folder)
    again.start()
    again.stop()
    assert not folder.exists()
