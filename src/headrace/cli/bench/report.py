"""The report of a load run: JSON for programs, and one HTML page that needs nothing else."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from headrace.cli.bench.figures import PERCENTILES, Change, differing

VERSION = 1
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 260, 70, 34, 12
_COLORS = {"produce": "#1f77b4", "consume": "#d9480f", "end_to_end": "#2b8a3e"}
_TITLES = {"produce": "send", "consume": "poll", "end_to_end": "end to end"}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 760px; padding: 0 1rem;
       color: #212529; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } td, th { padding: .25rem .6rem; text-align: right;
       border-bottom: 1px solid #8884; } td:first-child, th:first-child { text-align: left; }
svg { width: 100%; height: auto; } text { font: 11px system-ui, sans-serif; fill: currentColor; }
.better { color: #2b8a3e; } .worse { color: #c92a2a; } .note { opacity: .75; }
@media (prefers-color-scheme: dark) { body { color: #e9ecef; background: #16181b; } }
"""

Points = Sequence[tuple[float, float]]


def to_html(
    report: dict[str, Any], before: dict[str, Any] | None = None, changes: Sequence[Change] = ()
) -> str:
    parts = [
        f"<h1>{html.escape(report['name'])}</h1>",
        f'<p class="note">{html.escape(_about(report))}</p>',
        _summary(report),
        "<h2>Messages per second over time</h2>",
        _throughput(report, before),
        "<h2>Latency by percentile</h2>",
        _latency(report, before),
    ]
    if changes:
        parts += ["<h2>Compared with the earlier run</h2>", _changes(changes)]
        if before is not None and (names := differing(report, before)):
            parts.append(f"<p>The runs differ in {html.escape(', '.join(names))}.</p>")
    parts += ["<h2>Settings</h2>", _settings(report)]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(report['name'])}</title><style>{_STYLE}</style></head>"
        f"<body>\n{body}\n</body></html>\n"
    )


def _about(report: dict[str, Any]) -> str:
    machine = report["machine"]
    return (
        f"{report['made_at']}, headrace {report['version']} against {report['server']}, "
        f"{machine['cores']} cores, {machine['system']}, Python {machine['python']}"
    )


def _sides(report: dict[str, Any]) -> list[str]:
    return [side for side in _TITLES if side in report]


def _summary(report: dict[str, Any]) -> str:
    sides = _sides(report)
    head = "".join(f"<th>{_TITLES[side]}</th>" for side in sides)
    rows = []
    for name, key in (("messages", "messages"), ("messages per second", "messages_per_second")):
        cells = (f"<td>{_number(report[side].get(key))}</td>" for side in sides)
        rows.append(f"<tr><td>{name}</td>{''.join(cells)}</tr>")
    cells = (f"<td>{_megabytes(report[side])}</td>" for side in sides)
    rows.append(f"<tr><td>MB per second</td>{''.join(cells)}</tr>")
    for each in (*(f"p{p:g}" for p in PERCENTILES), "max"):
        cells = (f"<td>{report[side]['latency_ms'][each]:,.3f}</td>" for side in sides)
        rows.append(f"<tr><td>{each}, ms</td>{''.join(cells)}</tr>")
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _megabytes(side: dict[str, Any]) -> str:
    rate = side.get("bytes_per_second")
    return "" if rate is None else f"{rate / 1e6:,.1f}"


def _changes(changes: Sequence[Change]) -> str:
    rows = []
    for each in changes:
        kind = {True: "better", False: "worse", None: ""}[each.better]
        word = kind or "same"
        rows.append(
            f"<tr><td>{html.escape(each.name)}</td><td>{each.before:,.3f}</td>"
            f'<td>{each.now:,.3f}</td><td class="{kind}">{each.percent:+.1f} % {word}</td></tr>'
        )
    head = "<tr><th></th><th>before</th><th>now</th><th>change</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _settings(report: dict[str, Any]) -> str:
    rows = (
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(value))}</td></tr>"
        for name, value in report["settings"].items()
    )
    return f"<table>{''.join(rows)}</table>"


# -- plots


