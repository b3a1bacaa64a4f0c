"""Which settings an operator should touch, and where all others stand in the settings file.

The settings of `OPERATOR` stand in their sections (`[broker]`, `[storage]`, ...). All others are
advanced: the defaults suit nearly everybody, and the file has them under `advanced`
(`[advanced.broker]`). Inside the program there is no difference: `Settings` has one field per
setting. A setting at the other place is taken all the same, with a warning that says where it
belongs, so that no file stops working when a setting moves from one group to the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from headrace.errors import ConfigError

ADVANCED = "advanced"
OPERATOR = frozenset(
    {
        "data_dir", "host", "iggy_port", "iggy_host", "quic_port", "placement_port", "node_port",
        "http_port", "http_names", "metrics_port", "placement_managers", "metadata", "advertise",
        "secret", "dev", "insecure",
        "tls.mode", "tls.certificate", "tls.key", "tls.ca",
        "broker.root_username", "broker.root_password", "broker.replicas",
        "broker.durability", "broker.message_expiry_us", "broker.topic_bytes_max",
        "broker.retention_hold_ms_max", "broker.connections_max",
        "placement.etcd.username", "placement.etcd.password", "placement.etcd.ca",
        "placement.etcd.certificate", "placement.etcd.key",
        "data_node.host",
        "controller.master", "controller.shared_path", "controller.spark_conf",
        "controller.umbilical_host", "controller.container_heap_mb", "controller.container_cores",
        "storage.segment_bytes_max", "storage.min_free_bytes",
        "observability.metrics_host", "observability.metrics_token",
        "observability.traces_endpoint", "observability.lineage_url",
    }
)  # fmt: skip


def place_in_file(name: str) -> str:
    """Give the dotted name that the settings file has for a setting."""
    return name if name in OPERATOR else f"{ADVANCED}.{name}"


def gather_advanced(
    values: dict[str, Any], defaults: msgspec.Struct, warn: Callable[[str], None]
) -> None:
    """Merge the table `advanced` of a settings file into the sections beside it.

    `defaults` tells which settings there are. `warn` gets a line per section with settings that
    belong elsewhere. A setting that is given twice, and one in `advanced` that does not exist,
    are refused.
    """
    advanced = values.pop(ADVANCED, {})
    if not isinstance(advanced, dict):
        raise ConfigError(f"settings: {ADVANCED} must be a table")
    given = dict(_flatten(values, defaults))
    misplaced = [name for name in given if name not in OPERATOR and _is_setting(name, defaults)]
    for name, value in _flatten(advanced, defaults):
        if not _is_setting(name, defaults):
            raise ConfigError(f"settings: {ADVANCED}.{name}: there is no such setting")
        if name in given:
            raise ConfigError(f"settings: {name} is given twice, the second time in {ADVANCED}")
        if name in OPERATOR:
            misplaced.append(name)
        put_setting(values, name, value)
    _tell_misplaced(misplaced, warn)


def put_setting(values: dict[str, Any], name: str, value: object) -> None:
    """Set a value in nested tables; `name` has a dot between a section and its setting."""
    *sections, last = name.split(".")
    for section in sections:
        inner = values.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"settings: {section} must be a table")
        values = inner
    values[last] = value


def _flatten(
    values: dict[str, Any], section: msgspec.Struct, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        inner = getattr(section, name, None)
        if isinstance(inner, msgspec.Struct) and isinstance(value, dict):
            yield from _flatten(value, inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _is_setting(name: str, defaults: msgspec.Struct) -> bool:
    value: Any = defaults
    for part in name.split("."):
        if not isinstance(value, msgspec.Struct) or part not in value.__struct_fields__:
            return False
        value = getattr(value, part)
    return not isinstance(value, msgspec.Struct)


def _tell_misplaced(names: list[str], warn: Callable[[str], None]) -> None:
    by_places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in names:
        right = place_in_file(name)
        found = f"{ADVANCED}.{name}" if right == name else name
        by_places[_section_of(right), _section_of(found)].append(name.rpartition(".")[2])
    for (right, found), settings in by_places.items():
        verb = "belong" if len(settings) > 1 else "belongs"
        warn(f"settings: {', '.join(settings)} {verb} {right} now (found {found})")


def _section_of(place: str) -> str:
    section = place.rpartition(".")[0]
    return f"under [{section}]" if section else "at the top of the file"
