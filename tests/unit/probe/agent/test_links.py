"""Network counters from a tree like sysfs."""

import errno
import shutil

import pytest
from tests.trees import write

from meshscope.probe.agent import links
from meshscope.probe.agent.links import GrowingCounters, LinkReader


def rows_of(reader):
    """Return the rows of the next reading by port."""
    return {row["port"]: row for row in reader.read().rows["link_sample"]}


def test_ports_are_read_with_their_units(sysfs):
    """Fails when data in words of four bytes is taken for bytes, or a counter is left out."""
    reader = LinkReader(sysfs)
    rows = rows_of(reader)
    assert set(rows) == {"mlx5_0/1", "eth0"}
    port = rows["mlx5_0/1"]
    assert (port["tx_bytes"], port["rx_bytes"], port["wait"]) == (4000, 8000, 7)
    assert (port["errors"], port["retries"], port["congestion"]) == (3, 3, 4)
    assert port["layer"] == "infiniband"
    assert port["speed_bytes_per_s"] == 50e9
    card = rows["eth0"]
    assert (card["tx_bytes"], card["rx_bytes"], card["errors"]) == (10, 20, 5)
    assert card["speed_bytes_per_s"] == 25e9 / 8
    assert "wait" not in card
    reader.close()


def test_a_counter_that_is_not_there_is_missing_not_zero(sysfs):
    """Fails when a driver without a counter seems to report no trouble."""
    (sysfs / "class/infiniband/mlx5_0/ports/1/counters/port_xmit_wait").unlink()
    reader = LinkReader(sysfs)
    reading = reader.read()
    row = next(row for row in reading.rows["link_sample"] if row["port"] == "mlx5_0/1")
    assert "wait" not in row
    assert reading.missing["wait: no such counter"] == 1
    reader.close()


def test_open_files_see_new_values_and_wraps(sysfs):
    """Fails when a file is opened anew for each sample, or a 32-bit counter falls."""
    counter = sysfs / "class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"
    write(counter, (1 << 32) - 10)
    reader = LinkReader(sysfs)
    first = rows_of(reader)["mlx5_0/1"]["tx_bytes"]
    write(counter, 10)
    assert rows_of(reader)["mlx5_0/1"]["tx_bytes"] - first == 4 * 20
    reader.close()


def test_a_port_that_goes_and_comes_back(sysfs, monkeypatch):
    """Fails when a card that is taken away stops the others, or stays away for good."""
    reader = LinkReader(sysfs)
    rows_of(reader)
    gone = {file for files in reader._ports["mlx5_0/1"].open.values() for _, file in files}
    read = links.os.pread

    def pread(descriptor, size, offset):
        if descriptor in gone:
            raise OSError(errno.ENODEV, "No such device")
        return read(descriptor, size, offset)

    monkeypatch.setattr(links.os, "pread", pread)
    reading = reader.read()
    assert [row["port"] for row in reading.rows["link_sample"]] == ["eth0"]
    assert reading.missing["mlx5_0/1: taken away (No such device)"] == 1
    monkeypatch.setattr(links.os, "pread", read)
    gone.clear()
    shutil.copytree(sysfs / "class/infiniband/mlx5_0", sysfs / "class/infiniband/mlx5_1")
    assert set(rows_of(reader)) == {"mlx5_0/1", "mlx5_1/1", "eth0"}
    reader.close()


def test_a_port_that_did_not_answer_is_left_out(sysfs):
    """Fails when a driver that hung is asked again at once."""
    reader = LinkReader(sysfs, skip=frozenset({"mlx5_0/1"}))
    reading = reader.read()
    assert [row["port"] for row in reading.rows["link_sample"]] == ["eth0"]
    assert reading.missing["mlx5_0/1: its driver did not answer"] == 1
    reader.close()


def test_a_machine_without_ports(tmp_path):
    """Fails when a machine without sysfs or cards is an error."""
    reader = LinkReader(tmp_path / "nothing")
    assert reader.read().rows["link_sample"] == []


def test_a_container_has_the_inner_end_of_its_cable(tmp_path):
    """Fails when the only network of a container is not counted, or its made-up speed is believed."""
    for name, index, link, kind in (("lo", 1, 1, 772), ("eth0", 2, 9, 1), ("dummy0", 3, 3, 1)):
        folder = tmp_path / "class/net" / name
        for file, value in (("ifindex", index), ("iflink", link), ("type", kind), ("speed", 10000)):
            write(folder / file, value)
        write(folder / "statistics/tx_bytes", 7)
    reader = LinkReader(tmp_path)
    rows = rows_of(reader)
    assert set(rows) == {"eth0"}
    assert rows["eth0"]["tx_bytes"] == 7
    assert rows["eth0"]["speed_bytes_per_s"] is None
    reader.close()


def test_cables_of_containers_are_no_ports_of_their_machine(sysfs):
    """Fails when a machine with cards counts what its containers send a second time."""
    folder = sysfs / "class/net/veth1"
    for file, value in (("ifindex", 5), ("iflink", 6), ("type", 1)):
        write(folder / file, value)
    reader = LinkReader(sysfs)
    assert set(rows_of(reader)) == {"mlx5_0/1", "eth0"}
    reader.close()


@pytest.mark.parametrize("width", [32, 64])
def test_a_wrapped_counter_grows_on(width):
    """Fails when a busy port seems to have sent less than before."""
    counters = GrowingCounters()
    top = 1 << width
    values = [counters.grown("a", raw) for raw in (top - 10, 5, top - 3, 4)]
    assert values == [top - 10, top + 5, 2 * top - 3, 2 * top + 4]
    assert counters.resets == 0


def test_a_reset_is_no_wrap():
    """Fails when a driver that was loaded again makes a port seem to have sent gigabytes."""
    counters = GrowingCounters()
    assert [counters.grown("a", raw) for raw in (5000, 20, 30)] == [5000, 20, 30]
    assert counters.resets == 1


def test_a_reset_after_a_wrap_starts_anew():
    """Fails when what a wrap added outlives the counter that wrapped."""
    counters = GrowingCounters()
    top = 1 << 32
    assert [counters.grown("a", raw) for raw in (top - 1, 1000, 3)] == [top - 1, top + 1000, 3]


def test_counters_are_separated_and_forgotten():
    """Fails when one port's wrap is added to another, or a port that came back has one."""
    counters = GrowingCounters()
    top = 1 << 32
    for raw in (top - 1, 0):
        counters.grown("mlx5_0/1:x", raw)
    assert counters.grown("mlx5_1/1:x", 7) == 7
    counters.forget("mlx5_0/1:")
    assert counters.grown("mlx5_0/1:x", 7) == 7
    assert counters.resets == 0
