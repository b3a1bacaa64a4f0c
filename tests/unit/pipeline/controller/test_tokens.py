"""Which tokens open the umbilical, on the virtual clock and a simulated network."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.config.controller import ControllerSettings
from headrace.errors import UnauthenticatedError
from headrace.net.hadoop_rpc import LOGIN_SECONDS_MAX, RpcRemoteError
from headrace.pipeline.container.umbilical import UmbilicalClient, load_token
from headrace.pipeline.controller.container_credentials import ContainerTokens
from headrace.pipeline.controller.controller import Controller
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical import rpc
from headrace.wire.umbilical.tokens import Token
from tests.simulator.runtime import Simulation
from tests.unit.pipeline.controller.test_controller import World, package, simulate

PATH = "/data/applications/shop"


def tokens(*, alive: set[str], now_ms: Callable[[], int] = lambda: 0) -> ContainerTokens:
    return ContainerTokens(b"secret", now_ms, alive.__contains__, lifetime_ms=1_000)


def test_a_token_is_good_while_its_container_lives() -> None:
    alive = {"shop.1.1"}
    made = tokens(alive=alive)
    token = made.issue("shop.1.1", "127.0.0.1:1")
    credential = made.look_up(token.identifier)
    assert (credential.user, credential.password) == ("shop.1.1", token.password)
    alive.clear()
    with pytest.raises(UnauthenticatedError, match="taken back"):
        made.look_up(token.identifier)


def test_a_token_expires() -> None:
    now_ms = 0
    made = tokens(alive={"c"}, now_ms=lambda: now_ms)
    token = made.issue("c", "")
    now_ms = 999
    made.look_up(token.identifier)
    now_ms = 1_000
    with pytest.raises(UnauthenticatedError, match="expired"):
        made.look_up(token.identifier)


def test_a_controller_that_starts_again_knows_its_tokens() -> None:
    token = tokens(alive={"c"}).issue("c", "")
    assert tokens(alive={"c"}).look_up(token.identifier).password == token.password
    other = ContainerTokens(b"another", lambda: 0, {"c"}.__contains__, 1_000)
    assert other.look_up(token.identifier).password != token.password


def test_tokens_differ() -> None:
    made = tokens(alive=set())
    assert made.issue("c", "").password != made.issue("c", "").password
    with pytest.raises(UnauthenticatedError, match="not a token"):
        made.look_up(b"nonsense")


def running(main: Callable[[World, Controller, Token], Coroutine[Any, Any, None]]) -> None:
    """`main` with a controller whose one container runs, and that container's token."""

    async def run(world: World) -> None:
        controller = await world.controller()
        await controller.operations.submit(package())
        await world.sleep(5)
        (request,) = world.launcher.requests
        token = load_token(world.runtime.disk, request.login_environment)
        assert token is not None
        await main(world, controller, token)
        assert controller.operations.show("shop").operators[0].state == "ACTIVE"
        assert controller.failure is None
        await controller.close()

    simulate(run)


def client(world: World, token: Token | None) -> UmbilicalClient:
    return UmbilicalClient(world.simulation.runtime("x"), PATH, token)


def share(world: World) -> None:
    """Hosts have disks of their own: give the stranger the URI file."""
    name = f"{PATH}/recovery/heartbeatUri"
    disk = world.simulation.runtime("x").disk
    disk.make_folder(f"{PATH}/recovery")
    disk.write_atomic(name, world.runtime.disk.read(name))


@pytest.mark.parametrize(
    "change",
    [
        lambda token: Token(token.identifier, bytes(32)),
        lambda token: Token(token.identifier.replace(b"shop.1.1", b"shop.1.9"), token.password),
        lambda token: Token(b"", b""),
    ],
    ids=["wrong secret", "no such container", "nonsense"],
)
def test_a_wrong_token_is_refused_and_the_controller_lives(
    change: Callable[[Token], Token], caplog: pytest.LogCaptureFixture
) -> None:
    async def main(world: World, controller: Controller, token: Token) -> None:
        share(world)
        stranger = client(world, change(token))
        with pytest.raises(UnauthenticatedError, match="login was refused"):
            await stranger.get_init_context("shop.1.1")
        assert controller.operations.statistics().umbilical["connections_refused"] == 1
        assert "rpc_connection_refused" in caplog.text
        await stranger.close()

    running(main)


def test_without_a_token_nobody_gets_in() -> None:
    async def main(world: World, controller: Controller, token: Token) -> None:
        share(world)
        stranger = client(world, None)
        with pytest.raises(RpcRemoteError, match="container's token"):
            await stranger.get_init_context("shop.1.1")
        assert controller.operations.statistics().umbilical["connections_refused"] == 1
        await stranger.close()

    running(main)


