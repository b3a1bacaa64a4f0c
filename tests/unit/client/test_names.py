"""The names that programs import from `headrace.client`, each from the module that has it."""

from __future__ import annotations

import pytest

import headrace.client


@pytest.mark.parametrize("name", headrace.client.__all__)
def test_name_is_found(name: str) -> None:
    found = getattr(headrace.client, name)

    assert found.__module__.startswith("headrace.client.") or name == "Message"
