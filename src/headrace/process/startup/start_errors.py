"""Why a server could not start, in the words of who started it: the options and the folder that
were given, instead of the file or the port on which it failed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.config.settings import Settings
from headrace.errors import (
    ConfigError,
    DiskFullError,
    FormatError,
    LockedError,
    NotFoundError,
    StorageError,
)
from headrace.process.startup.server_note import read_note, told_running

_TAKEN = re.compile(r"cannot listen on (?P<address>\S+):(?P<port>\d+)(?:: (?P<reason>.*))?")
_PORTS = ("iggy_port", "quic_port", "placement_port", "node_port", "http_port", "metrics_port")


@contextmanager
def explaining_start(settings: Settings) -> Iterator[None]:
    try:
        yield
    except LockedError as error:
        raise LockedError(_told_lock(settings.data_dir)) from error
    except FormatError:
        raise  # says which version it is, and what to do
    except DiskFullError as error:
        raise DiskFullError(f"the disk of {settings.data_dir} is full") from error
    except (StorageError, NotFoundError) as error:
        path = error.data.get("path")
        if not isinstance(path, str):
            raise
        reason = error.message[:1].lower() + error.message[1:]
        raise ConfigError(
            f"{settings.data_dir} cannot be the data directory: {path}: {reason}; choose another "
            "--data-dir, or make this one writable for this user"
        ) from error
    except ConfigError as error:
        taken = _TAKEN.match(error.message)
        if taken is None:
            raise
        raise ConfigError(_told_port(settings, taken)) from error


def _told_lock(data_dir: str) -> str:
    there = read_note(data_dir)
    if there is not None:
        return told_running(data_dir, there)
    return f"another headrace uses {data_dir}; stop it, or choose another --data-dir"


def _told_port(settings: Settings, taken: re.Match[str]) -> str:
    address, port, reason = taken["address"], int(taken["port"]), taken["reason"] or ""
    named = next((name for name in _PORTS if getattr(settings, name) == port), "")
    option = f"--{named.replace('_', '-')}" if named else "another port"
    if "assign" in reason or "not known" in reason:
        return f"cannot listen on {address}:{port}: {reason}; --host is an address of this machine"
    if "permission" in reason:
        return f"cannot listen on {address}:{port}: {reason}; choose {option} above 1023"
    return (
        f"port {port} of {address} is taken by another program, perhaps by another headrace; "
        f"choose {option}, where 0 means any that is free"
    )
