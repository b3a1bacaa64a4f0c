"""The frozen `Settings` of a process: how they are parsed, checked and shown to others.

`parse_settings` makes them once, at the edge of the program, from the bytes of a file and from
what flags said; this module reads no file and no environment by itself. `shown_settings` is what
a snapshot of the server shows to people who are not its operator. `SHOWN` names the texts in it;
other text is hidden, because nobody can list all names that a secret may have: Spark's settings
alone carry keys of S3, Azure and databases under dozens of them. Numbers and switches are shown,
because no secret is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headrace.config.advanced import ADVANCED, OPERATOR, gather_advanced, put_setting
from headrace.config.broker import BrokerSettings, QuicSettings
from headrace.config.controller import ControllerSettings
from headrace.config.datanode import DataNodeSettings, StorageSettings
from headrace.config.placement import PlacementSettings
from headrace.config.process import ClientSettings, ObservabilitySettings, TlsSettings
from headrace.errors import ConfigError

Port = Annotated[int, Meta(ge=0, le=65535)]
PortOrOff = Annotated[int, Meta(ge=-1, le=65535)]

LOOPBACK = ("127.0.0.1", "::1", "localhost")
WILDCARDS = ("0.0.0.0", "::")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every role shares; each role's own settings stand in a section of their own."""

    data_dir: Annotated[str, Meta(description="Folder that holds everything durable.")] = (
        "headrace-data"
    )
    host: Annotated[
        str,
        Meta(
            description="Address that listeners bind to. Beyond loopback it needs"
            ' `tls.mode = "required"` with a certificate of your own; the umbilical, which'
            " encrypts nothing, stays on loopback (`controller.umbilical_host`)."
        ),
    ] = "127.0.0.1"
    iggy_port: Annotated[Port, Meta(description="Iggy clients, TCP; 0 = any free port.")] = 8090
    iggy_host: Annotated[
        str,
        Meta(
            description="Address of the Iggy port, TCP and QUIC; empty = `host`. Beyond loopback it"
            ' needs `tls.mode = "required"` with a certificate of your own.'
        ),
    ] = ""
    quic_port: Annotated[
        PortOrOff, Meta(description="Iggy clients, QUIC (UDP); 0 = any free port, -1 = off.")
    ] = 8080
    placement_port: Annotated[Port, Meta(description="Placement manager, SBP.")] = 12378
    node_port: Annotated[Port, Meta(description="Data node, SBP.")] = 10911
    http_port: Annotated[Port, Meta(description="JSON API and dashboard.")] = 3000
    http_names: Annotated[
        tuple[str, ...],
        Meta(
            description="Names by which browsers and programs reach the HTTP port (and the metrics"
            " port on loopback), beside its address, localhost and, beyond loopback, the machine's"
            " own name: a request for another `Host` is refused. `*` allows any."
        ),
    ] = ()
    metrics_port: Annotated[
        PortOrOff,
        Meta(
            description="`/metrics`, `/health` and `/ready` of this process, without a login;"
            " 0 = any free port, -1 = off. In `headrace up` the control plane has the next one, and"
            " of several `workers` each one after it."
        ),
    ] = -1
    workers: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="Processes of `headrace up` that serve clients on one port, each with a"
            " data node of its own; 0 = one less than there are cores, at least 1, at most 16."
            " What the settings of brokers, data nodes and storage bound is bounded in each.",
        ),
    ] = 1
    placement_managers: Annotated[
        tuple[str, ...],
        Meta(description="Addresses of the placement managers, for roles that run by themselves."),
    ] = ()
    metadata: Annotated[
        str,
        Meta(
            pattern="^(sqlite|etcd://[^/]+)$",
            description="Where a placement manager keeps its metadata: `sqlite` in its data"
            " directory, or `etcd://host:port,host:port` for several of them.",
        ),
    ] = "sqlite"
    advertise: Annotated[
        str,
        Meta(
            description="Address that others reach this role at, `host` or `host:port`; empty ="
            " where it listens."
        ),
    ] = ""
    secret: Annotated[
        str,
        Meta(
            description="The secret that all roles of a cluster share, as `env:NAME` or"
            " `file:PATH` with 64 hex digits; empty = the one in the data directory."
        ),
    ] = ""
    dev: Annotated[bool, Meta(description="Root user iggy/iggy; loopback only.")] = False
    insecure: Annotated[bool, Meta(description="Allow listening beyond loopback without TLS.")] = (
        False
    )
    plain_streams: Annotated[
        bool,
        Meta(
            description="Let peers without a credential make and use SBP streams of their own on"
            " the placement manager's and the data node's port; `headrace up` on loopback only."
        ),
    ] = False
    tls: TlsSettings = TlsSettings()
    quic: QuicSettings = QuicSettings()
    broker: BrokerSettings = BrokerSettings()
    placement: PlacementSettings = PlacementSettings()
    data_node: DataNodeSettings = DataNodeSettings()
    controller: ControllerSettings = ControllerSettings()
    client: ClientSettings = ClientSettings()
    storage: StorageSettings = StorageSettings()
    observability: ObservabilitySettings = ObservabilitySettings()

    def check(self) -> None:
        """Refuse combinations that would be unsafe, with the way out in the text."""
        self._check_empty()
        told = self.observability
        told_all = self.metrics_port >= 0 and told.metrics_host not in LOOPBACK
        if told_all and not told.metrics_token and not self.insecure:
            raise ConfigError(
                f"refusing to tell everybody on {told.metrics_host} the names of all topics; "
                "set observability.metrics_token, or use --insecure if the network is yours alone"
            )
        umbilical = self.controller.umbilical_host
        if umbilical in WILDCARDS:
            raise ConfigError(
                f"controller.umbilical_host is told to containers: {umbilical} is no place to find "
                "us; name an address of this machine"
            )
        hosts = (self.host, self.iggy_host, umbilical)
        beyond = [host for host in hosts if host and host not in LOOPBACK]
        if not beyond:
            return
        if self.plain_streams and self.host in beyond:
            raise ConfigError(
                f"plain_streams lets anybody store data and works on loopback only, not on "
                f"{self.host}; drop plain_streams, or drop --host"
            )
        if self.dev:
            raise ConfigError(
                f"--dev has a well-known password and works on loopback only, not on {beyond[0]}; "
                "drop --dev, or drop --host"
            )
        if self.insecure:
            return
        if umbilical in beyond:
            raise ConfigError(
                f"refusing to let the umbilical listen on {umbilical}: containers log in there, "
                "but nothing is encrypted, and the broker's token passes it; use --insecure if "
                "the network is yours alone"
            )
        if self.tls.mode != "required" or not self.tls.has_files:
            raise ConfigError(
                f"refusing to listen on {beyond[0]} without TLS: anyone on that network could "
                'read passwords and what passes; set tls.mode = "required" with tls.certificate '
                "and tls.key, or use --insecure if the network is yours alone (the umbilical stays "
                "on loopback either way)"
            )

    def _check_empty(self) -> None:
        """To the system an empty host is every interface, an empty folder the current one."""
        given = {
            "host": self.host,
            "observability.metrics_host": self.observability.metrics_host,
            "data_dir": self.data_dir,
        }
        for name, value in given.items():
            if not value.strip():
                raise ConfigError(f"{name} is empty: leave it out, or say what it should be")


