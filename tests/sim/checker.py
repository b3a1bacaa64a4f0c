"""Does a history keep the eighteen invariants?

`check_metadata` looks at what was committed, `check_calls` at what was answered, `check_ending` at
what is there when all is quiet.

| | Invariant | Checked |
|---|---|---|
| I1 | acknowledged = returned by every later read, same bytes | here, on reads and on replicas |
| I2 | ranges tile the stream | here, after every transaction |
| I3 | no two appends at one offset | here |
| I4 | one open range at most, the last | here, after every transaction |
| I5 | a sealed end never changes, nothing reopens | here: transactions, answers of data nodes |
| I6 | acknowledged <= sealed end <= some replica's durable end | here |
| | acknowledged = on as many disks as promised | here, at each acknowledgement |
| I7 | nothing is acknowledged after the answer to a seal | here |
| I8 | nothing uncommitted is read | here: what was read stays, and was on a quorum by then |
| I9 | complete replicas are identical | here, at the end |
| I10 | appends of one connection keep their order | here |
| I11 | ids are never used again | here |
| I12 | a deposed leader writes nothing | here, after every transaction |
| I13 | starts never fall, nothing below is served | here: transactions, reads at the end |
| I14 | replicas are distinct live nodes | here, at each range's creation |
| I15 | one terminal answer per request | here: in quiet times; tests/unit/net/test_sbp_rules.py |
| I16 | recovery keeps what was acknowledged, and is idempotent | here: power cuts at the end |
| I17 | no frame costs more than the largest one | tests/integration/test_sbp_malformed.py |
| I18 | one stored batch per producer sequence | here, at the end |
"""

from __future__ import annotations

from tests.sim.check_calls import check_calls
from tests.sim.check_ending import Final, check_ending
from tests.sim.check_metadata import check_metadata
from tests.sim.history import History


def check(history: History, final: Final) -> list[str]:
    """Every violation found; none is what we want."""
    return [
        *history.complaints,
        *check_metadata(history.transactions, history),
        *check_calls(history, final),
        *check_ending(history, final),
    ]