def _throughput(report: dict[str, Any], before: dict[str, Any] | None) -> str:
    lines = []
    for run, dashed in ((before, True), (report, False)):
        for side in ("produce", "consume"):
            if run is not None and side in run:
                seconds = run["settings"].get("seconds", math.inf)
                # What was on its way at the end is not a second of the run.
                rows = [row for row in run[side]["per_second"] if row[0] < seconds]
                points = [(float(row[0]), float(row[1])) for row in rows]
                lines.append((side, points, dashed))
    last = max((x for _, points, _ in lines for x, _ in points), default=1.0)
    top = max((y for _, points, _ in lines for _, y in points), default=1.0) * 1.05 or 1.0
    plot = _Plot(x_max=max(last, 1.0), y_max=top)
    return plot.svg(
        lines,
        x_ticks=[(x, f"{x:g} s") for x in _steps(plot.x_max)],
        y_ticks=[(y, _short(y)) for y in _steps(top)],
        label="messages per second",
    )


def _latency(report: dict[str, Any], before: dict[str, Any] | None) -> str:
    """The x axis is the distance to 100 percent, halved and halved again."""
    lines = []
    for run, dashed in ((before, True), (report, False)):
        for side in _TITLES:
            if run is not None and side in run:
                points = [(_depth(p), ms) for p, ms in run[side]["latency_curve"]]
                lines.append((side, points, dashed))
    depth = max((x for _, points, _ in lines for x, _ in points), default=1.0)
    top = max((y for _, points, _ in lines for _, y in points), default=1.0) * 1.05 or 1.0
    plot = _Plot(x_max=max(depth, 1.0), y_max=top)
    ticks = [(_depth(p), f"{p:g}") for p in (0, *PERCENTILES) if _depth(p) <= plot.x_max]
    return plot.svg(
        lines,
        x_ticks=ticks,
        y_ticks=[(y, f"{y:g} ms") for y in _steps(top)],
        label="milliseconds at a percentile",
    )


def _depth(percent: float) -> float:
    return -math.log10(max(1e-6, 1 - percent / 100))


def _steps(top: float) -> list[float]:
    """About four round numbers up to the top."""
    raw = top / 4
    unit = 10 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next(unit * each for each in (1, 2, 5, 10) if unit * each >= raw)
    return [step * n for n in range(int(top / step) + 1)]


def _short(value: float) -> str:
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


class _Plot:
    def __init__(self, *, x_max: float, y_max: float) -> None:
        self.x_max = x_max
        self.y_max = y_max

    def _x(self, x: float) -> float:
        return round(_LEFT + x / self.x_max * (_WIDTH - _LEFT - 20), 1)

    def _y(self, y: float) -> float:
        return round(_HEIGHT - _BOTTOM - y / self.y_max * (_HEIGHT - _BOTTOM - _TOP), 1)

    def svg(
        self,
        lines: Sequence[tuple[str, Points, bool]],
        *,
        x_ticks: Sequence[tuple[float, str]],
        y_ticks: Sequence[tuple[float, str]],
        label: str,
    ) -> str:
        parts = [
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(label)}">'
        ]
        for y, text in y_ticks:
            at = self._y(y)
            parts.append(
                f'<line x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{at}" y2="{at}" stroke="#8884"/>'
                f'<text x="{_LEFT - 6}" y="{at + 4}" text-anchor="end">{text}</text>'
            )
        parts += [
            f'<text x="{self._x(x)}" y="{_HEIGHT - 16}" text-anchor="middle">{text}</text>'
            for x, text in x_ticks
        ]
        parts += [self._line(*line) for line in lines if line[1]]
        shown = dict.fromkeys(side for side, _, dashed in lines if not dashed)
        for position, side in enumerate(shown):
            parts.append(
                f'<text x="{_LEFT + 90 * position}" y="{_HEIGHT - 2}" '
                f'style="fill:{_COLORS[side]}">&#9632; {_TITLES[side]}</text>'
            )
        if any(dashed for _, _, dashed in lines):
            parts.append(f'<text x="{_WIDTH - 150}" y="{_HEIGHT - 2}">dashed: earlier run</text>')
        return "".join(parts) + "</svg>"

    def _line(self, side: str, points: Points, dashed: bool) -> str:
        path = " ".join(f"{self._x(x)},{self._y(y)}" for x, y in points)
        dash = ' stroke-dasharray="4 3" opacity=".6"' if dashed else ""
        return (
            f'<polyline points="{path}" fill="none" stroke="{_COLORS[side]}" '
            f'stroke-width="1.6"{dash}/>'
        )
