"""Another user of the machine, who has no secret, at the ports that a session listens on.

The stranger speaks Spark's own protocol: frames of `length u64, type u8, request id u64, body
length u32, body`, the length counting the whole frame.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

REQUEST, RESPONSE, FAILURE = 3, 4, 5
OPEN_BLOCKS = 0
LISTENS = "0A"
LOOPBACK = {
    "0100007F",
    "00000000000000000000000001000000",
    "0000000000000000FFFF00000100007F",  # of IPv4, as Java writes it in a socket of IPv6
}


def text(value: str) -> bytes:
    return struct.pack(">I", len(value)) + value.encode()


def ask(port: int, body: bytes) -> tuple[int | None, bytes]:
    """What is answered to a request; type None when the peer hangs up instead."""
    head = struct.pack(">BQI", REQUEST, 7, len(body))
    frame = struct.pack(">Q", 8 + len(head) + len(body)) + head + body
    with socket.create_connection(("127.0.0.1", port), 10) as peer:
        peer.settimeout(30)
        peer.sendall(frame)
        answer = b""
        while len(answer) < 9 or len(answer) < struct.unpack_from(">Q", answer)[0]:
            some = peer.recv(65536)
            if not some:
                return None, answer
            answer += some
        return answer[8], answer


def listening(process: int) -> dict[int, str]:
    """The ports that a process listens on, with the address, as /proc writes it."""
    mine = set()
    for each in Path(f"/proc/{process}/fd").iterdir():
        try:
            mine.add(str(each.readlink()))
        except OSError:
            continue  # it was closed meanwhile
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            address, _, port = fields[1].partition(":")
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in mine:
                found[int(port, 16)] = address
    return found


def test_another_user_of_the_machine_gets_nowhere(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    process = int(context._jvm.java.lang.ProcessHandle.current().pid())
    ports = listening(process)
    assert set(ports.values()) <= LOOPBACK, ports
    driver = int(context.getConf().get("spark.driver.port"))
    gateway = int(context._gateway.gateway_parameters.port)  # it has a token of its own
    asked = sorted(set(ports) - {gateway})
    assert driver in asked
    assert len(asked) >= 2, "driver and block manager"

    kept = context.broadcast(["salary", 1])  # a block that is there to be read
    assert kept.value == ["salary", 1]
    name = f"broadcast_{kept._jbroadcast.id()}_piece0"
    wanted = struct.pack(">B", OPEN_BLOCKS) + text(context.applicationId) + text("driver")
    wanted += struct.pack(">I", 1) + text(name)
    for port in asked:
        kind, answer = ask(port, wanted)
        assert kind in (None, FAILURE), f"port {port} answered a stranger: {answer!r}"
        assert kind is None or b"SaslMessage" in answer, answer


def test_the_secret_is_nowhere_to_be_read_and_there_is_no_page(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    conf = dict(context.getConf().getAll())
    assert conf["spark.authenticate"] == "true"
    assert not [name for name in conf if name.startswith("spark.authenticate.secret")]
    assert context.uiWebUrl is None
    process = int(context._jvm.java.lang.ProcessHandle.current().pid())
    for part in ("cmdline", "environ"):
        told = Path(f"/proc/{process}/{part}").read_bytes()
        assert b"authenticate.secret" not in told
        assert b"SPARK_AUTH_SECRET" not in told
