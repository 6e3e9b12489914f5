"""The names that users may rely on; every other name may change freely."""

import importlib

import pytest

PUBLIC = {
    "meshscope": {"__version__"},
    "meshscope.probe": {
        "ProbeConfig",
        "Session",
        "attach",
        "describe",
        "detach",
        "sequences",
        "span",
        "step",
    },
    "meshscope.analyze": {
        "Bar",
        "Bubble",
        "Cause",
        "Diagnosis",
        "Finding",
        "Trace",
        "Utilization",
        "diagnose",
        "load_trace",
    },
    "meshscope.dashboard": {"create_app", "serve"},
    "meshscope.reference_trainer": set(),
}


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_are_pinned(package):
    """Fails when a public name is added or dropped without saying so here."""
    module = importlib.import_module(package)
    assert set(getattr(module, "__all__", ())) == PUBLIC[package]
    assert not [name for name in PUBLIC[package] if not hasattr(module, name)]
