"""Runs every benchmark, writes a report with a plot: `make bench`, `python -m benchmarks NAME...`.

Each figure is a ratio to a limit measured in the same run (a bare loop that does the same I/O, or
Spark on in-memory Arrow batches): ratios travel between machines, absolute figures do not.
"""

from __future__ import annotations

import importlib
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = (
    "iggy_codec", "hot_steps", "storage_append", "streams_latency", "log_append", "log_fetch",
    "state_follow", "peer_link", "broker_send_poll", "broker_fairness", "broker_scale",
    "cluster_failover", "backup", "umbilical", "spark_read", "spark_json", "spark_sink",
    "spark_latency", "pipeline_overhead",
)  # fmt: skip
REPORT = Path(__file__).parent / "report"


def main(names: list[str]) -> int:
    results: list[dict[str, Any]] = []
    for name in names or list(BENCHMARKS):
        print(f"== {name}", flush=True)
        for row in importlib.import_module(f"benchmarks.{name}").run():
            results.append({"benchmark": name, **row})
            print(
                f"   {row['name']:<48} {row['value']:>14,.1f} {row['unit']:<12}"
                f" limit {row['limit']:>14,.1f}   ratio {row['ratio']:.2f}{_details(row)}",
                flush=True,
            )
    REPORT.mkdir(exist_ok=True)
    (REPORT / "results.json").write_text(json.dumps({**_machine(), "results": results}, indent=2))
    _plot(results)
    print(f"report: {REPORT.relative_to(Path.cwd())}/results.json, ratios.svg")
    return 0


def _details(row: dict[str, Any]) -> str:
    if "cpu_s_per_gb" in row:
        return f"   CPU s/GB {row['cpu_s_per_gb']:.2f}, limit {row['limit_cpu_s_per_gb']:.2f}"
    if "memory_mb" in row:
        return f"   {row['cpu_s']:.2f} s of processor, {row['memory_mb']:.0f} MB of memory"
    if "p50_ms" not in row:
        return ""
    told = f"   p50 {row['p50_ms']:.2f} ms, p99 {row['p99_ms']:.2f} ms"
    return told + (f", p99.9 {row['p999_ms']:.2f} ms" if "p999_ms" in row else "")


def _machine() -> dict[str, str]:
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "commit": commit,
        "command": "python -m benchmarks",
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _plot(results: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.4 * len(results) + 1.2))
    labels = [f"{row['benchmark']}: {row['name']}" for row in results][::-1]
    axes.barh(labels, [row["ratio"] for row in results][::-1], color="#1769aa")
    axes.axvline(1.0, color="#b3261e", linewidth=1)
    axes.set_xlabel("ratio to the limit measured in the same run (1 = as fast as the bare loop)")
    figure.tight_layout()
    figure.savefig(REPORT / "ratios.svg")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
