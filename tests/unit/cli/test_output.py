"""Tables and numbers for people, the same as plain numbers for programs."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from headrace.cli import output

ROWS = [
    {"name": "orders", "bytes": 1536, "expiry_seconds": None, "note": "x" * 300},
    {"name": "a" * 60, "bytes": 5 << 30, "expiry_seconds": 90061.0, "note": "b\x1b[31m\nc"},
]
COLUMNS = ("name", "bytes", "expiry_seconds", "note")


def test_json_has_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_rows(ROWS, COLUMNS, as_json=True)
    assert json.loads(capsys.readouterr().out) == ROWS


def test_a_table_goes_whole_into_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    output.print_rows(ROWS, COLUMNS, as_json=False)
    first, one, other = capsys.readouterr().out.splitlines()
    assert first.split() == ["name", "size", "expiry", "note"]
    assert one.split() == ["orders", "1.5", "KiB", "never", "x" * 300]
    assert "5.0 GiB" in other
    assert "1 d 1 h" in other
    assert r"b\x1b[31m c" in other, "what others named cannot move the cursor"


@pytest.mark.parametrize("width", [100, 120, 200])
def test_a_table_fits_the_terminal_and_leaves_names_whole(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    output.print_rows(ROWS, COLUMNS, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == width
    assert any("a" * 60 in line for line in lines)
    assert sum(line.count("x") for line in lines[1:]) == 301, "nothing is cut off"


def test_words_are_wrapped_and_names_last_of_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "32")
    row = {"name": "a" * 20, "reason": "it ended and is started again"}
    output.print_rows([row], ("name", "reason"), as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "name                  reason",
        "aaaaaaaaaaaaaaaaaaaa  it ended",
        "                      and is",
        "                      started",
        "                      again",
    ]
    monkeypatch.setenv("COLUMNS", "24")
    output.print_rows([row], ("name", "reason"), as_json=False)
    assert max(map(len, capsys.readouterr().out.splitlines())) == 24


def test_wide_letters_take_two_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    output.print_rows(
        [{"name": "流れ", "id": 1}, {"name": "abcd", "id": 22}], ("name", "id"), as_json=False
    )
    assert capsys.readouterr().out == "name  id\n流れ   1\nabcd  22\n"


def test_numbers_stand_right_and_flags_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    output.print_rows(
        [{"lag": 5, "open": True}, {"lag": None, "open": False}], ("lag", "open"), as_json=False
    )
    assert capsys.readouterr().out == "lag  open\n  5  yes\n  -  no\n"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("bytes", 0, "0 B"),
        ("bytes", 1023, "1023 B"),
        ("bytes", 1024, "1.0 KiB"),
        ("read_bytes", (1 << 20) - 1, "1.0 MiB"),
        ("bytes", 1 << 60, "1024.0 PiB"),
        ("max_bytes", None, "unlimited"),
        ("run_time_us", 4_130_000, "4.13 s"),
        ("run_time_us", 12_345, "12.3 ms"),
        ("expiry_seconds", 604_800.0, "7 d"),
        ("expiry_seconds", 61, "1 min 1 s"),
        ("expiry_seconds", 3600, "1 h"),
        ("expiry_seconds", None, "never"),
        ("window_ms", 500, "0.5 s"),
        ("cpu_percent", 12.345, "12.3 %"),
        ("latencyMA", 250, "0.25 s"),
        ("messages", 7, None),
        ("name", "shop", None),
        ("bytes", True, None),
    ],
)
def test_a_number_is_what_its_name_says(name: str, value: object, text: str | None) -> None:
    assert output.humanly(name, value) == text


def test_a_moment_is_local_and_can_be_given_back() -> None:
    text = output.humanly("created_at_us", 1_777_000_000_000_000)
    assert text is not None
    assert datetime.fromisoformat(text).timestamp() == 1_777_000_000
    assert output.heading("created_at_us") == "created"
    assert output.heading("memoryMBFree") == "memory mb free"
