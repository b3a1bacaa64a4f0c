"""Files at a local path and at fsspec addresses; memory:// is a store like any other to fsspec."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ConfigError, NotFoundError, RemoteProtocolError
from headrace.pipeline.shared_files import read_shared, write_shared
from headrace.runtime.system import system_runtime

DISK = system_runtime().disk


@pytest.fixture(params=["local", "file", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {
        "local": str(tmp_path),
        "file": f"file://{tmp_path}",
        "memory": f"memory://{tmp_path.name}",
    }[request.param]


def test_what_is_written_is_read_again(root: str) -> None:
    path = f"{root}/shop/recovery/heartbeatUri"
    with pytest.raises(NotFoundError):
        read_shared(DISK, path, bytes_max=100)
    for data in (b"first", b"second and longer", b"3"):
        write_shared(DISK, path, data)
        assert read_shared(DISK, path, bytes_max=100) == data
    write_shared(DISK, path, bytes(101))
    with pytest.raises(RemoteProtocolError, match="longer"):
        read_shared(DISK, path, bytes_max=100)


def test_an_unknown_scheme_is_a_mistake_in_the_settings() -> None:
    with pytest.raises(ConfigError, match="nonsense://"):
        read_shared(DISK, "nonsense://bucket/x", bytes_max=100)
