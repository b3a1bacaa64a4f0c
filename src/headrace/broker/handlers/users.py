"""Users, logins, personal access tokens.

The reply to a login has an access token: proof, for an hour, that its holder knew the password.

    "iggypat-s." + base64url of  u64 user uid, u64 expiry (ms since the epoch), 32 bytes HMAC-SHA256

The HMAC is keyed with the cluster's secret and covers the two numbers and the user's password hash:
nothing is stored, and changing the password or deleting the user ends every token at once. A login
with such a token gives no new one, so its hour cannot be stretched; nothing else ends it early. The
prefix lets the token stand in a connection string; a personal access token never has a dot.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass

from headrace.broker.catalogue import decisions
from headrace.broker.catalogue.events import UserUpdated
from headrace.broker.catalogue.options import keep_options
from headrace.broker.catalogue.passwords import check_password, draw_token, token_digest
from headrace.broker.catalogue.resources import Permissions, User
from headrace.broker.core import Broker
from headrace.broker.handlers.views import read_permissions, view_user, view_user_details
from headrace.broker.sessions.authorization import (
    SERVICE,
    catalogue_user,
    current_user,
    holder_of,
    require,
)
from headrace.broker.sessions.request_dedup import session_number
from headrace.broker.sessions.sessions import Login, Session
from headrace.errors import NotFoundError, ThrottledError, UnauthorizedError
from headrace.net.credentials import PREFIX, service_token, verify_grant
from headrace.wire.iggy.commands import Permission
from headrace.wire.iggy.dialects import Dialect, StatedDialects, of_version
from headrace.wire.iggy.messages import users as m
from headrace.wire.iggy.messages.extensions import PresentGrant, SpeakFor
from headrace.wire.iggy.messages.system import Empty
from headrace.wire.iggy.refusals import (
    IncompatibleProtocolError,
    InvalidCredentialsError,
    InvalidTokenError,
    TokenExpiredError,
    UserInactiveError,
)
from headrace.wire.iggy.vsr.frames import VERSION, VERSION_MAX, VERSION_MIN

_PREFIX = "iggypat-s."
_BODY = struct.Struct("<QQ")
_MAC_BYTES = hashlib.sha256().digest_size
_TEXT_BYTES = (_BODY.size + _MAC_BYTES) * 4 // 3  # 48 bytes: base64 needs no padding
_PURPOSE = b"headrace session token\0"


@dataclass(frozen=True, slots=True)
class SessionToken:
    """What a token claims; true only if `is_signed`."""

    user_uid: int
    expires_ms: int
    mac: bytes

    def is_signed(self, secret: bytes, password_hash: str) -> bool:
        body = _BODY.pack(self.user_uid, self.expires_ms)
        return hmac.compare_digest(self.mac, _mac(secret, body, password_hash))


def make_session_token(secret: bytes, *, user_uid: int, password_hash: str, expires_ms: int) -> str:
    body = _BODY.pack(user_uid, expires_ms)
    return _PREFIX + urlsafe_b64encode(body + _mac(secret, body, password_hash)).decode()


def parse_session_token(token: str) -> SessionToken | None:
    """None for anything that does not look like one."""
    text = token.removeprefix(_PREFIX)
    if text == token or len(text) != _TEXT_BYTES or not text.isascii():
        return None
    try:
        data = urlsafe_b64decode(text)
    except Base64Error:
        return None
    if len(data) != _BODY.size + _MAC_BYTES:
        return None
    user_uid, expires_ms = _BODY.unpack_from(data)
    return SessionToken(user_uid, expires_ms, data[_BODY.size :])


def _mac(secret: bytes, body: bytes, password_hash: str) -> bytes:
    message = _PURPOSE + body + password_hash.encode()
    return hmac.new(secret, message, hashlib.sha256).digest()


TOKEN_BYTES_MAX = 100
HOST_CHARACTERS_MAX = 100


async def get_user(broker: Broker, session: Session, request: m.GetUser) -> m.UserDetails | None:
    found = broker.catalogue.find_user(request.user)
    return None if found is None else view_user_details(broker, found)


async def get_users(broker: Broker, session: Session, request: Empty) -> m.Users:
    return m.Users(tuple(view_user(user) for user in broker.catalogue.users.values()))


def _resolve(broker: Broker, block: m.Permissions | None) -> Permissions | None:
    if block is None:
        return None
    rights, streams = read_permissions(block)
    return decisions.resolve_permissions(broker.catalogue, rights=rights, streams=streams)


async def create_user(broker: Broker, session: Session, request: m.CreateUser) -> m.UserDetails:
    check_password(request.password)
    password_hash = await broker.passwords.hash(request.password)
    event = await broker.commit(
        lambda: decisions.create_user(
            broker.catalogue,
            name=request.username,
            password_hash=password_hash,
            status=request.status,
            permissions=_resolve(broker, request.permissions),
            now_us=broker.runtime.clock.now_us(),
            options=keep_options(request.options),
        )
    )
    return view_user_details(broker, broker.catalogue.user(event.id))


async def delete_user(broker: Broker, session: Session, request: m.DeleteUser) -> None:
    await broker.commit(lambda: decisions.delete_user(broker.catalogue, request.user))


async def update_user(broker: Broker, session: Session, request: m.UpdateUser) -> None:
    def decide() -> UserUpdated:
        before = broker.catalogue.user(request.user).options
        options = keep_options(request.options, before) if request.options else None
        return decisions.update_user(
            broker.catalogue,
            request.user,
            name=request.username,
            status=request.status,
            options=options,
        )

    await broker.commit(decide)


async def update_permissions(
    broker: Broker, session: Session, request: m.UpdatePermissions
) -> None:
    await broker.commit(
        lambda: decisions.change_permissions(
            broker.catalogue, request.user, _resolve(broker, request.permissions)
        )
    )


async def change_password(broker: Broker, session: Session, request: m.ChangePassword) -> None:
    """One's own needs the current password; somebody else's also the right to manage users.

    Whoever knew the old one is out: the user's other connections are logged out, and tokens end.
    """
    user = broker.catalogue.find_user(request.user)
    if user is None or user.uid != session.user_uid:
        # First: who may not manage users does not learn which names there are.
        require(broker, session, Permission.MANAGE_USERS)
    user = broker.catalogue.user(request.user)
    check_password(request.new_password)
    verified = user.password_hash
    await _guard(broker, session, user.name, verified, request.current_password)
    password_hash = await broker.passwords.hash(request.new_password)
    session.keeps_login = True
    try:
        await broker.commit(
            lambda: decisions.change_password(
                broker.catalogue, request.user, verified_hash=verified, password_hash=password_hash
            )
        )
    finally:
        session.keeps_login = False


# -- logins


async def _guard(
    broker: Broker, session: Session, name: str, stored: str | None, password: str
) -> None:
    try:
        await broker.guard.check(
            broker.passwords,
            name,
            session.host,
            stored,
            password,
            failures=session.login_failures,
        )
    except (InvalidCredentialsError, ThrottledError):
        session.login_failures += 1
        raise
    session.login_failures = 0


async def _check_login(broker: Broker, session: Session, username: str, password: str) -> User:
    user = broker.catalogue.find_user(username)
    stored = None if user is None else user.password_hash
    await _guard(broker, session, username, stored, password)
    if user is None or broker.catalogue.user_by_uid(user.uid) is None:
        raise InvalidCredentialsError("deleted meanwhile")
    if user.password_hash != stored:
        raise InvalidCredentialsError("changed meanwhile")
    return user


async def login_user(broker: Broker, session: Session, request: m.LoginUser) -> m.Identity:
    user = await _check_login(broker, session, request.username, request.password)
    stated = of_version(request.version)
    login = Login.SILENT if stated is None else Login.VERSION
    return _log_in(broker, session, user, login, stated=stated)


async def login_register(
    broker: Broker, session: Session, request: m.LoginRegister
) -> m.Registered:
    """Dialect C. The session's number goes with client and user, so one that connects again gets
    the same, and its requests are known: see `request_dedup.py`."""
    _check_protocol(request.protocol_version)
    user = await _check_login(broker, session, request.username, request.password)
    _log_in(broker, session, user, Login.VERSION, stated=Dialect.C)
    return _register(broker, session, user)


async def login_register_with_token(
    broker: Broker, session: Session, request: m.LoginRegisterWithToken
) -> m.Registered:
    _check_protocol(request.protocol_version)
    await login_with_token(broker, session, m.LoginWithPersonalAccessToken(request.token))
    return _register(broker, session, current_user(broker, session))


def _check_protocol(version: int) -> None:
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise IncompatibleProtocolError(version=version)


def _register(broker: Broker, session: Session, user: User) -> m.Registered:
    session.number = session_number(broker.identity.secret, session.client, user.uid)
    return m.Registered(user.id, session.number, VERSION, broker.identity.version)


async def login_with_token(
    broker: Broker, session: Session, request: m.LoginWithPersonalAccessToken
) -> m.Identity:
    try:
        identity = _log_in_with_token(broker, session, request)
    except (InvalidTokenError, NotFoundError, TokenExpiredError):
        await broker.guard.on_token_refused(session.host)
        raise
    broker.guard.on_token_accepted(session.host)
    return identity


def _log_in_with_token(
    broker: Broker, session: Session, request: m.LoginWithPersonalAccessToken
) -> m.Identity:
    if not 1 <= len(request.token.encode()) <= TOKEN_BYTES_MAX:
        raise InvalidTokenError(f"a token has 1 to {TOKEN_BYTES_MAX} bytes")
    stated = Dialect.C if session.dialect is Dialect.C else Dialect.B2
    service = service_token(broker.identity.secret)
    if hmac.compare_digest(request.token.encode(), service.encode()):
        return _log_in(broker, session, SERVICE, Login.SERVICE, stated=stated)
    if request.token == PREFIX:
        return _log_in_with_grant(broker, session, stated)
    if (user := _session_user(broker, request.token)) is not None:
        return _log_in(broker, session, user, Login.TOKEN)
    found = broker.catalogue.user_by_token(token_digest(request.token))
    if found is None:
        raise NotFoundError("unknown token")
    user, token = found
    if token.expiry_at and token.expiry_at <= broker.runtime.clock.now_us():
        raise TokenExpiredError(token=token.name)
    return _log_in(broker, session, user, Login.TOKEN)


async def present_grant(broker: Broker, session: Session, request: PresentGrant) -> None:
    """What the login that follows, of whichever dialect, refers to by an empty grant."""
    try:
        now_ms = broker.runtime.clock.now_ms()
        session.presented = verify_grant(broker.identity.secret, request.grant, now_ms)
    except UnauthorizedError as error:
        await broker.guard.on_token_refused(session.host)
        raise InvalidTokenError(str(error)) from error


async def speak_for(broker: Broker, session: Session, request: SpeakFor) -> None:
    """Guesses that come over HTTP are their host's, not the control plane's, and no reason to keep
    the same host waiting on other ports."""
    service = service_token(broker.identity.secret)
    if not hmac.compare_digest(request.token.encode(), service.encode()):
        await broker.guard.on_token_refused(session.host)
        raise InvalidTokenError("only the control plane speaks for others")
    session.behalf = f"http {request.host[:HOST_CHARACTERS_MAX]}"


def _log_in_with_grant(broker: Broker, session: Session, stated: Dialect) -> m.Identity:
    grant, session.presented = session.presented, None
    if grant is None:
        raise InvalidTokenError("no grant was presented")
    broker.logout(session)  # before the grant is there: it goes with whoever leaves
    identity = _log_in(broker, session, holder_of(grant), Login.GRANT, stated=stated)
    session.grant = grant
    return identity


def _session_user(broker: Broker, text: str) -> User | None:
    """Whose session token this is; None when it is none, or not ours."""
    token = parse_session_token(text)
    user = None if token is None else broker.catalogue.user_by_uid(token.user_uid)
    if token is None or user is None:
        return None
    if not token.is_signed(broker.identity.secret, user.password_hash):
        return None
    if token.expires_ms <= broker.runtime.clock.now_ms():
        raise TokenExpiredError(user=user.name)
    return user


def _log_in(
    broker: Broker,
    session: Session,
    user: User,
    login: Login,
    *,
    stated: Dialect | StatedDialects | None = None,
) -> m.Identity:
    if not user.active:
        raise UserInactiveError(user=user.name)
    if session.user_uid not in (None, user.uid):
        broker.logout(session)  # a second login replaces the first, groups included
    broker.sessions.on_login(session, user.uid, login, stated)
    return m.Identity(user.id, _session_token(broker, session, user))


def _session_token(broker: Broker, session: Session, user: User) -> str:
    lifetime_ms = broker.settings.session_token_ms
    by_password = session.login in (Login.VERSION, Login.SILENT)
    if not (session.rules.login_token and by_password and lifetime_ms):
        return ""
    return make_session_token(
        broker.identity.secret,
        user_uid=user.uid,
        password_hash=user.password_hash,
        expires_ms=broker.runtime.clock.now_ms() + lifetime_ms,
    )


async def logout_user(broker: Broker, session: Session, request: Empty) -> None:
    number = session.number
    broker.answers.forget_session(number)
    broker.logout(session)
    if number:
        await broker.workers.forget_session(number)


# -- tokens


async def get_tokens(broker: Broker, session: Session, request: Empty) -> m.PersonalAccessTokens:
    tokens = catalogue_user(broker, session).tokens.values()
    return m.PersonalAccessTokens(
        tuple(m.PersonalAccessToken(token.name, token.expiry_at) for token in tokens)
    )


async def create_token(
    broker: Broker, session: Session, request: m.CreatePersonalAccessToken
) -> m.RawPersonalAccessToken:
    token = draw_token(broker.runtime)
    await broker.commit(
        lambda: decisions.create_token(
            broker.catalogue,
            catalogue_user(broker, session),
            name=request.name,
            digest=token_digest(token),
            expiry_us=request.expiry_us,
            now_us=broker.runtime.clock.now_us(),
        )
    )
    return m.RawPersonalAccessToken(token)


async def delete_token(
    broker: Broker, session: Session, request: m.DeletePersonalAccessToken
) -> None:
    await broker.commit(
        lambda: decisions.delete_token(
            broker.catalogue, catalogue_user(broker, session), name=request.name
        )
    )
