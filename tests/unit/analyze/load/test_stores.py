"""Captures in object stores: an S3-compatible server and a failing web server, both on loopback."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from meshscope.analyze import load_trace
from meshscope.analyze.load import stores
from meshscope.analyze.load.stores import Store, cache_folder, is_address
from meshscope.analyze.synthetic import SyntheticJob, generate, write_run
from meshscope.probe.schema.errors import ConfigError, RunDirectoryError
from meshscope.probe.schema.layout import ParallelLayout

pytest.importorskip("moto", reason="the extra `dev` brings an S3-compatible server")

BUCKET = "training-runs"


@pytest.fixture(scope="module")
def endpoint():
    """Return the address of an S3-compatible server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run directory of eight ranks."""
    job = SyntheticJob(layout=ParallelLayout(tp=2, pp=2, dp=2))
    return write_run(job, generate(job)[0], None, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def s3(endpoint, monkeypatch):
    """Return a client of the server, with an empty bucket; the environment leads to it."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    client = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    if client.exists(BUCKET):
        client.rm(BUCKET, recursive=True)
    client.mkdir(BUCKET)
    return client


def test_a_run_in_a_store_reads_as_the_same_run_on_disk(s3, run, tmp_path):
    """A post-mortem from the bucket would say something else than one on the node."""
    s3.put(str(run), f"{BUCKET}/jobs/mine", recursive=True)
    copy = Store(f"s3://{BUCKET}/jobs/mine", tmp_path).fetch()
    here, there = load_trace(run), load_trace(copy)
    assert copy.name == "mine"
    assert here.tables.keys() == there.tables.keys()
    for name, table in here.tables.items():
        assert table.equals(there.tables[name]), name


