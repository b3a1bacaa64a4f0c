"""Properties of operators: declared as keyword-only parameters, set per deployment.

A *live* property may change while its query runs: the next batch is processed with the new value.
Any other value is fixed when the query starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.pipeline.declare.declarations import Stage
    from headrace.pipeline.declare.graph import ApplicationGraph

Properties = Mapping[str, Mapping[str, Any]]


class PropertyValues:
    """What every property is set to. Batches read it while a heartbeat changes it, so an operator's
    values are replaced as a whole and never changed."""

    def __init__(self, app: ApplicationGraph, given: Properties | None = None) -> None:
        self._app = app
        self._values = {name: dict(stage.properties) for name, stage in app.stages.items()}
        for operator, values in (given or {}).items():
            checked = {name: check_property(app, operator, name, values[name]) for name in values}
            self._values[operator] = {**self._values[operator], **checked}

    def of(self, stage: Stage) -> dict[str, Any]:
        return dict(self._values[stage.name])

    def set(self, operator: str, name: str, value: Any) -> None:
        """Of a live property; ConfigError says why another one cannot change."""
        checked = check_property(self._app, operator, name, value)
        if name not in self._app.stages[operator].live:
            raise ConfigError(
                f"property {name} of {operator} is not live: it is fixed when the query starts. "
                f"Declare it with live=({name!r},), or deploy with the new value"
            )
        self._values[operator] = {**self._values[operator], name: checked}


def check_property(app: ApplicationGraph, operator: str, name: str, value: Any) -> Any:
    """The value, of the type of the property's default; text is read as that type."""
    if operator not in app.stages:
        raise ConfigError(f"no operator {operator}; there is {', '.join(app.stages) or 'none'}")
    declared = app.stages[operator].properties
    if name not in declared:
        raise ConfigError(
            f"{operator} has no property {name}; it has {', '.join(declared) or 'none'}"
        )
    default = declared[name]
    if default is None or value is None or type(value) is type(default):
        return value
    if isinstance(default, bool):
        words = {"true": True, "false": False}
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
    elif not isinstance(value, bool):
        try:
            if isinstance(default, int) and (not isinstance(value, float) or value.is_integer()):
                return int(value)
            if isinstance(default, float):
                return float(value)
        except ValueError:
            pass
    raise ConfigError(
        f"property {name} of {operator} is {type(default).__name__}, like {default!r}: {value!r}"
    )
