"""GET_SNAPSHOT_FILE of a real server: the machine's own facts, and none of its secrets."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

from headrace.client.iggy import IggyClient
from headrace.net.addresses import parse_address
from headrace.runtime.system import system_runtime
from tests.integration.server import running


async def test_a_running_servers_snapshot(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text('[broker]\nroot_username = "boss"\nroot_password = "very hush"\n')
    with running(tmp_path / "server", arguments=("--config", str(settings))) as server:
        address = parse_address(server.addresses["iggy"])
        async with await IggyClient.connect(system_runtime(), *address) as client:
            await client.login("boss", "very hush")
            await client.create_stream("seen in the log")
            archive = zipfile.ZipFile(io.BytesIO(await client.get_snapshot()))
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
        assert f"{server.process.pid:>8} " in texts["process_list.txt"]
        assert json.loads(texts["resource_usage.txt"])["pid"] == server.process.pid
        assert "broker leads" in texts["server_logs.txt"]
        assert "seen in the log" in texts["server_logs.txt"]
        assert "secrets/cluster" in texts["filesystem_overview.txt"]
        shown = json.loads(texts["server_config.txt"])["broker"]
        assert (shown["root_username"], shown["root_password"]) == ("boss", "<hidden>")
        secret = (server.folder / "data" / "secrets" / "cluster").read_text()
        for text in texts.values():
            assert "very hush" not in text
            assert secret not in text
