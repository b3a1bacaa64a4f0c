"""Every view of a partition tells the offset that its next message gets, also without messages."""

from __future__ import annotations

import base64
import json
import urllib.request
from pathlib import Path
from typing import Any

from tests.integration.server import Server, running

MESSAGES = 10


def ok(server: Server, *arguments: str, **options: Any) -> str:
    done = server.headrace(*arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(server: Server, *arguments: str) -> Any:
    return json.loads(ok(server, *arguments, "--json"))


def fetched(server: Server, path: str) -> str:
    login = base64.b64encode(b"iggy:iggy").decode()
    request = urllib.request.Request(
        f"http://{server.addresses['http']}{path}", headers={"Authorization": f"Basic {login}"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


def next_offsets(server: Server) -> dict[str, int]:
    """What each view says of the only partition."""
    (of_topic,) = shown(server, "topic", "show", "s/t")["partitions"]
    (of_offset,) = shown(server, "offset", "get", "s/t", "7")
    (of_group,) = shown(server, "group", "show", "s/t", "readers")["partitions"]
    (of_api,) = json.loads(fetched(server, "/api/v1/streams/s/topics/t"))["parts"]
    return {
        "topic show": of_topic["next_offset"],
        "offset get": of_offset["next"],
        "group show": of_group["next"],
        "api": of_api["next_offset"],
    }


def test_all_views_agree_with_the_next_message_when_segments_were_deleted(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        ok(server, "stream", "create", "s")
        ok(server, "topic", "create", "s/t")
        ok(server, "group", "create", "s/t", "readers")
        ok(server, "produce", "s/t", input="".join(f"{n}\n" for n in range(MESSAGES)))
        ok(server, "offset", "set", "s/t", "7", "--partition", "0", "--offset", "4")
        # Whoever takes over seals what was open: now all messages are in segments to delete.
        server.kill()
        server.start()
        ok(server, "segment", "delete", "s/t", "--partition", "0", "--count", str(MESSAGES))
        (left,) = shown(server, "topic", "show", "s/t")["partitions"]
        assert left["messages"] == 0
        assert set(next_offsets(server).values()) == {MESSAGES}, next_offsets(server)
        (behind,) = shown(server, "offset", "get", "s/t", "7")
        assert behind["lag"] == 0, "nothing is left to read"
        ok(server, "produce", "s/t", input="one more\n")
        (row,) = ok(server, "consume", "s/t", "--json").splitlines()
        assert json.loads(row)["offset"] == MESSAGES
        assert set(next_offsets(server).values()) == {MESSAGES + 1}
