"""The table of proofs names tests that exist and that are about the command."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from headrace.wire.iggy.commands import SERVED
from tests.conformance.iggy.proofs import PROOFS


def test_every_served_command_is_proved() -> None:
    assert PROOFS.keys() == {row.name for row in SERVED.values()}


@pytest.mark.parametrize("name", PROOFS)
def test_the_proof_exists(name: str) -> None:
    path, _, test = PROOFS[name].partition("::")
    function_name, _, parameter = test.rstrip("]").partition("[")
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    function = getattr(module, function_name)
    marks: list[Any] = [m for m in function.pytestmark if m.name == "parametrize"]
    assert parameter in [str(value) for mark in marks for value in mark.args[1]]
    if name != "SEND_MESSAGES":  # whose tests are named after the client
        assert parameter.upper().replace("-", "_").find(name) >= 0
