"""What of the settings a snapshot may show."""

from __future__ import annotations

import json

import msgspec

from headrace.config.settings import HIDDEN, SHOWN, Settings, parse_settings, shown_settings

SECRETS = b"""
secret = "env:HUSH"
[broker]
root_password = "hush"
[controller]
master = "spark://hush@host:7077"
shared_path = "s3://hush:hush@bucket/x"
[controller.spark_conf]
"spark.executor.memory" = "2g"
"spark.sql.streaming.stateStore.providerClass" = "rocks"
"spark.hadoop.fs.s3a.access.key" = "hush"
"spark.hadoop.fs.s3a.secret.key" = "hush"
"fs.azure.account.key.acct.dfs.core.windows.net" = "hush"
"fs.azure.sas.c.acct.blob.core.windows.net" = "hush"
"spark.sql.catalog.pg.url" = "jdbc:postgresql://db/x?user=a&password=hush"
"spark.executor.extraJavaOptions" = "-Dx=hush"
"spark.executorEnv.PGPASS" = "hush"
[observability]
lineage_url = "https://u:hush@lineage"
traces_endpoint = "https://u:hush@traces"
metrics_token = "file:hush"
[placement.etcd]
password = "env:hush"
[advanced.placement.etcd]
endpoints = ["http://u:hush@etcd:1"]
"""


def test_no_secret_is_shown_whatever_it_is_called() -> None:
    shown = shown_settings(parse_settings(SECRETS, {}))
    assert "hush" not in json.dumps(shown).lower()
    conf = shown["controller"]["spark_conf"]
    assert conf["spark.executor.memory"] == "2g"
    assert conf["spark.sql.streaming.stateStore.providerClass"] == "rocks"
    assert conf["spark.hadoop.fs.s3a.secret.key"] == HIDDEN, "that it is set is worth knowing"
    assert shown["host"] == "127.0.0.1"
    assert shown["broker"]["root_password"] == HIDDEN
    assert shown["http_port"] == 3000


def test_what_is_not_set_says_so() -> None:
    shown = shown_settings(Settings())
    assert (shown["secret"], shown["controller"]["spark_conf"]) == ("", {})
    beside = {"quic", "client", "plain_streams"}  # advanced as a whole
    assert shown.keys() == msgspec.to_builtins(Settings()).keys() - beside | {"advanced"}
    assert shown["advanced"].keys() >= beside


def test_advanced_settings_are_shown_where_the_file_has_them() -> None:
    shown = shown_settings(parse_settings(b"[advanced.broker]\nlease_ms = 600\n", {}))
    assert shown["advanced"]["broker"]["lease_ms"] == 600
    assert shown["advanced"]["placement"]["etcd"]["timeout_ms"] == 1_000
    assert "lease_ms" not in shown["broker"]
    assert shown["broker"]["durability"] == "synced"


def test_every_name_that_may_be_shown_is_a_setting() -> None:
    def names(section: msgspec.Struct, prefix: str = "") -> set[str]:
        found = set()
        for name in section.__struct_fields__:
            value = getattr(section, name)
            inner = isinstance(value, msgspec.Struct)
            found |= names(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}"}
        return found

    assert names(Settings()) >= SHOWN
