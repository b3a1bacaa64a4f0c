"""Requests that no client of ours would make: every path with odd names, numbers and bodies. The
answer is a refusal, never a mistake of ours."""

from __future__ import annotations

from urllib.parse import quote

import httpx
import pytest
from starlette.routing import Route

from headrace.errors import InvalidArgumentError
from headrace.web.pipeline_api.pipelines import _decode_package
from tests.unit.web.stage import CONTAINER, MANAGER, ask, endpoint_of, make

TEXTS = (
    "²", "٣", "\0", "..", "a" * 300, "9" * 5000, "0" * 20 + "1" * 5000, "-1", "1e9", " ", "a\nb",
    "[", "*" * 50, "18446744073709551616", "00000000000000000001999999999999",
)  # fmt: skip
RAW = ("%ff", "%00", "%ed%a0%80", "%2e%2e%2f", "%2F")
ODD = (*(quote(one, safe="") for one in TEXTS), *RAW)
KNOWN = {
    "stream": "shop", "topic": "orders", "group": "billing", "user": "reader", "name": "shop",
    "class": "shop:revenue", "id": "2", "operator": "revenue", "container": CONTAINER,
    "port": "orders", "recording": "revenue-1", "path": "app.js", "shard": "5",
}  # fmt: skip
BODIES = (
    b"\xff\xfe", b'{"entry":"\xff","files":{}}', b'{"a":"\\ud800"}', b"[" * 50_000, b"{}", b"[]",
    b"null", b'{"x":1e400}', b'{"x":123456789012345678901234567890}', b'{"a\\u0000b":1}', b"",
    b'{"requests":[1]}', b'{"requests":[{"requestType":[]}]}', b'{"windowId":"zz"}',
    b'{"instances":99999999999999999999}', b'{"numWindows":-1}',
    b'{"loggers":[{"target":"\\u0000","logLevel":"x"}]}', b'{"offsets":{"-1":[1]}}',
)  # fmt: skip
ODD_NAMES = (ODD[0], ODD[2], ODD[4], ODD[5], ODD[6], *RAW[:2])
ENDLESS = "/api/v1/events/stream"


def _filled(route: Route, **odd: str) -> str:
    path = route.path
    for name in route.param_convertors:
        start = path.index(f"{{{name}")
        end = path.index("}", start) + 1
        path = path[:start] + odd.get(name, quote(KNOWN[name], safe="")) + path[end:]
    return path


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
async def test_every_path_refuses_what_is_odd(method: str) -> None:
    app, _ = make()
    routes = [one for one in app.routes if isinstance(one, Route) and method in (one.methods or ())]
    asked = 0
    transport = httpx.ASGITransport(app)  # raises what the application raises
    headers = {"content-type": "application/json", "x-headrace-page": "1"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", auth=MANAGER, headers=headers
    ) as client:

        def queries(route: Route) -> list[str]:
            return [one.name for one in endpoint_of(route).query]

        for route in routes:
            if route.path == ENDLESS:
                continue
            names = route.param_convertors
            urls = [_filled(route, **{name: odd}) for name in names for odd in ODD_NAMES]
            urls += [f"{_filled(route)}?{name}={odd}" for name in queries(route) for odd in ODD]
            for url in urls:
                answer = await client.request(method, url)
                assert answer.status_code != 500, f"{method} {url[:200]}"
                asked += 1
            for body in BODIES if method in ("POST", "PUT") else ():
                answer = await client.request(method, _filled(route), content=body)
                assert answer.status_code != 500, f"{method} {route.path} {body[:80]!r}"
                asked += 1
    assert asked > 40


@pytest.mark.parametrize("body", [b'{"entry":"\xff","files":{}}', b"\xff", b'"' + b"\xed\xa0\x80"])
def test_a_package_that_is_no_text_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="not a pipeline package"):
        _decode_package(body)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30])
async def test_a_number_that_no_journal_can_hold_gets_no_further(number: int) -> None:
    app, pipelines = make()
    operator = "/ws/v2/stram/shop/logicalPlan/operators/revenue/properties"
    change = {"requestType": "SetOperatorProperty", "propertyValue": {"a": [number]}}
    for path, body in (
        (operator, {"limit": number}),
        (operator, {"limit": [{"a": number}]}),
        ("/ws/v2/stram/shop/physicalPlan/operators/2/properties", {"limit": number}),
        ("/ws/v2/stram/shop/logicalPlan", {"requests": [change]}),
    ):
        answer = await ask(app, path, "POST", json=body)
        assert answer.status_code == 400, answer.text
        assert "2^63" in answer.json()["error"]
    assert not pipelines.calls
