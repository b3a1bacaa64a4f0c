"""Bodies that Python 0.9.0 still sends as B2 had them, behind its own 256-byte header."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.wire.iggy import commands as c
from headrace.wire.iggy.commands import AnyCommand
from headrace.wire.iggy.messages.consumers import DeleteGroup, LeaveGroup
from headrace.wire.iggy.messages.messages import FlushUnsavedBuffer
from headrace.wire.iggy.messages.users import (
    ChangePassword,
    CreateUser,
    DeleteUser,
    GlobalPermissions,
    Permissions,
    StreamPermissions,
    TopicPermissions,
    UpdatePermissions,
    UpdateUser,
    UserStatus,
)

FOLDER = Path(__file__).parent / "frames_c"
HEADER_BYTES = 256
PERMISSIONS = Permissions(
    GlobalPermissions(manage_servers=True, poll_messages=True),
    (StreamPermissions(1, read_stream=True, topics=(TopicPermissions(2, send_messages=True),)),),
)
EXPECTED: dict[str, tuple[AnyCommand, object]] = {
    "change-password": (c.CHANGE_PASSWORD, ChangePassword("bob", "secret", "secret2")),
    "delete-user": (c.DELETE_USER, DeleteUser("bob")),
    "update-user": (c.UPDATE_USER, UpdateUser("bob", "bobby", UserStatus.INACTIVE)),
    "update-permissions": (c.UPDATE_PERMISSIONS, UpdatePermissions("bob", PERMISSIONS)),
    "update-permissions-none": (c.UPDATE_PERMISSIONS, UpdatePermissions("bob", None)),
    "create-user-permissions": (
        c.CREATE_USER,
        CreateUser("bob", "secret", UserStatus.ACTIVE, PERMISSIONS),
    ),
    "leave-consumer-group": (c.LEAVE_CONSUMER_GROUP, LeaveGroup("s1", "t1", "g1")),
    "delete-consumer-group": (c.DELETE_CONSUMER_GROUP, DeleteGroup("s1", "t1", "g1")),
    "flush-unsaved-buffer-raw": (
        c.FLUSH_UNSAVED_BUFFER,
        FlushUnsavedBuffer("s1", "t1", partition=0, fsync=True),
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_body(name: str) -> None:
    recorded = bytes.fromhex((FOLDER / f"0.9.0-{name}.hex").read_text())[HEADER_BYTES:]
    command, expected = EXPECTED[name]
    assert command.decode_request(recorded) == expected
    assert b"".join(command.encode_request(expected)) == recorded
