"""An application as Apex-shaped JSON, and back: the one logical plan of all front ends.

    {"name", "attributes",
     "operators": [{"name", "class", "properties", "attributes", "ports", "isolate", "instances"}],
     "streams":   [{"name", "source": {"operatorName", "portName"}, "sinks": [...], "locality"}],
     "outputs":   the operators whose result leaves the application}

What Apex has no field for (the topic a result goes to, conditions, metrics) are attributes of
ours, so that every reader of plans keeps them. Functions are named, `module:function`; whoever
reads a plan decides where such names may lead.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from headrace.errors import ConfigError
from headrace.pipeline.declare.declarations import (
    OUTPUT_PORT,
    Hook,
    Metric,
    Stage,
    StreamOptions,
    TopicInput,
    feed_of,
    make_stage,
)
from headrace.pipeline.declare.graph import ApplicationGraph
from headrace.pipeline.declare.stores import Store, make_store, store_arguments
from headrace.pipeline.plan.logical import LETTERS_SUFFIX, OTHER_TOPICS, READ_TOPIC
from headrace.pipeline.plan.spark_conf import SPARK_CONF

G = TypeVar("G", bound=ApplicationGraph)

TRIGGER = "TRIGGER"
HOOKS = "COMMITTED_HOOKS"
RENAMED_FROM = "RENAMED_FROM"
_OWN_DAG = ("APPLICATION_NAME", TRIGGER, HOOKS, LETTERS_SUFFIX, OTHER_TOPICS, SPARK_CONF)
_OWN = {  # attribute: argument of the declaration
    "OUTPUT_TOPIC": "to",
    "OUTPUT_KEY": "key",
    "OUTPUT_MODE": "output_mode",
    "EXPECT": "expect",
    "LIVE_PROPERTIES": "live",
    RENAMED_FROM: "renamed_from",
}
METRICS = "METRICS"
STORE = "STORE"  # arguments of the store that a built-in sink is


def to_plan(app: ApplicationGraph) -> dict[str, Any]:
    """Give the logical plan of an application, Apex-shaped."""
    terminals = app.terminals()
    stages = app.ordered()
    attributes = {"APPLICATION_NAME": app.name, TRIGGER: app.trigger, **app.attributes}
    if app.letters_suffix:
        attributes[LETTERS_SUFFIX] = app.letters_suffix
    if app.other_topics:
        attributes[OTHER_TOPICS] = list(app.other_topics)
    if app.spark_conf:
        attributes[SPARK_CONF] = dict(app.spark_conf)
    if app.hooks:
        attributes[HOOKS] = [
            [f"{hook.function.__module__}:{hook.function.__qualname__}", hook.operator]
            for hook in app.hooks
        ]
    return {
        "name": app.name,
        "attributes": attributes,
        "operators": [*map(_topic_to_plan, app.topics.values()), *map(_stage_to_plan, stages)],
        "streams": _streams(app, stages),
        "topics": [
            {"name": each.name, "topic": each.topic, "schema": each.schema}
            for each in app.topics.values()
        ],
        "outputs": [
            {
                "operator": stage.name,
                "port": OUTPUT_PORT,
                "topic": stage.to,
                "key": stage.key,
                "mode": stage.output_mode or "append",
                "store": stage.function.place if isinstance(stage.function, Store) else None,
                "delivery": stage.delivery,
            }
            for stage in terminals
        ],
    }


def from_plan(
    kind: type[G],
    plan: Mapping[str, Any],
    *,
    resolve: Callable[[str], Callable[..., Any]] | None = None,
) -> G:
    """Make the application of a plan; ConfigError if it is none.

    `kind` is the class to make; `resolve` finds functions by `module:function`, and imports them
    unless it is given.
    """
    find = resolve or import_function
    try:
        return _from_plan(kind, plan, find)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"not a plan: {error!r}") from error


def import_function(reference: str) -> Callable[..., Any]:
    """`module:function`, imported. ConfigError when there is none."""
    module, _, path = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"there is no function {reference}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{reference} is no function")
    return found  # type: ignore[no-any-return]  # checked the line above


def _from_plan(
    kind: type[G], plan: Mapping[str, Any], find: Callable[[str], Callable[..., Any]]
) -> G:
    attributes = dict(plan.get("attributes", {}))
    own = {name: attributes.pop(name) for name in _OWN_DAG if name in attributes}
    app = kind(
        plan["name"],
        trigger=own.get(TRIGGER, "1 second"),
        other_topics=own.get(OTHER_TOPICS, ()),
        spark_conf=own.get(SPARK_CONF, {}),
        **attributes,
    )
    app.letters_suffix = str(own.get(LETTERS_SUFFIX, ""))
    feeds: dict[tuple[str, str], str] = {}
    outputs = {
        operator["name"]: [port["name"] for port in operator["ports"] if port["kind"] == "output"]
        for operator in plan["operators"]
    }
    for stream in plan.get("streams", ()):
        source = stream["source"]["operatorName"]
        port = stream["source"]["portName"]
        feed = source if outputs[source] == [OUTPUT_PORT] else f"{source}.{port}"
        locality, remote = stream.get("locality"), bool(stream.get("remote", False))
        name = None if stream["name"] == feed.replace(".", "_") else stream["name"]
        if name or locality or remote:
            app.streams[feed] = StreamOptions(feed, name, locality, remote)
        for sink in stream["sinks"]:
            feeds[sink["operatorName"], sink["portName"]] = feed
    for operator in plan["operators"]:
        if operator["class"] == READ_TOPIC:
            app.add_topic(_topic_from_plan(operator))
        else:
            app.add_stage(_stage_from_plan(operator, feeds, find))
    for reference, name in own.get(HOOKS, ()):
        app.hooks.append(Hook(find(reference), name))
    return app


def _topic_to_plan(topic: TopicInput) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "topic": topic.topic,
        "schema": topic.schema,
        "on_bad_row": topic.on_bad_row,
        "starting": topic.starting,
        "messages_max": topic.messages_max,
    }
    if topic.columns:
        properties["columns"] = list(topic.columns)
    if topic.ending is not None:
        properties["ending"] = topic.ending
    if topic.on_data_loss != "skip":
        properties["on_data_loss"] = topic.on_data_loss
    return {
        "name": topic.name,
        "class": READ_TOPIC,
        "properties": properties,
        "attributes": {} if topic.renamed_from is None else {RENAMED_FROM: topic.renamed_from},
        "ports": [{"name": OUTPUT_PORT, "kind": "output", "attributes": {}}],
        "isolate": False,
        "instances": 1,
    }


def _topic_from_plan(operator: Mapping[str, Any]) -> TopicInput:
    values = dict(operator["properties"])
    columns = tuple(values.pop("columns", None) or ())
    renamed_from = operator.get("attributes", {}).get(RENAMED_FROM)
    return TopicInput(operator["name"], columns=columns, renamed_from=renamed_from, **values)


def _stage_to_plan(stage: Stage) -> dict[str, Any]:
    attributes = dict(stage.attributes)
    for name, argument in _OWN.items():
        value = getattr(stage, argument)
        if value:
            attributes[name] = list(value) if isinstance(value, tuple) else value
    if isinstance(stage.function, Store):
        attributes[STORE] = store_arguments(stage.function)
    if stage.metrics:
        attributes[METRICS] = [
            [each.name, each.expression, each.port, each.aggregate] for each in stage.metrics
        ]
    kinds = [(port, "input") for port in stage.ports] + [(port, "output") for port in stage.outputs]
    return {
        "name": stage.name,
        "class": stage.reference,
        "properties": dict(stage.properties),
        "attributes": attributes,
        "ports": [
            {"name": port, "kind": kind, "attributes": dict(stage.port_attributes.get(port, {}))}
            for port, kind in kinds
        ],
        "isolate": stage.isolate,
        "instances": stage.instances,
    }


def _stage_from_plan(
    operator: Mapping[str, Any],
    feeds: Mapping[tuple[str, str], str],
    find: Callable[[str], Callable[..., Any]],
) -> Stage:
    name, ports = operator["name"], operator["ports"]
    attributes = dict(operator.get("attributes", {}))
    options = {
        argument: attributes.pop(each) for each, argument in _OWN.items() if each in attributes
    }
    metrics = attributes.pop(METRICS, ())
    store = attributes.pop(STORE, None)
    outputs = [port["name"] for port in ports if port["kind"] == "output"]
    inputs = [port["name"] for port in ports if port["kind"] == "input"]
    if unfed := [port for port in inputs if (name, port) not in feeds]:
        raise ConfigError(f"port {', '.join(unfed)} of {name} has no stream")
    if outputs:
        options["outputs"] = () if outputs == [OUTPUT_PORT] else outputs
    stage = make_stage(
        find(operator["class"]) if store is None else make_store(operator["class"], store),
        sink=not outputs,
        name=name,
        inputs={port: feeds[name, port] for port in inputs},
        isolate=bool(operator.get("isolate", False)),
        instances=int(operator.get("instances", 1)),
        ports={port["name"]: port["attributes"] for port in ports if port.get("attributes")},
        **options,
        **attributes,
    )
    given = operator.get("properties", {})
    if unknown := sorted(set(given) - set(stage.properties)):
        raise ConfigError(f"{name} has no property {', '.join(unknown)}")
    return replace(
        stage,
        properties={**stage.properties, **given},
        metrics=tuple(Metric(*each) for each in metrics),
    )


def _streams(app: ApplicationGraph, stages: list[Stage]) -> list[dict[str, Any]]:
    """Every output that someone reads, with all who do."""
    sinks: dict[str, list[dict[str, str]]] = {}
    for stage in stages:
        for port, feed in stage.ports.items():
            sinks.setdefault(feed, []).append({"operatorName": stage.name, "portName": port})
    ports = {feed_of(stage, port): port for stage in stages for port in stage.outputs}
    result = []
    for feed, ends in sinks.items():
        options = app.streams.get(feed, StreamOptions(feed))
        result.append(
            {
                "name": options.name or feed.replace(".", "_"),
                "source": {
                    "operatorName": feed.partition(".")[0],
                    "portName": ports.get(feed, OUTPUT_PORT),
                },
                "sinks": ends,
                "locality": options.locality,
                "remote": options.remote,
            }
        )
    return result
