"""Values of properties: typed by their defaults, live ones changed while batches run."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.pipeline.declare.graph import PropertyValues
from tests.unit.pipeline.declare.test_dag import decorated


def test_live_properties_change_and_others_do_not() -> None:
    app = decorated()
    values = PropertyValues(app, {"split": {"name": "y"}})
    split = app.stages["split"]
    before = values.of(split)
    values.set("split", "minimum", "12")
    assert values.of(split) == {"minimum": 12, "name": "y"}
    assert before == {"minimum": 1, "name": "y"}, "a batch keeps what it began with"
    with pytest.raises(ConfigError, match=r"name of split is not live.*live=\('name',\)"):
        values.set("split", "name", "z")
    with pytest.raises(ConfigError, match="minimum of split is int, like 1: 'many'"):
        values.set("split", "minimum", "many")
    with pytest.raises(ConfigError, match="no operator other"):
        values.set("other", "minimum", 1)
    with pytest.raises(ConfigError, match=r"is int, like 1: 2\.5"):
        values.set("split", "minimum", 2.5)
    with pytest.raises(ConfigError, match="is int, like 1: True"):
        values.set("split", "minimum", True)
    assert values.of(split)["minimum"] == 12
