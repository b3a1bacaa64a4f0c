"""Two versions of an application: what the new one keeps of the old one, and what it cannot keep.

A query's checkpoint holds positions in exactly the topics it began with, and state of exactly the
shape it began with. So every operator of a new version is compared with the one it continues (the
one of its name, or of its `renamed_from`) and gets a verdict:

    COMPATIBLE   goes on from its checkpoint
    NEW_STATE    cannot; starts under a new checkpoint, and only when somebody says so
    REFUSED      cannot be deployed over the old version at all

The name of an operator's checkpoint is an attribute of it in the plan, CHECKPOINT_NAME, where it is
not the operator's own: after a rename, and from the second checkpoint on (`revenue~2`). Pure.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias, TypeVar

from headrace.errors import HeadraceError, InvalidArgumentError
from headrace.pipeline.plan.logical import LogicalPlan
from headrace.pipeline.plan.physical import PhysicalPlan, make_physical_plan
from headrace.pipeline.plan.spark_conf import short

GENERATION = "~"  # between a checkpoint's name and its number; no operator's name has one
CHECKPOINT_NAME = "CHECKPOINT_NAME"  # attribute of an operator
CHECKPOINTS_USED = "CHECKPOINTS_USED"  # attribute of the application: how often, by first name
RENAMED_FROM = "RENAMED_FROM"  # attribute of an operator, as it was declared
WIDTH = "STREAMING_WINDOW_SIZE_MILLIS"

T = TypeVar("T")
JsonObject: TypeAlias = Mapping[str, Any]
Shapes: TypeAlias = Mapping[str, Mapping[str, Any]]
"""By query: `sources`, topics in Spark's order, and `state`, a text per stateful operation."""


class Verdict(IntEnum):
    COMPATIBLE = 0
    NEW_STATE = 1
    REFUSED = 2


@dataclass(frozen=True, slots=True)
class OperatorChange:
    operator: str
    verdict: Verdict
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    changes: tuple[OperatorChange, ...]
    shapes_compared: bool

    @property
    def verdict(self) -> Verdict:
        return max((one.verdict for one in self.changes), default=Verdict.COMPATIBLE)

    def of(self, verdict: Verdict) -> tuple[OperatorChange, ...]:
        return tuple(one for one in self.changes if one.verdict is verdict)


@dataclass(frozen=True, slots=True)
class _Output:
    """A query as its checkpoint sees it."""

    sources: tuple[str, ...]
    mode: str  # "" and below: a plan that was changed at run time does not say
    target: str
    instances: int


def compare(
    old: JsonObject,
    new: JsonObject,
    old_shapes: Shapes | None = None,
    new_shapes: Shapes | None = None,
) -> Comparison:
    """`old_shapes` is None when nobody has looked at the state of the two versions."""
    changes = [*_application_changes(old, new), *_rename_errors(old, new)]
    if changes:
        return Comparison(tuple(changes), shapes_compared=False)
    before, after = _outputs(old), _outputs(new)
    origins = continued(old, new)
    kept = {origins[name] for name in after if name in origins}
    gone = [name for name in before if name not in kept]
    declared = {str(one["name"]) for one in new["operators"]}
    vanished = [name for name in gone if name not in declared]
    for name, output in after.items():
        origin = origins.get(name)
        if origin not in before:
            changes.append(_added(name, vanished))
            continue
        shapes = None
        if old_shapes is not None:
            shapes = (old_shapes.get(origin, {}), (new_shapes or {}).get(name, {}))
        changes.append(_compared(name, origin, before[origin], output, shapes))
    changes += [
        OperatorChange(name, Verdict.COMPATIBLE, ("removed; its checkpoint stays where it is",))
        for name in gone
    ]
    return Comparison(tuple(changes), shapes_compared=old_shapes is not None)


def continued(old: JsonObject, new: JsonObject) -> dict[str, str]:
    """Operator of the new plan: the one of the old plan that it continues."""
    before = {str(one["name"]) for one in old["operators"]}
    origins = {}
    for operator in new["operators"]:
        name, renamed_from = str(operator["name"]), _renamed_from(operator)
        if name in before:  # also after a rename that was deployed: the declaration may stay
            origins[name] = name
        elif renamed_from in before:
            origins[name] = renamed_from
    return origins


def _renamed_from(operator: JsonObject) -> str:
    return str(operator.get("attributes", {}).get(RENAMED_FROM) or "")


