"""Leases under random requests: many names at once are the same as one after the other, epochs only
rise, nobody is granted what another holds, and whatever can be seen has a version of its own."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.placement.leases import LeaseDecision, Leases
from headrace.placement.metadata.records import LeaseRecord, Put
from headrace.wire.sbp.messages import LeaseAction, LeaseChange

NAMES = ("s/0", "s/1", "s/2", "other")
HOLDERS = ("a", "b", "c")

Change = tuple[str, str, int]  # action, name, how far the epoch is from the current one
requests = st.tuples(
    st.sampled_from(HOLDERS),
    st.integers(1, 50),  # duration
    st.lists(
        st.tuples(
            st.sampled_from(["acquire", "renew", "release", "query"]),
            st.sampled_from(NAMES),
            st.integers(-1, 1),
        ),
        unique_by=lambda change: change[1],
        max_size=4,
    ),
)
steps = st.one_of(
    st.tuples(st.just("request"), requests),
    st.tuples(st.just("wait"), st.integers(1, 60)),
    st.tuples(st.just("dead"), st.sampled_from(HOLDERS)),
    st.tuples(st.just("restart"), st.just(0)),
)


def apply(leases: Leases, outcomes: list[LeaseDecision | HeadraceError]) -> None:
    decisions = [each for each in outcomes if isinstance(each, LeaseDecision)]
    for decision in decisions:
        for operation in decision.operations:
            assert isinstance(operation, Put)
            assert isinstance(operation.record, LeaseRecord)
            leases.put(operation.record)
    for decision in decisions:
        leases.on_decided(decision)


def visible(leases: Leases, now_ms: int) -> dict[str, tuple[int, str, str]]:
    return {
        name: (record.epoch, record.holder, record.address)
        if leases.held(name, now_ms)
        else (record.epoch, "", "")
        for name, record in leases.records.items()
    }


def changes_of(leases: Leases, wanted: list[Change]) -> list[LeaseChange]:
    found = []
    for action, name, away in wanted:
        known = leases.records.get(name)
        epoch = (known.epoch if known else 0) + away
        match action:
            case "acquire":
                found.append(LeaseChange(name, LeaseAction.ACQUIRE, -1))
            case "renew":
                found.append(LeaseChange(name, LeaseAction.ACQUIRE, max(0, epoch)))
            case "release":
                found.append(LeaseChange(name, LeaseAction.RELEASE, epoch))
            case _:
                found.append(LeaseChange(name, LeaseAction.QUERY))
    return found


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=40))
def test_leases(steps: list[tuple[str, object]]) -> None:
    together, apart = Leases(), Leases()
    now_ms = 0
    epochs: dict[str, int] = {}
    believes: dict[tuple[str, str], tuple[int, int]] = {}  # holder, name -> epoch, until
    seen: dict[int, dict[str, tuple[int, str, str]]] = {}
    for kind, value in steps:
        match kind, value:
            case "wait", int(ms):
                now_ms += ms
            case "dead", str(holder):
                names = together.names("", holder=holder)
                for leases in (together, apart):
                    apply(leases, [*leases.release_holder(holder, names)])
                for key in [key for key in believes if key[0] == holder]:
                    del believes[key]
            case "restart", _:
                for leases in (together, apart):
                    leases.on_recovered(now_ms)
                    leases.version += 1 << 20
            case "request", (str(holder), int(duration_ms), list(wanted)):
                asked = {
                    "holder": holder, "duration_ms": duration_ms, "address": f"{holder}:1",
                    "now_ms": now_ms,
                }  # fmt: skip
                changes = changes_of(together, wanted)
                outcomes = together.change_many(changes, **asked)  # type: ignore[arg-type]  # by name
                apply(together, outcomes)
                for change, outcome in zip(changes, outcomes, strict=True):
                    (alone,) = apart.change_many([change], **asked)  # type: ignore[arg-type]  # by name
                    apply(apart, [alone])
                    assert alone == outcome, "each on its own"
                    assert isinstance(outcome, LeaseDecision)
                    key = (holder, change.name)
                    if not outcome.granted:
                        continue
                    if change.action == LeaseAction.ACQUIRE:
                        others = [
                            until
                            for (who, name), (_, until) in believes.items()
                            if name == change.name and who != holder
                        ]
                        assert all(until <= now_ms for until in others), "two holders"
                        believes[key] = (outcome.record.epoch, now_ms + duration_ms)
                    elif change.action == LeaseAction.RELEASE:
                        believes.pop(key, None)
        assert together.records == apart.records
        for name, record in together.records.items():
            assert record.epoch >= epochs.get(name, 0), "an epoch fell"
            epochs[name] = record.epoch
        together.on_tick(now_ms)
        now = visible(together, now_ms)
        assert seen.setdefault(together.version, now) == now, "a change without a version"
