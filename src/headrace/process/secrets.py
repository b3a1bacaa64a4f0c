"""The identity of an installation: made at the first start, kept with mode 0600.

* `secrets/cluster` signs node credentials, read tickets and the service token.
* `secrets/http-token` is what running code takes beside the well-known password of `--dev`.
* `cluster` is the uuid that Spark's offsets name. It lies beside the data it belongs to, so that a
  wiped data directory is another cluster and not a silent mix-up.
"""

from __future__ import annotations

from uuid import UUID

from headrace.errors import ConfigError
from headrace.runtime import Disk, Random, Runtime

HTTP_TOKEN_NAME = "http-token"
_SECRET_BYTES = 32


def load_secret(disk: Disk, random: Random, data_dir: str) -> bytes:
    """The cluster's secret, made when this is the first start."""
    path = f"{data_dir}/secrets/cluster"
    if not disk.exists(path):
        disk.make_folder(f"{data_dir}/secrets")
        disk.write_atomic(path, random.bytes(_SECRET_BYTES).hex().encode(), mode=0o600)
    try:
        secret = bytes.fromhex(disk.read(path).decode("ascii", "replace"))
    except ValueError:
        secret = b""
    if len(secret) != _SECRET_BYTES:
        raise ConfigError(
            f"{path} does not hold a secret; restore it from a backup, or, if nothing else uses "
            "this data directory, remove it to have a new one made"
        )
    return secret


def http_token_path(data_dir: str) -> str:
    return f"{data_dir}/secrets/{HTTP_TOKEN_NAME}"


def load_http_token(disk: Disk, random: Random, data_dir: str) -> str:
    path = http_token_path(data_dir)
    if not disk.exists(path):
        disk.make_folder(f"{data_dir}/secrets")
        disk.write_atomic(path, random.bytes(_SECRET_BYTES).hex().encode(), mode=0o600)
    token = disk.read(path).decode("ascii", "replace").strip()
    if len(token) != 2 * _SECRET_BYTES:
        raise ConfigError(f"{path} does not hold a token; remove it to have a new one made")
    return token


def load_cluster_uuid(disk: Disk, random: Random, folder: str) -> str:
    path = f"{folder}/cluster"
    if not disk.exists(path):
        disk.make_folder(folder)
        disk.write_atomic(path, str(random.uuid()).encode())
    try:
        return str(UUID(disk.read(path).decode("ascii", "replace").strip()))
    except ValueError as error:
        raise ConfigError(f"{path} does not hold a uuid; restore it from a backup") from error


async def load_identity(runtime: Runtime, data_dir: str) -> tuple[bytes, str]:
    """The cluster's secret and its uuid, made when this is the first start."""
    files = runtime.executor("process", 1)
    try:
        secret = await files.run(load_secret, runtime.disk, runtime.random, data_dir)
        placement = f"{data_dir}/placement"
        uuid = await files.run(load_cluster_uuid, runtime.disk, runtime.random, placement)
        return secret, uuid
    finally:
        files.close()
