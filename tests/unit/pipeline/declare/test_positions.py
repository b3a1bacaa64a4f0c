"""Where reading may begin, as people write it."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.pipeline.declare.declarations import check_position


@pytest.mark.parametrize(
    "text",
    [
        *("earliest", "latest", "1700000000000", "2026-01-31T12:00:00Z"),
        *('{"0": 100}', "{}", '{"shop/orders": {"0": 1}}'),
    ],
)
def test_positions(text: str) -> None:
    check_position("it", text)


@pytest.mark.parametrize(
    "text",
    [
        *("²", "9" * 5000, "10" * 20, '{"0": 99999999999999999999}', '{"0": -1}', '{"²": 1}'),
        *('{"a": {"0": -1}}', "[]", "", '{"0": "x"}', '{"0": true}', '{"a": {"b": {"c": []}}}'),
    ],
)
def test_what_no_container_could_read_is_refused_before_it_is_journalled(text: str) -> None:
    with pytest.raises(ConfigError, match="earliest"):
        check_position("it", text)
