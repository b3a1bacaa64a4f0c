"""The answer to a request that an earlier term of leading applied: see `applied.py`."""

from __future__ import annotations

from headrace.broker.core import Broker
from headrace.broker.errors import RequestAppliedError
from headrace.broker.handlers.views import (
    view_group_details,
    view_stream_details,
    view_topic_details,
    view_user_details,
)
from headrace.broker.sessions.request_dedup import Effect
from headrace.wire.iggy.commands import Encodable


async def repeat_answer(broker: Broker, effect: Effect) -> Encodable | None:
    """What was made is shown as it is now; a change without an answer needs none.

    RequestAppliedError when it is gone, or was a secret that nobody else keeps.
    """
    catalogue, uid = broker.catalogue, effect.uid
    match effect.kind:
        case "StreamCreated":
            if (stream := catalogue.stream_by_uid(uid)) is not None:
                return await view_stream_details(broker, stream)
        case "TopicCreated":
            if (topic := catalogue.topic_by_uid(uid)) is not None:
                return await view_topic_details(broker, topic)
        case "GroupCreated":
            if (group := catalogue.group_by_uid(uid)) is not None:
                return view_group_details(broker, *group)
        case "UserCreated":
            if (user := catalogue.user_by_uid(uid)) is not None:
                return view_user_details(broker, user)
        case "TokenCreated":
            pass
        case _:
            return None
    raise RequestAppliedError(effect=effect.kind)
