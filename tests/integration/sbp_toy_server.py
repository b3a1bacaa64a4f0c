"""A process that serves the transport tests' toy data node, and reports its own memory."""

from __future__ import annotations

import asyncio
import sys

from headrace.runtime.system import run
from tests.unit.net.sbp_fixtures import ToyNode, serving


async def main() -> None:
    async with serving(ToyNode().handlers()) as server:
        print(server.address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    run(main())
