"""From TOML text and ``section.field=value`` overrides to a TrainerConfig."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args, get_type_hints

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.message import message

from .checks import typed
from .config import TrainerConfig
from .elastic import fit_job
from .fault_plan import parse_fault

_CONFIGS = files("meshscope.reference_trainer") / "configs"


def preset_names() -> list[str]:
    """Return the names of the presets that ship with the trainer, sorted."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in _CONFIGS.iterdir()
        if entry.name.endswith(".toml")
    )


def preset_text(name: str) -> str:
    """Return the TOML text of a preset.

    Raises:
        ConfigError: There is no such preset.
    """
    if name not in preset_names():
        raise ConfigError(
            message("refused.no_preset", name=name),
            where="--preset",
            remedy=message("advice.choose_one_of", known=list(preset_names())),
        )
    return (_CONFIGS / f"{name}.toml").read_text(encoding="utf-8")


def file_text(path: Path) -> str:
    """Return the text of a configuration file.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            message("refused.unreadable", error=error),
            where=str(path),
            remedy=message("advice.text_file"),
        ) from error


def load_config(
    text: str,
    *,
    overrides: Iterable[str] = (),
    faults: Iterable[str] = (),
    fault_file: Path | None = None,
    where: str = "config",
    world_size: int = 1,
) -> TrainerConfig:
    """Build a configuration.

    Args:
        text: TOML with one table per section of TrainerConfig.
        overrides: ``section.field=value``, later ones win.
        faults: Faults in command line form, added to those of the text.
        fault_file: A TOML file with more faults.
        where: What messages call the text.
        world_size: Ranks of the job, which ``layout.dp = "auto"`` follows.

    Raises:
        ConfigError: A name is unknown or a value does not fit.
    """
    raw = _toml(text, where)
    for override in overrides:
        _apply_override(raw, override)
    raw = fit_job(raw, world_size)
    config = _convert(raw, where)
    added: list[object] = [] if fault_file is None else _file_faults(fault_file)
    added += [parse_fault(fault) for fault in faults]
    return _convert(raw | {"faults": [*config.faults, *added]}, where) if added else config


def _file_faults(path: Path) -> list[object]:
    """Return the ``[[faults]]`` tables of a file, with their names checked.

    Raises:
        ConfigError: It cannot be read, is not TOML, or holds something else.
    """
    raw = _toml(file_text(path), str(path))
    others = sorted(raw.keys() - {"faults"})
    tables = raw.get("faults")
    if others or not isinstance(tables, list):
        raise ConfigError(
            message("refused.holds_other", name=others[0])
            if others
            else message("refused.no_faults"),
            where=str(path),
            remedy=message("advice.faults_alone"),
        )
    _check_names(raw, TrainerConfig, str(path))
    return tables


def _toml(text: str, where: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        ConfigError: It is not TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            message("refused.no_toml", error=error),
            where=where,
            remedy=message("advice.sections"),
        ) from error


def _apply_override(raw: dict[str, Any], override: str) -> None:
    """Set one field of the raw mapping."""
    path, equals, value = override.partition("=")
    section, dot, name = path.strip().partition(".")
    if not equals or not dot:
        raise ConfigError(
            message("refused.no_override", override=override),
            where="--set",
            remedy=message("advice.override"),
        )
    fields_of_section = raw.setdefault(section, {})
    if not isinstance(fields_of_section, dict):
        raise ConfigError(
            message("refused.no_fields", section=section),
            where="--set",
            remedy=message("advice.change_file"),
        )
    fields_of_section[name] = _toml_value(value.strip())


def _toml_value(text: str) -> Any:
    """Return the TOML meaning of a text, which is itself where it has none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _convert(raw: Mapping[str, Any], where: str) -> TrainerConfig:
    """Check the names, then the types, and build the dataclasses."""
    _check_names(raw, TrainerConfig, where)
    return typed(raw, TrainerConfig)


def _check_names(raw: Mapping[str, Any], target: type, where: str) -> None:
    """Refuse names that are no field of the dataclass, down through the sections."""
    hints = get_type_hints(target)
    known = [field.name for field in fields(target)]
    for name, value in raw.items():
        if name not in known:
            raise ConfigError(
                message("refused.unknown_setting", name=name),
                where=where,
                remedy=message("advice.known", known=list(known)),
            )
        inner = next((t for t in (hints[name], *get_args(hints[name])) if is_dataclass(t)), None)
        if inner is None:
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Mapping) and isinstance(inner, type):
                _check_names(part, inner, f"{where}.{name}" if where != "config" else name)
