"""Which test proves the codec of which command; the protocol page shows it beside the command.

Requests are proved by recordings where one exists, else by bytes laid out by hand; replies
always by hand, in `tests/unit/wire/iggy/test_responses.py::test_response`.
"""

_FRAMES = "tests/conformance/iggy/test_frames.py::"
_BODIES = "tests/conformance/iggy/test_bodies.py::"
_FRAMES_C = "tests/conformance/iggy/test_frames_c.py::"
_BY_HAND = "tests/unit/wire/iggy/test_requests.py::"

PROOFS: dict[str, str] = {
    "PING": f"{_FRAMES}test_body[0.8.0-ping]",
    "GET_STATS": f"{_FRAMES}test_body[node-0.8.0-get-stats]",
    "GET_SNAPSHOT_FILE": f"{_BY_HAND}test_request[GET_SNAPSHOT_FILE]",
    "GET_CLUSTER_METADATA": f"{_FRAMES}test_body[0.8.0-get-cluster-metadata]",
    "DESCRIBE_OPTIONS": f"{_FRAMES_C}test_frame[describe-options]",
    "GET_ME": f"{_BY_HAND}test_request[GET_ME]",
    "GET_CLIENT": f"{_BY_HAND}test_request[GET_CLIENT]",
    "GET_CLIENTS": f"{_BY_HAND}test_request[GET_CLIENTS]",
    "GET_USER": f"{_FRAMES}test_body[node-0.8.0-get-user]",
    "GET_USERS": f"{_FRAMES}test_body[node-0.8.0-get-users]",
    "CREATE_USER": f"{_FRAMES}test_body[node-0.8.0-create-user]",
    "DELETE_USER": f"{_BODIES}test_body[delete-user]",
    "UPDATE_USER": f"{_BODIES}test_body[update-user]",
    "UPDATE_PERMISSIONS": f"{_BODIES}test_body[update-permissions]",
    "CHANGE_PASSWORD": f"{_BODIES}test_body[change-password]",
    "LOGIN_USER": f"{_FRAMES}test_body[0.8.0-login-user]",
    "LOGOUT_USER": f"{_FRAMES}test_body[node-0.8.0-logout-user]",
    "LOGIN_REGISTER": f"{_FRAMES_C}test_frame[login-register]",
    "GET_PERSONAL_ACCESS_TOKENS": f"{_FRAMES}test_body[node-0.8.0-get-personal-access-tokens]",
    "CREATE_PERSONAL_ACCESS_TOKEN": f"{_FRAMES}test_body[node-0.8.0-create-personal-access-token]",
    "DELETE_PERSONAL_ACCESS_TOKEN": f"{_FRAMES}test_body[node-0.8.0-delete-personal-access-token]",
    "LOGIN_WITH_PERSONAL_ACCESS_TOKEN": (
        f"{_FRAMES}test_body[0.8.0-login-with-personal-access-token]"
    ),
    "LOGIN_REGISTER_WITH_TOKEN": f"{_BY_HAND}test_dialect_c[LOGIN_REGISTER_WITH_TOKEN]",
    "POLL_MESSAGES": f"{_FRAMES}test_body[0.8.0-poll-messages-consumer-next-part1]",
    "SEND_MESSAGES": f"{_FRAMES}test_send_from_python[0.8.0]",
    "FLUSH_UNSAVED_BUFFER": f"{_BODIES}test_body[flush-unsaved-buffer-raw]",
    "GET_CONSUMER_OFFSET": f"{_BY_HAND}test_request[GET_CONSUMER_OFFSET]",
    "STORE_CONSUMER_OFFSET": f"{_FRAMES}test_body[0.8.0-store-consumer-offset-part1]",
    "DELETE_CONSUMER_OFFSET": f"{_FRAMES}test_body[0.8.0-delete-consumer-offset-part1]",
    "GET_STREAM": f"{_FRAMES}test_body[0.8.0-get-stream-named]",
    "GET_STREAMS": f"{_FRAMES}test_body[node-0.8.0-get-streams]",
    "CREATE_STREAM": f"{_FRAMES}test_body[0.8.0-create-stream]",
    "DELETE_STREAM": f"{_FRAMES}test_body[node-0.8.0-delete-stream]",
    "UPDATE_STREAM": f"{_FRAMES}test_body[node-0.8.0-update-stream]",
    "PURGE_STREAM": f"{_FRAMES}test_body[node-0.8.0-purge-stream]",
    "GET_TOPIC": f"{_FRAMES}test_body[0.8.0-get-topic]",
    "GET_TOPICS": f"{_FRAMES}test_body[node-0.8.0-get-topics]",
    "CREATE_TOPIC": f"{_FRAMES}test_body[0.8.0-create-topic]",
    "DELETE_TOPIC": f"{_FRAMES}test_body[node-0.8.0-delete-topic]",
    "UPDATE_TOPIC": f"{_FRAMES}test_body[node-0.5.0-update-topic]",
    "PURGE_TOPIC": f"{_FRAMES}test_body[node-0.8.0-purge-topic]",
    "CREATE_PARTITIONS": f"{_FRAMES}test_body[node-0.8.0-create-partitions]",
    "DELETE_PARTITIONS": f"{_FRAMES}test_body[node-0.8.0-delete-partitions]",
    "DELETE_SEGMENTS": f"{_BY_HAND}test_request[DELETE_SEGMENTS]",
    "GET_CONSUMER_GROUP": f"{_FRAMES}test_body[0.8.0-get-consumer-group]",
    "GET_CONSUMER_GROUPS": f"{_FRAMES}test_body[node-0.8.0-get-consumer-groups]",
    "CREATE_CONSUMER_GROUP": f"{_FRAMES}test_body[0.8.0-create-consumer-group]",
    "DELETE_CONSUMER_GROUP": f"{_BODIES}test_body[delete-consumer-group]",
    "JOIN_CONSUMER_GROUP": f"{_FRAMES}test_body[0.8.0-join-consumer-group]",
    "LEAVE_CONSUMER_GROUP": f"{_BODIES}test_body[leave-consumer-group]",
    "SYNC_CONSUMER_GROUP": f"{_FRAMES_C}test_frame[sync-consumer-group]",
    "HELLO": f"{_BY_HAND}test_request[HELLO]",
    "OPEN_PUBLISHER": f"{_BY_HAND}test_request[OPEN_PUBLISHER]",
    "STAGE": f"{_BY_HAND}test_a_stage_is_a_head_and_a_send[STAGE]",
    "CLOSE": f"{_BY_HAND}test_request[CLOSE]",
    "LIST_WINDOWS": f"{_BY_HAND}test_request[LIST_WINDOWS]",
    "SET_PUBLISHERS": f"{_BY_HAND}test_request[SET_PUBLISHERS]",
    "RESET_AFTER": f"{_BY_HAND}test_request[RESET_AFTER]",
    "PURGE_TO": f"{_BY_HAND}test_request[PURGE_TO]",
    "PRESENT_GRANT": f"{_BY_HAND}test_request[PRESENT_GRANT]",
    "SPEAK_FOR": f"{_BY_HAND}test_request[SPEAK_FOR]",
    "GET_PUBLISHING": f"{_BY_HAND}test_request[GET_PUBLISHING]",
    "GET_SHARDS": f"{_BY_HAND}test_request[GET_SHARDS]",
    "MOVE_SHARD": f"{_BY_HAND}test_request[MOVE_SHARD]",
    "READ_TICKET": f"{_BY_HAND}test_request[READ_TICKET]",
}
"""By command name; every served command has one."""
