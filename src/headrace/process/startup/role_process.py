"""The life of a process that runs one role: start, report, wait for a signal, stop.

What a role is made of is imported when it is made: a data node has no use for a broker.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os

from headrace.config.settings import Settings, shown_settings
from headrace.errors import UnavailableError
from headrace.observability.escaping import note
from headrace.observability.logging import Format, RecentLines
from headrace.process.certificates import Tls, load_tls
from headrace.process.cluster_connections import (
    check_addresses,
    check_advertised,
    node_connect,
    placement_links,
)
from headrace.process.roles import Role
from headrace.process.startup.observing import make_endpoint
from headrace.process.startup.serving import report_role, stop_on_signals, tell_root, unless_stopped
from headrace.process.startup.settings import read_reference
from headrace.runtime.system import system_runtime
from headrace.wire.sbp.messages import ClientRole


async def make_role(name: str, settings: Settings, secret: bytes, log_format: Format) -> Role:
    runtime = system_runtime()
    if name == "controller":
        from headrace.process.control_plane import ControllerRole

        return ControllerRole(runtime, settings, secret=secret, environment=dict(os.environ))
    host = settings.iggy_host if name == "broker" else ""
    check_advertised(host or settings.host, settings.advertise)
    if name != "placement-manager":
        check_addresses(settings.placement_managers)
    tls = await load_tls(runtime, settings)
    match name:
        case "placement-manager":
            from headrace.process.roles import PlacementRole

            role = ClientRole.PLACEMENT_MANAGER
            return PlacementRole(
                runtime,
                settings,
                secret=secret,
                node=node_connect(runtime, secret, name, role, tls=tls.peers),
                tls=tls.acceptor,
                etcd_password=read_reference(
                    settings.placement.etcd.password, "placement.etcd.password"
                ),
            )
        case "data-node":
            from headrace.process.roles import NodeRole

            role = ClientRole.DATA_NODE
            return NodeRole(
                runtime,
                settings,
                secret=secret,
                placement=placement_links(
                    runtime, settings.placement_managers, secret, name, role, tls=tls.peers
                ),
                peers=node_connect(runtime, secret, name, role, tls=tls.peers),
                tls=tls.acceptor,
            )
        case _ if settings.broker.workers:
            from headrace.process.startup.broker_supervision import SupervisedBroker

            return SupervisedBroker(runtime, settings, secret=secret, log_format=log_format)
        case _:
            return _make_broker(settings, secret, tls)


def _make_broker(settings: Settings, secret: bytes, tls: Tls) -> Role:
    from headrace.broker.term.snapshot import Diagnostics
    from headrace.process.roles import BrokerRole
    from headrace.process.startup.observing import MachineFigures, list_processes

    runtime = system_runtime()
    recent = RecentLines()
    logging.getLogger().addHandler(recent)
    managers = settings.placement_managers
    return BrokerRole(
        runtime,
        settings,
        secret=secret,
        placement=placement_links(runtime, managers, secret, "broker", tls=tls.peers),
        node=node_connect(runtime, secret, "broker", tls=tls.peers),
        placement_address=",".join(managers),
        tls=tls,
        stands_by=True,
        on_root=tell_root,
        figures=MachineFigures(settings.data_dir),
        diagnostics=Diagnostics(
            data_dir=settings.data_dir,
            settings=shown_settings(settings),
            processes=list_processes,
            logs=recent.text,
        ),
    )


async def serve_role(
    name: str, settings: Settings, secret: bytes, *, ready_file: str, log_format: Format
) -> None:
    stop = stop_on_signals()
    role = await make_role(name, settings, secret, log_format)
    endpoint = make_endpoint(settings, role.observed())
    await endpoint.start()
    try:
        if not await unless_stopped(stop, role.start()):
            return
        gc.freeze()  # as in `control_plane_process.py`
        report_role(name, {**role.addresses(), **endpoint.addresses()}, ready_file)
        waits = [asyncio.create_task(stop.wait()), asyncio.create_task(role.lost.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if role.lost.is_set():
            raise role.failure or UnavailableError(
                f"the {name} cannot go on; see its messages above"
            )
        note("stopping")
    finally:
        await role.close()
        await endpoint.close()
