"""What a container adds to the reports of its queries."""

from __future__ import annotations

import pytest

from headrace.ids import WindowId
from headrace.pipeline.container.heartbeat import HeartbeatFigures
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.windows import WindowGrid

START = 1_700_000_000_000
GRID = WindowGrid(START, 500)


def window(number: int) -> WindowId:
    return GRID.window_at(START + 500 * number)


def stats(number: int, **ports: int) -> m.OperatorStats:
    """Of the window with this number; `i_...` are input ports, the others output ports."""
    return m.OperatorStats(
        window(number),
        checkpoint=m.Checkpoint(window(number)),
        input_ports=tuple(m.PortStats(n[2:], c) for n, c in ports.items() if n[:2] == "i_"),
        output_ports=tuple(m.PortStats(n, c) for n, c in ports.items() if n[:2] != "i_"),
    )


def report(operator: int, *records: m.OperatorStats) -> m.OperatorHeartbeat:
    return m.OperatorHeartbeat(operator, m.DeployState.ACTIVE, window_stats=records)


def reader(
    id_: int, port: str, *sources: tuple[int, str], **attributes: int
) -> m.OperatorDeployInfo:
    inputs = tuple(
        m.InputDeployInfo(port_name=port, source_node_id=node, source_port_name=name)
        for node, name in sources
    )
    return m.OperatorDeployInfo(
        id_, m.OperatorType.OIO, inputs=inputs, context_attributes=attributes
    )


def test_an_input_port_has_the_rows_of_what_it_reads() -> None:
    figures = HeartbeatFigures(GRID)
    figures.on_deploy([reader(3, "left", (1, "ok"), (2, "ok")), reader(4, "late", (1, "late"))])
    one = report(1, stats(1, ok=10, late=2), stats(2, ok=20, late=0))
    two = report(2, stats(1, ok=5))
    three = report(3, stats(1, i_left=0), stats(2, i_left=0))
    four = report(4, stats(1, i_late=0))
    *_, joined, late = figures.complete([one, two, three, four], 0)
    assert [one.input_ports[0].tuple_count for one in joined.window_stats] == [15, 20]
    assert [one.input_ports[0].tuple_count for one in late.window_stats] == [2]


def test_rows_that_are_known_already_stay() -> None:
    figures = HeartbeatFigures(GRID)
    figures.on_deploy([reader(2, "in", (1, "out"))])
    _, read = figures.complete([report(1, stats(1, out=9)), report(2, stats(1, i_in=7))], 0)
    assert read.window_stats[0].input_ports[0].tuple_count == 7


def test_an_operator_that_is_gone_is_left_alone() -> None:
    figures = HeartbeatFigures(GRID)
    figures.on_deploy([reader(2, "in", (1, "out"))])
    figures.on_undeploy([2, 5])
    _, read = figures.complete([report(1, stats(1, out=9)), report(2, stats(1, i_in=0))], 0)
    assert read.window_stats[0].input_ports[0].tuple_count == 0


def test_processor_time_is_shared_and_none_is_lost() -> None:
    figures = HeartbeatFigures(GRID)
    assert figures.complete([report(1)], 1_000) == (report(1),)  # nothing to put it into
    first, second = figures.complete([report(1, stats(1)), report(2, stats(1), stats(2))], 4_000)
    used = [one.cpu_time_used for one in (*first.window_stats, *second.window_stats)]
    assert sum(used) == pytest.approx(4_000, abs=3)
    (later,) = figures.complete([report(1, stats(3))], 4_500)
    assert later.window_stats[0].cpu_time_used == 500


def test_a_checkpoint_says_where_in_its_windows_it_is() -> None:
    figures = HeartbeatFigures(GRID, checkpoint_windows=60)
    figures.on_deploy([reader(1, "in", APPLICATION_WINDOW_COUNT=4)])
    (done,) = figures.complete([report(1, stats(5), stats(59))], 0)
    found = [one.checkpoint for one in done.window_stats]
    assert found == [m.Checkpoint(window(5), 2, 6), m.Checkpoint(window(59), 0, 0)]
    nothing = m.OperatorStats(window(1))
    (plain,) = figures.complete([report(1, nothing)], 0)
    assert plain.window_stats[0].checkpoint is None


def test_the_context_gives_grid_and_interval() -> None:
    context = m.StreamingContainerContext(
        START, True, {"STREAMING_WINDOW_SIZE_MILLIS": 250, "CHECKPOINT_WINDOW_COUNT": 8}
    )
    figures = HeartbeatFigures.from_context(context)
    assert figures.grid == WindowGrid(START, 250)
    assert figures.checkpoint_windows == 8