def test_a_token_speaks_for_its_own_container_alone() -> None:
    async def main(world: World, controller: Controller, token: Token) -> None:
        share(world)
        own = client(world, token)
        assert await own.get_init_context("shop.1.1") is not None
        for attempt in (
            own.get_init_context("shop.1.2"),
            own.log("shop.1.2", "hello"),
            own.report_error("shop.1.2", (), "boom"),
            own.process_heartbeat(m.ContainerHeartbeat(stats=m.ContainerStats("shop.1.2"))),
        ):
            with pytest.raises(RpcRemoteError, match="speaks for itself alone"):
                await attempt
        await own.close()

    running(main)


def test_the_token_ends_with_its_container() -> None:
    async def main(world: World, controller: Controller, token: Token) -> None:
        share(world)
        (request,) = world.launcher.requests
        assert world.runtime.disk.exists(request.token_path)
        world.launcher.processes[0].kill()
        await world.sleep(5)
        assert not world.runtime.disk.exists(request.token_path)
        zombie = client(world, token)
        with pytest.raises(UnauthenticatedError, match="taken back"):
            await zombie.get_init_context("shop.1.1")
        await zombie.close()
        successor = load_token(world.runtime.disk, world.launcher.requests[1].login_environment)
        assert successor != token

    running(main)


def test_the_token_is_handed_over_in_a_variable_too() -> None:
    async def main(world: World, controller: Controller, token: Token) -> None:
        (request,) = world.launcher.requests
        variable = {"HEADRACE_UMBILICAL_TOKEN": request.token}
        assert load_token(world.runtime.disk, variable) == token
        assert load_token(world.runtime.disk, {}) is None
        assert request.token not in repr(request)

    running(main)


def test_who_does_not_log_in_in_time_is_sent_away() -> None:
    async def main(world: World, controller: Controller, token: Token) -> None:
        runtime = world.simulation.runtime("x")
        host, port = controller.umbilical_address
        connection = await runtime.transport.connect(host, port)
        connection.write([b"hrpc\x09\x00\xdf"])
        started = runtime.clock.monotonic()
        assert await connection.receive() == b""
        assert runtime.clock.monotonic() - started == pytest.approx(LOGIN_SECONDS_MAX, abs=0.1)
        connection.close()

    running(main)


def test_long_frames_before_the_login_are_refused() -> None:
    async def main(world: World, controller: Controller, token: Token) -> None:
        runtime = world.simulation.runtime("x")
        connection = await runtime.transport.connect(*controller.umbilical_address)
        connection.write([b"hrpc\x09\x00\xdf", (rpc.LOGIN_FRAME_BYTES_MAX + 1).to_bytes(4, "big")])
        assert await connection.receive() == b""
        connection.close()

    running(main)


def test_an_expired_token_is_refused_at_the_next_login() -> None:
    async def main(simulation: Simulation) -> None:
        world = World(simulation)
        controller = await world.controller(token_lifetime_ms=60_000)
        await controller.operations.submit(package())
        await world.sleep(5)
        (request,) = world.launcher.requests
        token = load_token(world.runtime.disk, request.login_environment)
        share(world)
        await world.sleep(60)
        late = client(world, token)
        with pytest.raises(UnauthenticatedError, match="expired"):
            await late.get_init_context("shop.1.1")
        await late.close()
        # The container logged in while the token was good; its connection goes on.
        assert controller.operations.show("shop").restarts == 0
        await controller.close()

    simulation = Simulation(1)
    simulation.run(main(simulation))


def test_the_settings_default_outlives_any_container() -> None:
    assert ControllerSettings().token_lifetime_ms > 365 * 24 * 3600 * 1000


@pytest.mark.parametrize("root", ["memory://umbilical/apps", "/shared/apps"])
def test_the_address_is_found_where_the_settings_say_and_followed(root: str) -> None:
    """The second controller has another port; the file is read again, the token is still good."""

    async def main(world: World) -> None:
        first = await world.controller(umbilical_path=root)
        await first.operations.submit(package())
        await world.sleep(3)
        (request,) = world.launcher.requests
        assert request.umbilical_path == f"{root}/shop"
        assert not world.runtime.disk.exists(f"{PATH}/recovery/heartbeatUri")
        token = load_token(world.runtime.disk, request.login_environment)
        container = UmbilicalClient(world.runtime, request.umbilical_path, token)
        assert await container.get_init_context(request.container_id) is not None
        # As after kill -9: the container lives on and is adopted.
        first._applications.get("shop").processes.clear()
        await first.close()
        second = await world.controller(umbilical_path=root)
        assert second.umbilical_address != first.umbilical_address
        assert await container.get_init_context(request.container_id) is not None
        await container.close()
        await second.operations.stop("shop")
        await world.sleep(5)
        await second.close()

    simulate(main)
