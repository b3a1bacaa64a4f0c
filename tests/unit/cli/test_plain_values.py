"""What is taken without typer's checks is what those checks would have made of it."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.main import get_command

from headrace.cli.plain_values import PlainValues, use


class Level(StrEnum):
    HIGH = "high"
    LOW = "low"


VALUES: list[Any] = [
    None, "", "a", " a ", "7", "-7", "0", "1001", "07", "1_000", "7.5", "1e3", "nan", "inf", "true",
    "no", "-", "/", "/nothing/here", "x" * 300, True, False, 7, 7.5, ("a", "b"), ["a"], (),
    Path("/"), b"a", "one", "ONE", "high", "HIGH", Level.LOW,
]  # fmt: skip


def command(
    text: Annotated[str, typer.Argument()],
    some: Annotated[str | None, typer.Option("--some")] = None,
    whole: Annotated[int, typer.Option("--whole", min=0, max=1000)] = 1,
    any_whole: Annotated[int | None, typer.Option("--any")] = None,
    clamped: Annotated[int, typer.Option("--clamped", max=5, clamp=True)] = 1,
    real: Annotated[float, typer.Option("--real", min=0)] = 1.0,
    flag: Annotated[bool, typer.Option("--flag")] = False,
    path: Annotated[Path | None, typer.Option("--path")] = None,
    there: Annotated[Path | None, typer.Option("--there", exists=True)] = None,
    folder: Annotated[Path | None, typer.Option("--folder", file_okay=False)] = None,
    words: Annotated[list[str] | None, typer.Option("--word")] = None,
    numbers: Annotated[list[int] | None, typer.Option("--number")] = None,
    kind: Annotated[Literal["one", "two"], typer.Option("--kind")] = "one",
    level: Annotated[Level, typer.Option("--level")] = Level.HIGH,
    parsed: Annotated[str, typer.Option("--parsed", parser=repr)] = "",
) -> None:
    """Every kind of parameter."""


app = typer.Typer(add_completion=False)
app.command()(command)
PARAMETERS: dict[str, Any] = {one.name: one for one in get_command(app).params}


@pytest.mark.parametrize("name", PARAMETERS)
def test_it_is_what_typer_makes_of_it(name: str) -> None:
    from typer._coercion import build_runtime_param

    parameter = PARAMETERS[name]
    context = typer.Context(get_command(app))
    plain, typers = PlainValues(parameter), build_runtime_param(parameter.type_descriptor)

    def made(convert: Any, value: object) -> object:
        try:
            found = convert.coerce(value, param=parameter, ctx=context)
        except typer.BadParameter as error:
            return error.message
        return type(found), repr(found)

    for value in VALUES:
        assert made(plain, value) == made(typers, value), value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("text", "a"), ("some", None), ("whole", "5"), ("whole", 1), ("any_whole", "-5"),
        ("real", "2.5"), ("flag", None), ("path", "/tmp/x"), ("words", ("a", "b")), ("words", None),
        ("kind", "two"), ("level", "low"), ("level", Level.HIGH),
    ],
)  # fmt: skip
def test_plain_values_do_not_ask_typer(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "typer._coercion", None)
    PlainValues(PARAMETERS[name]).coerce(value, param=PARAMETERS[name], ctx=None)


def test_a_typer_that_converts_by_itself_is_left_alone() -> None:
    class Other:
        params: tuple[()] = ()

    other = Other()
    use([other])
    assert vars(other) == {}
