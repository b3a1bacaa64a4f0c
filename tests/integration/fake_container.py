"""A container without Spark: it reports to the controller as a real one does, and no more."""

from __future__ import annotations

import os
import sys
import time

from headrace.pipeline.container.umbilical import BlockingUmbilicalClient, load_token
from headrace.runtime.system import system_runtime
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.windows import WindowGrid


def main() -> int:
    id_ = os.environ["HEADRACE_CONTAINER_ID"]
    print(f"container {id_} runs {os.environ['HEADRACE_ENTRY']}", flush=True)
    runtime = system_runtime()
    with BlockingUmbilicalClient(
        runtime, os.environ["HEADRACE_UMBILICAL_PATH"], load_token(runtime.disk, os.environ)
    ) as client:
        context = client.get_init_context(id_)
        if context is None:
            return 1
        grid = WindowGrid(context.start_window_millis, 500)
        running: set[int] = set()
        while True:
            window = grid.window_at(time.time_ns() // 1_000_000)
            stats = (m.OperatorStats(window, checkpoint=m.Checkpoint(window)),)
            operators = tuple(
                m.OperatorHeartbeat(one, m.DeployState.ACTIVE, window_stats=stats)
                for one in sorted(running)
            )
            response = client.process_heartbeat(
                m.ContainerHeartbeat(
                    jvm_name=f"{os.getpid()}@fake", stats=m.ContainerStats(id_, operators)
                )
            )
            if response.shutdown is not None:
                return 0
            running.difference_update(response.undeploy_request)
            running.update(info.id for info in response.deploy_request)
            time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
