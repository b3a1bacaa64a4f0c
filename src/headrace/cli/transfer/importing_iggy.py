"""Topics of an Iggy server, or of another Headrace, into topics here. A position is an offset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.cli.transfer.import_sources import Imported, ImportTarget
from headrace.client.iggy import IggyClient
from headrace.net.addresses import parse_address
from headrace.net.tls import ClientTls
from headrace.runtime.interfaces import Runtime
from headrace.transfer.copying import Copy, Pace
from headrace.transfer.spans import SourceTopic
from headrace.wire.iggy.vsr.client import Conversation


@dataclass(frozen=True, slots=True)
class IggySource:
    address: str
    username: str
    password: str
    token: str = ""
    dialect: str = "B2"
    tls: ClientTls | None = None

    async def connect(self, runtime: Runtime) -> IggyClient:
        host, port = parse_address(self.address)
        conversation = Conversation(runtime.random.bytes(16)) if self.dialect == "C" else None
        client = await IggyClient.connect(
            runtime, host, port, tls=self.tls, conversation=conversation
        )
        try:
            if self.token:
                await client.login_with_token(self.token)
            else:
                await client.login(self.username, self.password)
        except BaseException:
            await client.close()
            raise
        return client


async def import_topic(
    target: ImportTarget,
    client: IggyClient,
    source: SourceTopic,
    address: str,
    *,
    rate: float = 0,
    by_key: bool = False,
    accept_loss: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Imported:
    """`client` is the source's; `address` is where a plain Iggy server, which has no identity of
    its own, is found."""
    done = Imported()
    copy = Copy(
        client,
        (source.stream, source.topic),
        (target.stream, target.topic),
        partitions=(len(source.partitions), target.partitions),
        pace=Pace(target.client.runtime.clock, rate),
        by_key=by_key,
        accept_loss=accept_loss,
        on_progress=on_progress,
    )
    plain = source.identity.startswith(f"{source.stream}/")
    identity = {"iggy": f"{address}/{source.identity}" if plain else source.identity}
    for span in source.partitions:
        part = f"{span.partition}.{span.generation}"
        delivery = await target.delivery(identity, part)
        done.before[str(span.partition)] = max(span.start, delivery.last)
        done.messages += await copy.span(span, delivery, ends=False)
    return done
