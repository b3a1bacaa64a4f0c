"""Requests to operators: they go out with the answer to a container's heartbeat, and the replies
come with a later one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.errors import InvalidArgumentError, NotFoundError
from headrace.ids import OperatorId
from headrace.pipeline.controller.application.events import EventType
from headrace.pipeline.controller.application.lifecycle import Operator
from headrace.pipeline.controller.application.model import ApplicationModel
from headrace.pipeline.plan.logical import Operator as LogicalOperator
from headrace.wire.umbilical import messages as m

SET_PROPERTY = "setProperty"
REQUESTS_MAX = 1_000  # operator requests waiting for a heartbeat
RESPONSES_MAX = 100  # replies kept until somebody reads them


class OperatorRequests:
    def __init__(self, model: ApplicationModel) -> None:
        self._model = model
        self._request_id = 0
        self.responses: dict[int, m.Value] = {}  # by request id

    def on_request(self, request: m.StramToNodeRequest) -> None:
        """Queue a request for the next heartbeat of its operator's container."""
        operator = self._model.operators.get(OperatorId(request.operator_id))
        if operator is None:
            raise NotFoundError("no such operator", operator_id=request.operator_id)
        if len(operator.requests) >= REQUESTS_MAX:
            raise InvalidArgumentError("too many requests wait for this operator")
        operator.requests.append(request)

    def on_responses(self, responses: Iterable[m.OperatorResponse]) -> None:
        for one in responses:
            while len(self.responses) >= RESPONSES_MAX:
                del self.responses[next(iter(self.responses))]
            self.responses[one.response_id] = one.response

    def on_recording(self, name: str, windows: int, now_ms: int, *, start: bool) -> str:
        """Have every instance keep sample rows of its next windows (or stop it); the recording's
        id, which is also the name of its folder."""
        self._model.check_running()
        self._request_id += 1
        id_ = f"{name}-{now_ms}"
        kind = m.RequestType.START_RECORDING if start else m.RequestType.STOP_RECORDING
        for operator in self._model.named(name):
            self.on_request(
                m.StramToNodeRequest(
                    operator.physical.id,
                    kind,
                    request_id=self._request_id,
                    recording_id=id_,
                    num_windows=windows,
                )
            )
        self._model.add_event(
            now_ms, EventType.RECORDING, operator=name, recording=id_, started=start
        )
        return id_

    def set_properties(self, operator: Operator, values: Mapping[str, Any]) -> int:
        """Have a running operator take these values; the id of the request."""
        self._request_id += 1
        self.on_request(
            m.StramToNodeRequest(
                operator.physical.id,
                m.RequestType.CUSTOM,
                cmd=SET_PROPERTY,
                request_id=self._request_id,
                arguments={name: _value(value) for name, value in values.items()},
            )
        )
        return self._request_id

    def remind(self, operator: Operator) -> None:
        """Tell an adopted operator its live properties: the earlier life of the controller may
        have ended before it told them."""
        logical = operator.physical.logical
        values = self._model.record.properties.get(logical.name, {})
        if live := {name: values[name] for name in live_properties(logical) & set(values)}:
            self.set_properties(operator, live)


def live_properties(operator: LogicalOperator) -> set[str]:
    """The properties that a running operator takes without a restart."""
    value = operator.attributes.get("LIVE_PROPERTIES")
    return set(json.loads(value.text)) if isinstance(value, m.Json) else set()


def _value(value: Any) -> m.Value:
    plain = value is None or isinstance(value, bool | int | float | str)
    return value if plain else m.Json(json.dumps(value))
