"""Words of a command line that are plainly what their parameter asks for.

typer checks every value with pydantic, which takes as long to load as typer itself. Texts,
numbers and paths need none of it; anything else, and all that is wrong, is left to typer, so that
its rules and its messages stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

_UNFIT = object()


def use(parameters: Iterable[Any]) -> None:
    """Look at their values here first. In a typer without pydantic they lack the attribute."""
    for parameter in parameters:
        if getattr(parameter, "_runtime_param", _UNFIT) is None:
            parameter._runtime_param = PlainValues(parameter)


class PlainValues:
    """Stands where typer keeps what converts a parameter's values."""

    def __init__(self, parameter: Any) -> None:
        self._descriptor = parameter.type_descriptor

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        found = self._plain(value)
        if found is not _UNFIT:
            return found
        from typer._coercion import build_runtime_param

        return build_runtime_param(self._descriptor).coerce(value, param=param, ctx=ctx)

    def _plain(self, value: Any) -> Any:
        annotation, info = self._descriptor.annotation, self._descriptor.parameter_info
        if info.parser is not None:
            return _UNFIT
        if get_origin(annotation) is list:
            if get_args(annotation) == (str,) and isinstance(value, list | tuple):
                return list(value) if all(type(each) is str for each in value) else _UNFIT
            return _UNFIT
        if annotation is str or annotation is bool:
            return value if type(value) is annotation else _UNFIT
        if annotation is Path:
            return Path(value) if type(value) is str and not _is_checked(info) else _UNFIT
        if annotation in (int, float):
            return _number(value, annotation, info)
        return _choice(value, annotation)


def _choice(value: Any, annotation: Any) -> Any:
    if get_origin(annotation) is Literal:
        return value if type(value) is str and value in get_args(annotation) else _UNFIT
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return next((one for one in annotation if value in (one, one.value)), _UNFIT)
    return _UNFIT


def _number(value: Any, kind: type[int] | type[float], info: Any) -> Any:
    fit = (str, int) if kind is int else (str, int, float)
    try:
        found = kind(value) if type(value) in fit else None
    except ValueError:
        return _UNFIT
    if found is None or info.clamp:
        return _UNFIT
    lowest = float("-inf") if info.min is None else info.min
    highest = float("inf") if info.max is None else info.max
    return found if lowest <= found <= highest else _UNFIT


def _is_checked(info: Any) -> bool:
    return bool(
        info.exists or info.resolve_path or info.allow_dash or info.path_type
        or not info.file_okay or not info.dir_okay or info.writable
    )  # fmt: skip
