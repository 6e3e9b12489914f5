"""TOML presets and command line overrides."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from meshscope.probe.schema.errors import ConfigError
from meshscope.reference_trainer.config.config import TrainerConfig
from meshscope.reference_trainer.config.presets import (
    file_text,
    load_config,
    preset_names,
    preset_text,
)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_a_valid_run(name):
    """Fails if a shipped preset cannot be started."""
    assert load_config(preset_text(name), where=name).train.steps >= 1


def test_the_demo_is_a_mesh_of_eight_with_a_pace():
    """Fails if the demo stops being TP2 x PP2 x DP2, or loses the emulated devices."""
    config = load_config(preset_text("demo"))
    assert (config.layout.tp, config.layout.pp, config.layout.dp) == (2, 2, 2)
    assert config.pace.enabled


def test_overrides_win_over_the_text_and_later_ones_over_earlier():
    """Fails if --set is ignored, typed wrongly, or applied in another order."""
    config = load_config(
        preset_text("tiny"),
        overrides=[
            "model.layers=3",
            "model.layers=4",
            "schedule.kind=gpipe",
            "schedule.layers_per_stage=[3, 1]",
            "train.learning_rate=1",
        ],
    )
    assert config.model.layers == 4
    assert config.schedule.kind == "gpipe"
    assert config.schedule.layers_per_stage == (3, 1)
    assert config.train.learning_rate == 1.0


def test_faults_of_the_command_line_join_those_of_the_text():
    """Fails if a fault gets lost between the file and the command line."""
    text = '[[faults]]\nkind = "slow_rank"\nrank = 0\ndelay_ms = 1.0\n'
    config = load_config(text, faults=["slow_rank:rank=0,delay_ms=2"])
    assert [fault.delay_ms for fault in config.faults] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"overrides": ["model.layer=3"]}, "unknown setting 'layer'.*Known: layers"),
        ({"overrides": ["layers=3"]}, "--set: 'layers=3' is not of the form"),
        ({"overrides": ["modle.layers=3"]}, "unknown setting 'modle'"),
        ({"overrides": ["model.layers=many"]}, "^model.layers: expected `int`"),
        ({"overrides": ["layout.tp=0"]}, "^layout.tp: 0 is out of range. Set it to at least 1"),
        ({"overrides": ["schedule.kind=zigzag"]}, "^schedule.kind: .*zigzag"),
        ({"overrides": ["faults.rank=1"]}, r"^faults: .*Write one \[\[table\]\] for each"),
        ({"faults": ["slow_rank:rank"]}, "not of the form key=value"),
    ],
)
def test_a_wrong_override_is_refused_with_its_name(arguments, message):
    """Fails if a typing error is ignored, ends in a traceback, or is not named."""
    with pytest.raises(ConfigError, match=message):
        load_config(preset_text("tiny"), **arguments)


def test_an_override_of_a_list_is_refused():
    """Fails if overriding one entry of a list ends in a traceback."""
    text = '[[faults]]\nkind = "slow_rank"\ndelay_ms = 1.0\n'
    with pytest.raises(ConfigError, match=r"^--set: faults is not a table"):
        load_config(text, overrides=["faults.rank=1"])


def test_text_that_is_no_toml_is_refused_with_its_source():
    """Fails if a broken file ends in a traceback or is not named."""
    with pytest.raises(ConfigError, match=r"^my\.toml: is not TOML"):
        load_config("layers: 3", where="my.toml")


def test_unknown_presets_and_missing_files_are_named(tmp_path):
    """Fails if a wrong name ends in a traceback."""
    with pytest.raises(ConfigError, match=r"there is no preset 'huge'.*demo"):
        preset_text("huge")
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        file_text(tmp_path / "none.toml")


def test_a_file_of_faults_is_added_to_those_of_the_run(tmp_path):
    """Fails if faults of a file are lost, or replace the others."""
    path = tmp_path / "faults.toml"
    path.write_text("""
[[faults]]
kind = "slow_link"
axis = "pp"
rank = 0
peer = 1
delay_ms = 4
[[faults]]
kind = "crash"
pp = 1
start = 3
mode = "kill"
""")
    config = load_config(
        preset_text("tiny"), faults=["slow_rank:rank=0,delay_ms=2"], fault_file=path
    )
    assert [fault.kind for fault in config.faults] == ["slow_link", "crash", "slow_rank"]
    assert config.faults[1].pp == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("faults = 3", "contains no .*faults.* table"),
        ("[[faults]]\nkind = 'hang'\n[train]\nsteps = 3", "contains 'train'"),
        ("[[faults]]\nkind = 'hang'\nstep = 3", "unknown setting 'step'"),
        ("[[faults]]\nkind = 'flood'", "flood.*Choose one of slow_rank"),
        (
            "[[faults]]\nkind = 'hang'\nrank = 'x'",
            r"faults\[0\]\.rank: .*Write a whole number, or one of",
        ),
        ("[[faults", "is not TOML"),
    ],
)
def test_a_wrong_file_of_faults_is_refused(tmp_path, text, message):
    """Fails if a fault file is read halfway."""
    path = tmp_path / "faults.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(preset_text("tiny"), fault_file=path)


SETTINGS = [
    (section.name, setting)
    for section in fields(TrainerConfig)
    if section.name != "faults"
    for setting in fields(section.default_factory)
]


@pytest.mark.parametrize(("section", "setting"), SETTINGS)
def test_every_setting_can_be_overridden(section, setting):
    """Fails if a field cannot be set from the command line, or takes what does not fit.

    The default is written as TOML, and a value of no type at all is refused by the field's name.
    """
    text = json.dumps(setting.default)
    config = load_config("", overrides=[f"{section}.{setting.name}={text}"])
    assert getattr(getattr(config, section), setting.name) == setting.default
    with pytest.raises(ConfigError, match=rf"^{section}\.{setting.name}: .*(Write|Choose)"):
        load_config("", overrides=[f"{section}.{setting.name}=1979-05-27"])


@pytest.mark.parametrize(("section", "setting"), SETTINGS)
@pytest.mark.parametrize("number", ["-1", "nan", "inf", "1e300"])
def test_no_number_is_too_odd_for_a_plain_answer(section, setting, number):
    """Fails if a number that no run can use ends in a traceback, or is refused without a remedy."""
    refusal = refusal_of(f"{section}.{setting.name}={number}")
    if refusal is None:
        # Without a limit a gradient is measured and not scaled.
        assert number == "1e300" or (number, setting.name) == ("inf", "max_grad_norm")
        return
    assert setting.name in refusal.where
    assert refusal.remedy


def refusal_of(override):
    """Return why an override is refused; None where it is not."""
    try:
        load_config("", overrides=[override])
    except ConfigError as error:
        return error
    return None


def test_a_choice_that_is_none_lists_the_choices():
    """Fails if a typing error in a word leaves the user to search the documentation."""
    with pytest.raises(ConfigError, match=r"device\.backend: .*Choose one of gloo, nccl"):
        load_config("", overrides=["device.backend=mpi"])
