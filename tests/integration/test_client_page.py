"""The Python on docs/client.md, run top to bottom."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Client, SyncClient
from headrace.testing import LocalBroker

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


async def test_the_page_is_right(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text()
    names: dict[str, Any] = {}
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) > 5
    with LocalBroker() as broker:
        monkeypatch.setenv("HEADRACE_ADDRESS", broker.address)
        for block in blocks:
            line = text[: block.start()].count("\n") + 1
            code = compile(
                "\n" * line + block.group(1), PAGE, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            )
            waiting = eval(code, names)
            if inspect.iscoroutine(waiting):
                await waiting
    assert "b'tea' {'sku': 'tea', 'qty': 2}" in capsys.readouterr().out
    assert len(names["newest"]) == 10
    assert "tea" in set(names["frame"]["sku"])


def test_the_two_clients_have_the_same_methods() -> None:
    for name, method in inspect.getmembers(Client, inspect.isfunction):
        if name.startswith("_"):
            continue
        other = getattr(SyncClient, name)
        assert list(inspect.signature(method).parameters.items()) == list(
            inspect.signature(other).parameters.items()
        ), name
        assert f"`{name}" in PAGE.read_text() or f"client.{name}(" in PAGE.read_text(), name
