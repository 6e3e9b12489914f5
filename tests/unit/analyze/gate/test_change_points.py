"""E-divisive: known changes are found where they are, and none where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from meshscope.analyze.gate.change_points import _energy, change_points

NILE = [
    *(1120, 1160, 963, 1210, 1160, 1160, 813, 1230, 1370, 1140, 995, 935, 1110, 994, 1020, 960),
    *(1180, 799, 958, 1140, 1100, 1210, 1150, 1250, 1260, 1220, 1030, 1100, 774, 840, 874, 694),
    *(940, 833, 701, 916, 692, 1020, 1050, 969, 831, 726, 456, 824, 702, 1120, 1100, 832, 764),
    *(821, 768, 845, 864, 862, 698, 845, 744, 796, 1040, 759, 781, 865, 845, 944, 984, 897, 822),
    *(1010, 771, 676, 649, 846, 812, 742, 801, 1040, 860, 874, 848, 890, 744, 749, 838, 1050, 918),
    *(986, 797, 923, 975, 815, 1020, 906, 901, 1170, 912, 746, 919, 718, 714, 740),
]
"""Flow of the Nile at Aswan 1871 to 1970 (Cobb 1978, Biometrika 65): it fell in 1898."""


def test_the_nile_changes_in_1898():
    """The published change point of the best known series would be missed."""
    found = change_points(np.array(NILE, float))
    assert [1871 + point.index for point in found] == [1899]


def test_the_statistic_is_that_of_the_paper():
    """A faster formula would compute something else."""
    values = np.random.default_rng(1).normal(size=9)
    distance = np.abs(values[:, None] - values[None, :])
    right = []
    for at in range(2, 8):
        first, second = values[:at], values[at:]
        between = np.mean([abs(a - b) for a in first for b in second])
        inner = [
            np.mean([abs(a - b) for i, a in enumerate(side) for b in side[i + 1 :]])
            for side in (first, second)
        ]
        right.append(at * (9 - at) / 9 * (2 * between - sum(inner)))
    assert _energy(distance) == pytest.approx(np.array(right))


def test_two_changes_are_found_at_their_places():
    """A later change would hide behind the first."""
    random = np.random.default_rng(3)
    levels = np.repeat([0.0, 0.03, 0.01], 20)
    found = change_points(levels + random.normal(0, 0.003, 60))
    assert [point.index for point in found] == [20, 40]


def test_noise_alone_changes_nothing():
    """A history would be full of changes that nobody made."""
    random = np.random.default_rng(4)
    found = [len(change_points(random.normal(size=40), permutations=199)) for _ in range(60)]
    assert sum(count > 0 for count in found) <= 8


def test_equal_values_have_no_change():
    """A division of nothing by nothing would be a change."""
    assert change_points(np.full(20, 5.0)) == ()