def carry_over(old: JsonObject, new: JsonObject, fresh: Collection[str] = ()) -> dict[str, Any]:
    """The new plan with the checkpoints of the old one; `fresh` operators get new ones.

    A checkpoint that was in use once is never given to another operator.
    """
    before = {str(one["name"]): checkpoint_name(one) for one in old["operators"]}
    used = {**dict.fromkeys(before, 1), **old.get("attributes", {}).get(CHECKPOINTS_USED, {})}
    origins = continued(old, new)
    plan = copy.deepcopy(dict(new))
    for operator in plan["operators"]:
        name = str(operator["name"])
        checkpoint = before[origins[name]] if name in origins else name
        first_name = checkpoint.partition(GENERATION)[0]
        if name in fresh or (name not in origins and first_name in used):
            used[first_name] += 1
            checkpoint = f"{first_name}{GENERATION}{used[first_name]}"
        used.setdefault(first_name, 1)
        if checkpoint != name:
            operator["attributes"] = {
                **operator.get("attributes", {}),
                CHECKPOINT_NAME: checkpoint,
            }
    plan["attributes"] = {**plan.get("attributes", {}), CHECKPOINTS_USED: used}
    return plan


def without_checkpoint(old: JsonObject, new: JsonObject) -> set[str]:
    """Operators of the new plan that begin one, because the old plan kept none for them."""
    kept, origins = _outputs(old), continued(old, new)
    return {name for name in _outputs(new) if origins.get(name) not in kept}


def checkpoint_name(operator: JsonObject) -> str:
    return str(operator.get("attributes", {}).get(CHECKPOINT_NAME) or operator["name"])


def rename_keys(ids: Mapping[str, T], origins: Mapping[str, str]) -> dict[str, T]:
    """What is kept by operator (`revenue`, `revenue.0`, `revenue@1`), under the new names."""
    names = {origin: name for name, origin in origins.items()}
    renamed = {}
    for key, value in ids.items():
        end = min((at for mark in ".@" if (at := key.find(mark)) > 0), default=len(key))
        renamed[names.get(key[:end], key[:end]) + key[end:]] = value
    return renamed


def check_deployable(comparison: Comparison, new_state: Collection[str]) -> None:
    """InvalidArgumentError unless all that would be lost was named."""
    if refused := comparison.of(Verdict.REFUSED):
        raise InvalidArgumentError(f"the new version is refused: {_text(refused)}")
    fresh = comparison.of(Verdict.NEW_STATE)
    unnamed = tuple(one for one in fresh if one.operator not in new_state)
    if unnamed:
        flags = " ".join(f"--new-state {one.operator}" for one in unnamed)
        raise InvalidArgumentError(
            f"the new version cannot go on from its checkpoints: {_text(unnamed)}. "
            f"To start these operators afresh, deploy it with {flags}"
        )
    known = {one.operator for one in comparison.changes}
    if unknown := sorted(set(new_state) - known):
        raise InvalidArgumentError(
            f"no operator {', '.join(unknown)} keeps a checkpoint; there is "
            f"{', '.join(sorted(known))}"
        )


def _text(changes: Collection[OperatorChange]) -> str:
    return "; ".join(f"{one.operator}: {', '.join(one.reasons)}" for one in changes)


# --- one operator ---------------------------------------------------------------------------------


def _compared(
    name: str,
    origin: str,
    before: _Output,
    after: _Output,
    shapes: tuple[Mapping[str, Any], Mapping[str, Any]] | None,
) -> OperatorChange:
    notes = [f"was {origin}"] if origin != name else []
    lost: list[str] = []
    sources = before.sources, after.sources
    if shapes is not None and "sources" in shapes[0] and "sources" in shapes[1]:
        sources = tuple(shapes[0]["sources"]), tuple(shapes[1]["sources"])
    if sources[0] != sources[1]:
        lost.append(
            f"reads {_list(sources[1])} instead of {_list(sources[0])}; a checkpoint holds "
            "positions in the topics it began with"
        )
    if shapes is not None:
        lost += _state_changes(shapes[0].get("state", ()), shapes[1].get("state", ()))
    stateless = shapes is not None and not shapes[0].get("state")
    if before.mode and before.mode != after.mode:
        change = f"output_mode is {after.mode}, it was {before.mode}"
        (notes if stateless else lost).append(change)
    if shapes is not None and not stateless:
        lost += _store_changes(*shapes)
    if before.instances != after.instances:
        lost.append(f"runs in {after.instances} instances, it did in {before.instances}")
    if before.target and before.target != after.target:
        notes.append(f"writes to {after.target} from the next window on, not {before.target}")
    verdict = Verdict.NEW_STATE if lost else Verdict.COMPATIBLE
    return OperatorChange(name, verdict, (*lost, *notes) or ("goes on from its checkpoint",))


def _state_changes(before: Collection[str], after: Collection[str]) -> Iterator[str]:
    if list(before) != list(after):
        yield f"keeps the state {_list(after)}, its checkpoint has {_list(before)}"