def test_a_run_of_many_ranks_takes_a_request_for_256_of_them_and_a_table(s3, tmp_path, monkeypatch):
    """Fails when opening thousands of ranks asks a store for a file each, at 10 to 100 ms."""
    import s3fs

    job = SyntheticJob(layout=ParallelLayout(pp=2, dp=260), microbatches=1, steps=2)
    run = write_run(job, generate(job)[0], None, tmp_path / "runs")
    s3.put(str(run), f"{BUCKET}/jobs/many", recursive=True)
    asked = Counter()
    ask = s3fs.S3FileSystem._call_s3

    async def counted(self, method, *arguments, **words):
        asked[method] += 1
        return await ask(self, method, *arguments, **words)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counted)
    store = Store(f"s3://{BUCKET}/jobs/many", tmp_path / "kept")
    listings = sum(asked.values())
    copy = store.fetch()
    tables, segments = 4, -(-520 // 256)
    whole = {"manifest.json", "synthetic.json", "segments.json", "all.parquet"}
    beside = sum(file.name in whole for file in copy.rglob("*"))
    assert sum(asked.values()) - listings == asked["get_object"] == tables * segments + beside
    assert (beside, listings) == (5, 1)
    assert len(load_trace(copy).ranks) == 520


def test_only_what_changed_is_fetched_again(s3, tmp_path):
    """A second look at a terabyte would take as long as the first, or show what was there before."""
    address, folder = f"s3://{BUCKET}/job", f"{BUCKET}/job"
    s3.pipe({f"{folder}/a": b"one", f"{folder}/deep/b": b"two", f"{folder}/gone": b"x"})
    first = Store(address, tmp_path)
    assert (len(first.missing), first.missing_bytes) == (3, 7)
    copy = first.fetch()
    assert Store(address, tmp_path).missing == []
    s3.pipe(f"{folder}/a", b"ONE")
    s3.rm(f"{folder}/gone")
    again = Store(address, tmp_path)
    assert [one.name for one in again.missing] == ["a"]
    assert again.fetch() == copy
    assert (copy / "a").read_bytes() == b"ONE"
    assert (copy / "deep" / "b").read_bytes() == b"two"
    assert not (copy / "gone").exists()


def test_a_single_file_and_a_pattern_are_addresses_too(s3, tmp_path):
    """A user who names one trace, or the traces of some ranks, would be told that nothing is there."""
    s3.pipe({f"{BUCKET}/t/rank{rank}.json": b"%d" % rank for rank in range(3)})
    one = Store(f"s3://{BUCKET}/t/rank1.json", tmp_path).fetch()
    assert (one.name, one.read_bytes()) == ("rank1.json", b"1")
    some = Store(f"s3://{BUCKET}/t/rank[02].json", tmp_path).fetch()
    assert sorted(path.name for path in some.iterdir()) == ["rank0.json", "rank2.json"]


def test_names_that_lead_out_of_the_copy_are_left_out(endpoint, s3, tmp_path):
    """Whoever may write to a bucket could write any file of the user who looks at it."""
    s3.pipe(
        {f"{BUCKET}/job/good/a": b"1", f"{BUCKET}/job/a/./b": b"2", f"{BUCKET}/job/../../out": b"3"}
    )
    copy = Store(f"s3://{BUCKET}/job", tmp_path / "kept").fetch()
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    folder = copy.parent.relative_to(tmp_path)
    assert found == {f"{folder}/versions.json", f"{folder}/job/good/a"}


def test_what_is_not_there_is_said_with_the_address(s3, tmp_path):
    """A slip in the address would end in a traceback of the store's client."""
    with pytest.raises(RunDirectoryError, match=rf"^s3://{BUCKET}/none: nothing is there"):
        Store(f"s3://{BUCKET}/none", tmp_path)
    with pytest.raises(ConfigError, match=r"Protocol not known.*meshscope\[cluster\]"):
        Store("nosuchstore://x", tmp_path)


def test_the_command_line_opens_an_address(s3, run, tmp_path):
    """The address would be taken for a path, and its two slashes for one."""
    s3.put(str(run), f"{BUCKET}/jobs/mine", recursive=True)
    words = [sys.executable, "-m", "meshscope", "diagnose", f"s3://{BUCKET}/jobs/mine"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "8 of 8 ranks" in done.stdout
    assert (
        f"from s3://{BUCKET}/jobs/mine into {cache_folder({'XDG_CACHE_HOME': str(tmp_path)})}"
        in (done.stderr)
    )


class _Shaky(SimpleHTTPRequestHandler):
    """Serves a folder slowly, and fails as often as it is told before it gives a file."""

    failures = 0
    asked: Counter[str]

    def do_GET(self):
        """Fail, or answer late."""
        self.asked[self.path] += 1
        if not self.path.endswith("/") and self.asked[self.path] <= self.failures:
            self.send_error(503)
            return
        time.sleep(0.02)
        super().do_GET()

    def log_message(self, format, *args):
        """Say nothing."""


@pytest.fixture
def shaky(tmp_path, monkeypatch):
    """Return a function that serves files over HTTP, failing some times for each."""
    monkeypatch.setattr(stores, "_FIRST_PAUSE_S", 0.01)
    servers = []

    def serve(failures, files):
        folder = tmp_path / "served"
        folder.mkdir(exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        handler = type("Handler", (_Shaky,), {"failures": failures, "asked": Counter()})
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_store_that_fails_now_and_then_is_read_all_the_same(shaky, tmp_path):
    """One answer of 503 among thousands of files would end the reading of all of them."""
    address = shaky(2, {f"rank{i}.bin": bytes([i]) * 999 for i in range(6)})
    copy = Store(address, tmp_path / "kept").fetch()
    assert sorted(path.name for path in copy.iterdir()) == [f"rank{i}.bin" for i in range(6)]
    assert (copy / "rank5.bin").read_bytes() == b"\5" * 999


def test_a_store_that_goes_on_failing_is_given_up_in_one_line(shaky, tmp_path):
    """The command would try for ever, or end in a traceback."""
    address = shaky(99, {"rank0.bin": b"0"})
    with pytest.raises(RunDirectoryError, match=r"failed 4 times: 503.*what was fetched is kept"):
        Store(address, tmp_path / "kept").fetch()


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("s3://b/run", True),
        ("hf://datasets/x", True),
        ("https://h/x.json.gz", True),
        ("zip://a::s3://b/c.zip", True),
        ("C://run", False),
        ("runs/a", False),
        ("a b://c", False),
    ],
)
def test_an_address_is_distinguished_from_a_path(text, reported):
    """A folder would be looked for on the network, or a bucket on the disk."""
    assert is_address(text) is reported
