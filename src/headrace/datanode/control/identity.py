"""What a data node keeps beside its log: its id, and which ranges an unclean stop interrupted.

node.json          {"node_id", "store_id"}; belongs to the store with that uuid and no other
interrupted.json   [[stream id, range index]] open at an unclean stop and not sealed since
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from headrace.errors import CorruptionError, NotFoundError
from headrace.runtime.interfaces import Disk
from headrace.storage.layout import RangeKey

T = TypeVar("T")

NODE_FILE = "node.json"
INTERRUPTED_FILE = "interrupted.json"


class Identity(msgspec.Struct, frozen=True):
    node_id: int
    store_id: str


def load_identity(disk: Disk, folder: str, store_id: str) -> Identity | None:
    """None when the node has no id yet, or the id belongs to a store that is gone."""
    identity = _load(disk, f"{folder}/{NODE_FILE}", Identity)
    return identity if identity is not None and identity.store_id == store_id else None


def save_identity(disk: Disk, folder: str, identity: Identity) -> None:
    disk.write_atomic(f"{folder}/{NODE_FILE}", msgspec.json.encode(identity))


def load_interrupted(disk: Disk, folder: str) -> set[RangeKey]:
    keys = _load(disk, f"{folder}/{INTERRUPTED_FILE}", list[tuple[int, int]])
    return {RangeKey(*key) for key in keys or ()}


def save_interrupted(disk: Disk, folder: str, keys: set[RangeKey]) -> None:
    disk.write_atomic(f"{folder}/{INTERRUPTED_FILE}", msgspec.json.encode(sorted(keys)))


def _load(disk: Disk, path: str, type_: type[T]) -> T | None:
    try:
        data = disk.read(path)
    except NotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.MsgspecError as error:
        raise CorruptionError("unreadable file", path=path) from error