def _ignore(line: str) -> None:
    """Take a warning that nobody waits for."""


def parse_settings(
    file: bytes, overrides: Mapping[str, object], warn: Callable[[str], None] = _ignore
) -> Settings:
    """Make settings from the bytes of a TOML file, then from what flags and environment said.

    `warn` gets a line for people about settings that stand at the wrong place of the file.
    """
    for name, value in overrides.items():
        if isinstance(value, str) and not value.strip():
            raise ConfigError(
                f"--{name.replace('_', '-')} was given nothing (an unset variable?): leave it out, "
                "or say what it should be"
            )
    try:
        values = msgspec.toml.decode(file) if file else {}
        if not isinstance(values, dict):
            raise ConfigError("the settings file must hold a table")
        gather_advanced(values, Settings(), warn)
        for name, value in overrides.items():
            if value is not None:
                put_setting(values, name, value)
        settings = msgspec.convert(values, Settings)
    except msgspec.DecodeError as error:
        raise ConfigError(f"settings: {error}") from error
    settings.check()
    return settings


HIDDEN = "<hidden>"
SHOWN = frozenset(
    {
        "data_dir", "host", "iggy_host", "http_names", "placement_managers", "metadata",
        "advertise",
        "tls.mode", "tls.certificate", "tls.key", "tls.ca",  # files, not what is in them
        "broker.cluster_name", "broker.root_username", "broker.durability",
        "broker.default_dialect",
        "placement.etcd.prefix", "placement.etcd.username", "placement.etcd.ca",
        "placement.etcd.certificate", "placement.etcd.key",
        "controller.umbilical_host",
        "observability.metrics_host", "observability.lineage_namespace",
    }
)  # fmt: skip
SPARK_SHOWN = frozenset(
    {
        "spark.app.name", "spark.cores.max", "spark.default.parallelism", "spark.driver.cores",
        "spark.driver.maxResultSize", "spark.driver.memory", "spark.driver.memoryOverhead",
        "spark.executor.cores", "spark.executor.instances", "spark.executor.memory",
        "spark.executor.memoryOverhead", "spark.executor.pyspark.memory", "spark.local.dir",
        "spark.memory.fraction", "spark.memory.storageFraction", "spark.scheduler.mode",
        "spark.serializer", "spark.sql.session.timeZone", "spark.sql.shuffle.partitions",
        "spark.submit.deployMode", "spark.task.cpus", "spark.task.maxFailures",
    }
)  # fmt: skip
SPARK_SHOWN_FAMILIES = (
    "spark.dynamicAllocation.",
    "spark.sql.adaptive.",
    "spark.sql.execution.arrow.",
    "spark.sql.streaming.",
)
_SPARK = "controller.spark_conf"


def shown_settings(settings: Settings) -> dict[str, Any]:
    """Give the settings as the settings file has them, the advanced ones under `advanced`."""
    shown: dict[str, Any] = {}
    advanced: dict[str, Any] = {}
    for name, value in _leaves(settings, ""):
        put_setting(shown if name in OPERATOR else advanced, name, _shown(value, name))
    return {**shown, ADVANCED: advanced}


def _leaves(section: msgspec.Struct, prefix: str) -> Iterator[tuple[str, Any]]:
    for field in section.__struct_fields__:
        value = getattr(section, field)
        if isinstance(value, msgspec.Struct):
            yield from _leaves(value, f"{prefix}{field}.")
        else:
            yield f"{prefix}{field}", value


def _shown(value: Any, path: str) -> Any:
    if value is None or isinstance(value, bool | int | float) or not value:
        return value
    if isinstance(value, dict):
        return {
            name: each if path == _SPARK and _is_shown(name) else HIDDEN
            for name, each in value.items()
        }
    return value if path in SHOWN else HIDDEN


def _is_shown(name: str) -> bool:
    return name in SPARK_SHOWN or name.startswith(SPARK_SHOWN_FAMILIES)