def _store_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """`store` is what the checkpoint is bound to, and what the new version needs or asks for."""
    bound, wanted = before.get("store"), after.get("store")
    if bound and wanted and bound != wanted:
        yield f"keeps its state in {short(wanted)}, its checkpoint is bound to {short(bound)}"


def _added(name: str, gone: Collection[str]) -> OperatorChange:
    if not gone:
        return OperatorChange(name, Verdict.COMPATIBLE, ("new",))
    keep = " or ".join(f'renamed_from="{one}"' for one in gone)
    return OperatorChange(
        name,
        Verdict.NEW_STATE,
        (f"is new while {_list(gone)} goes away; if it is the same, declare it with {keep}",),
    )


def _list(names: Collection[str]) -> str:
    return ", ".join(names) or "nothing"


# --- the whole ------------------------------------------------------------------------------------


def _application_changes(old: JsonObject, new: JsonObject) -> Iterator[OperatorChange]:
    name = str(new.get("name", ""))
    if name != str(old.get("name", "")):
        yield OperatorChange(name, Verdict.REFUSED, (f"is another application than {old['name']}",))
    try:
        plans = [LogicalPlan.from_json(one) for one in (old, new)]
        make_physical_plan(plans[1])
    except HeadraceError as error:
        yield OperatorChange(name, Verdict.REFUSED, (str(error),))
        return
    before, after = (plan.attribute(WIDTH) for plan in plans)
    if before != after:
        widths = f"{WIDTH} is {after!r}, it was {before!r}"
        reason = f"{widths}: window ids count in windows of that width"
        yield OperatorChange(name, Verdict.REFUSED, (reason,))


def _rename_errors(old: JsonObject, new: JsonObject) -> Iterator[OperatorChange]:
    before = {str(one["name"]) for one in old.get("operators", ())}
    after = {str(one["name"]) for one in new.get("operators", ())}
    claimed: dict[str, str] = {}
    for operator in new.get("operators", ()):
        name, origin = str(operator["name"]), _renamed_from(operator)
        if not origin or name in before:
            continue
        reason = ""
        if origin not in before:
            reason = f"renamed_from={origin!r}, which the deployed version does not have"
        elif origin in after:
            reason = f"renamed_from={origin!r}, which is still declared"
        elif origin in claimed:
            reason = f"renamed_from={origin!r}, and so is {claimed[origin]}"
        if reason:
            yield OperatorChange(name, Verdict.REFUSED, (reason,))
        claimed[origin] = name


def _outputs(plan: JsonObject) -> dict[str, _Output]:
    """Every operator that keeps a checkpoint, by name."""
    physical = make_physical_plan(LogicalPlan.from_json(plan))
    declared = {str(one["operator"]): one for one in plan.get("outputs", ())}
    topics = {
        str(one["name"]): str(one.get("properties", {}).get("topic") or one["name"])
        for one in plan["operators"]
    }
    declared_attributes = {str(one["name"]): one.get("attributes", {}) for one in plan["operators"]}
    letters = {str(one["name"]) for one in plan["operators"] if _has_dead_letters(one)}
    outputs: dict[str, _Output] = {}
    for operator in physical.operators:
        kept = operator.query or operator.logical.name in letters
        if kept and operator.logical.name not in outputs:
            stated = declared.get(operator.logical.name, {})
            attributes = declared_attributes.get(operator.logical.name, {})
            target = stated.get("topic") or stated.get("store") or attributes.get("OUTPUT_TOPIC")
            if not target and "mode" in stated:
                target = "its own function"
            outputs[operator.logical.name] = _Output(
                sources=tuple(topics.get(one, one) for one in _sources(physical, operator.id)),
                mode=str(stated.get("mode") or attributes.get("OUTPUT_MODE") or ""),
                target=str(target or ""),
                instances=operator.logical.instances,
            )
    return outputs


def _has_dead_letters(operator: JsonObject) -> bool:
    """They have a checkpoint of their own, under the operator's name."""
    expected = operator.get("attributes", {}).get("EXPECT") or {}
    on_bad_row = operator.get("properties", {}).get("on_bad_row")
    return "dead_letter" in (on_bad_row, *expected.values())


def _sources(plan: PhysicalPlan, id_: int) -> list[str]:
    """What a query reads: topic ports, and streams that come from other containers."""
    found: dict[str, None] = {}
    waiting = [plan.by_id[id_]]  # type: ignore[index]  # a plain int of the same plan
    while waiting:
        operator = waiting.pop()
        if not operator.inputs:
            found[operator.logical.name] = None
        for connection in operator.inputs:
            if connection.local:
                waiting.append(plan.by_id[connection.source])
            else:
                found[f"stream {connection.stream}"] = None
    return sorted(found)
