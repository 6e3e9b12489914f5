"""Peaks of device names as drivers report them."""

import pytest

from meshscope.analyze.formulas.peaks import datasheet_peak, rated_clock


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 80GB HBM2e", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA H20", 148),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("AMD Instinct MI300X", 1307),
        ("Tesla V100-SXM2-32GB", 125),
        ("nvidia l40s", 362),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA H800 PCIe", 756),
        ("NVIDIA H800", 989),
        ("NVIDIA A800-SXM4-80GB", 312),
        ("NVIDIA B300 SXM6 AC", 2250),
        ("NVIDIA GB300", 2500),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 70),
        ("NVIDIA L4", 121),
        ("NVIDIA L40", 181),
        ("Tesla T4", 65),
        ("Tesla V100-PCIE-32GB", 112),
        ("Tesla V100S-PCIE-32GB", 130),
        ("AMD Instinct MI210", 181),
        ("AMD Instinct MI250X", 191.5),
        ("AMD Instinct MI325X", 1307.4),
        ("AMD Instinct MI355X", 2516.6),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 3090 Ti", 80),
        ("NVIDIA RTX A6000", 154.8),
        ("NVIDIA RTX 6000 Ada Generation", 364.2),
    ],
)
def test_known_devices(name, tera):
    """MFU would be off by the ratio of two parts whose names contain each other."""
    peak, source = datasheet_peak(name)
    assert peak == tera * 1e12
    assert "data sheet" in source


@pytest.mark.parametrize(
    "name",
    [
        *("", "cpu", "NVIDIA H2000", "NVIDIA RTX A1000", "NVIDIA Z100", "NVIDIA GB10"),
        *("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "NVIDIA GeForce RTX 4090 Laptop GPU"),
        *("NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4060", "NVIDIA A1000"),
        *("NVIDIA A40-8Q", "NVIDIA L40S-48Q", "NVIDIA A100-40C", "NVIDIA A100-SXM-64GB"),
    ],
)
def test_unknown_devices_have_no_peak(name):
    """A guessed peak would give a wrong MFU instead of none."""
    assert datasheet_peak(name) is None


@pytest.mark.parametrize(
    ("name", "tera", "mhz"),
    [
        ("NVIDIA H100 80GB HBM3", 989, 1829),
        ("NVIDIA H200", 989, 1829),
        ("NVIDIA H100 PCIe", 756, 1619),
        ("NVIDIA A100-SXM4-80GB", 312, 1411),
        ("Tesla V100-SXM2-32GB", 125, 1526),
    ],
)
def test_a_peak_assumes_a_clock(name, tera, mhz):
    """A device at its full clock would seem to lose time, or a slow one none."""
    assert rated_clock(name, tera * 1e12) / 1e6 == pytest.approx(mhz, abs=1)


@pytest.mark.parametrize(
    ("name", "tera"),
    [("NVIDIA H100 80GB HBM3", 1979), ("NVIDIA H100 NVL", 835), ("NVIDIA B200", 2250), ("cpu", 1)],
    ids=["sparse peak", "clock not known", "arithmetic not known", "no device"],
)
def test_other_peaks_assume_none(name, tera):
    """A clock would be held against one that no device has."""
    assert rated_clock(name, tera * 1e12) is None
