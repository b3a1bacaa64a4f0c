"""The first user of a catalogue that has none."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass

from headrace.broker.catalogue import decisions
from headrace.broker.catalogue.passwords import check_password
from headrace.broker.core import Broker
from headrace.errors import ConfigError, RequestError

ROOT_USERNAME = "iggy"
_PASSWORD_BYTES = 18


@dataclass(frozen=True, slots=True)
class RootCredentials:
    """Made at the first start; `generated` ones are shown once and stored nowhere."""

    username: str
    password: str
    generated: bool


async def make_root(broker: Broker, on_root: Callable[[RootCredentials], None] | None) -> None:
    """Make the root user, unless there are users already. ConfigError when the settings name one
    that cannot be."""
    if broker.catalogue.users:
        return
    name = broker.settings.root_username or ROOT_USERNAME
    password = broker.settings.root_password
    generated = not password
    if generated:
        random = broker.runtime.random.bytes(_PASSWORD_BYTES)
        password = urlsafe_b64encode(random).decode()
    try:
        check_password(password)
        password_hash = await broker.passwords.hash(password)
        await broker.commit(
            lambda: decisions.create_root(
                broker.catalogue,
                name=name,
                password_hash=password_hash,
                now_us=broker.runtime.clock.now_us(),
            )
        )
    except RequestError as error:
        raise ConfigError(f"root user: {error}") from error
    if on_root is not None:
        on_root(RootCredentials(name, password, generated))
