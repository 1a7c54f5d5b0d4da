"""A machine of the user's own, from a TOML or JSON file, or a preset by its name."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from mtrains.errors import FormatError
from mtrains.placement.presets import TOPOLOGIES, log_of, slots_of
from mtrains.placement.topology import Cpu, Link, LogTier, SlotTier, Topology
from mtrains.units import parse_bytes

if sys.version_info >= (3, 11):
    import tomllib

__all__ = ["load_topology", "topology_of_dict", "topology_to_dict"]

_Kind = TypeVar("_Kind", SlotTier, LogTier, Link, Cpu)
_TOP_LEVEL = {"name", "static", "compute_samples_per_second", "network_bytes_per_second"}


def load_topology(name: str | os.PathLike[str]) -> Topology:
    """Return the preset of this name, or what the file says.

    Raises: ValueError if it is neither; FormatError naming file and field; OSError.
    """
    if isinstance(name, str) and name in TOPOLOGIES:
        return TOPOLOGIES[name]
    path = Path(name)
    if path.suffix not in (".toml", ".json"):
        raise ValueError(f"no topology {os.fspath(name)!r}: give a .toml or .json file, or {', '.join(TOPOLOGIES)}")
    content = path.read_bytes()
    try:
        value = json.loads(content) if path.suffix == ".json" else _toml(content)
        return topology_of_dict(value, path.stem)
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(f"{os.fspath(name)}: {error}") from None


def _toml(content: bytes) -> dict[str, Any]:
    if sys.version_info < (3, 11):
        raise ValueError("reading TOML needs Python 3.11; write the same as JSON")
    return tomllib.loads(content.decode())


def topology_of_dict(content: Mapping[str, Any], name: str = "own") -> Topology:
    """Return the machine that a file describes: [[slots]], [log], [link], [cpu] and names of their fields.

    A part may name a preset `device` and a `count` of it, and replace single fields. Bytes may be written "16GiB".
    Raises: ValueError, TypeError naming the field.
    """
    _refuse_unknown("topology", content, _TOP_LEVEL | {"slots", "log", "link", "cpu", "nodes"})
    slots = content.get("slots")
    if not isinstance(slots, list) or not slots:
        raise ValueError("a topology needs [[slots]], one a tier from fast to slow")
    fields = {field: content[field] for field in _TOP_LEVEL & set(content)}
    fields.setdefault("name", name)
    return Topology(
        slots=tuple(_part(SlotTier, slot, slots_of, "slots") for slot in slots),
        log=_part(LogTier, content["log"], log_of, "log") if content.get("log") else None,
        link=_part(Link, content["link"], None, "link") if content.get("link") else None,
        cpu=_part(Cpu, content["cpu"], None, "cpu") if content.get("cpu") else None,
        nodes=content.get("nodes", 1),
        **fields,
    )


def topology_to_dict(topology: Topology) -> dict[str, Any]:
    """Return what topology_of_dict() reads."""
    fields = dataclasses.asdict(topology)
    return {**fields, "slots": list(fields["slots"])}


def _part(
    kind: type[_Kind], content: Mapping[str, Any], preset: Callable[[str, float], _Kind] | None, where: str
) -> _Kind:
    if not isinstance(content, Mapping):
        raise ValueError(f"{where} must be a table of fields")
    fields = dataclasses.fields(kind)
    _refuse_unknown(where, content, {field.name for field in fields} | ({"count"} if preset else set()))
    values: dict[str, Any] = {
        name: parse_bytes(value) if isinstance(value, str) and "bytes" in name else value
        for name, value in content.items()
        if name != "count"
    }
    lacking = [
        field.name for field in fields if field.default is dataclasses.MISSING and field.name not in values
    ]
    if preset is not None and "device" in values and (lacking or "count" in content):
        return dataclasses.replace(preset(values.pop("device"), content.get("count", 1)), **values)
    if lacking:
        raise ValueError(f"{where} lacks {', '.join(lacking)}")
    return kind(**values)


def _refuse_unknown(where: str, content: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(content) - known)
    if unknown:
        raise ValueError(f"{where} has no field {unknown[0]!r}; it has {', '.join(sorted(known))}")
