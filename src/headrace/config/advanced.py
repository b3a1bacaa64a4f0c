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
        "http_port", "http_names", "metrics_port", "workers", "placement_managers", "metadata",
        "advertise", "secret", "dev", "insecure",
        "tls.mode", "tls.certificate", "tls.key", "tls.ca",
        "broker.root_username", "broker.root_password", "broker.replicas",
        "broker.workers", "broker.durability", "broker.message_expiry_us", "broker.topic_bytes_max",
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

_HALF_OF_POLL_CACHES = 64 << 20  # the default of either setting that one bound replaced
POLL_CACHES = "broker.poll_cache_bytes_max"
POLL_CACHES_BEFORE = ("broker.read_ahead_bytes_max", "broker.converted_bytes_max")


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
    _join_poll_caches(values, advanced, warn)
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


def _join_poll_caches(
    values: dict[str, Any], advanced: dict[str, Any], warn: Callable[[str], None]
) -> None:
    """Take the two bounds that `POLL_CACHES` replaced as their sum, wherever they stand.

    A file of before names them, and a server that refused it would not start after an upgrade.
    """
    halves: dict[str, Any] = {}
    for table in (values, advanced):
        section = table.get("broker")
        if isinstance(section, dict):
            for name in POLL_CACHES_BEFORE:
                key = name.rpartition(".")[2]
                if key in section:
                    halves[key] = section.pop(key)
    if not halves:
        return
    for name, value in halves.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigError(f"settings: broker.{name} must be a number of bytes")
    missing = len(POLL_CACHES_BEFORE) - len(halves)
    total = sum(halves.values()) + missing * _HALF_OF_POLL_CACHES
    told = f"settings: {', '.join(halves)} became one bound, {ADVANCED}.{POLL_CACHES}"
    if "poll_cache_bytes_max" in (advanced.get("broker") or {}) | (values.get("broker") or {}):
        warn(f"{told}, which the file has too: the old name is left out")
        return
    warn(f"{told}: {total} is taken for it")
    put_setting(advanced, POLL_CACHES, total)


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
