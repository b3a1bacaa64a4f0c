"""The servers' certificate: from the files that the settings name, else a development one; and how
this process knows the other servers of its cluster by theirs.

The development certificate is for localhost, signed by an authority made for it alone, whose key is
forgotten at once: clients trust `secrets/tls/ca.pem`, and nobody can sign anything else with it.

What a process shows to those who connect to it, and whom it trusts when it connects.
"""

from __future__ import annotations

import os.path
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headrace.config.process import TlsSettings
from headrace.config.settings import Settings
from headrace.errors import ConfigError, NotFoundError, StorageError
from headrace.net.tls import ClientTls, TlsAcceptor, TlsLimits
from headrace.runtime import Clock, Disk, Runtime
from headrace.runtime.system.tls import client_context, server_context

_VALID_DAYS = 3650
_CLOCKS_DIFFER = timedelta(days=1)
_ADDRESSES = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM: the server's certificate with its chain, and the private key."""

    chain: bytes
    key: bytes
    authority_path: str
    """What clients need to trust it; empty when it came from files."""
    chain_path: str = ""
    key_path: str = ""

    def acceptor(self, settings: TlsSettings) -> TlsAcceptor | None:
        """What a server's port accepts TLS with; None when TLS is off."""
        if settings.mode == "off":
            return None
        return TlsAcceptor(
            server_context(self.chain, self.key),
            required=settings.mode == "required",
            limits=TlsLimits(
                handshake_seconds=settings.handshake_ms / 1000,
                handshake_bytes_max=settings.handshake_bytes_max,
            ),
        )


@dataclass(frozen=True, slots=True)
class PeerTrust:
    """How servers of this cluster are reached over TLS."""

    authorities: bytes
    path: str
    """The same, as a file."""
    server_name: str
    """What their certificate must say; empty = the host connected to."""

    def client(self) -> ClientTls:
        return ClientTls(context=client_context(self.authorities), server_name=self.server_name)

    def environment(self) -> dict[str, str]:
        """Tells a container the same; see `spark/options.py`."""
        return {
            "HEADRACE_TLS": "true",
            "HEADRACE_TLS_CA": self.path,
            "HEADRACE_TLS_SERVER_NAME": self.server_name,
        }


def load_trust(disk: Disk, settings: TlsSettings, certificate: Certificate) -> PeerTrust | None:
    """Blocks. None when servers are reached without TLS: unless it is required, they are plain to
    each other. Without `tls.ca` every server has our certificate, so its name is the one to expect
    wherever it runs."""
    if settings.mode != "required":
        return None
    if settings.ca:
        return PeerTrust(_read(disk, settings.ca), os.path.abspath(settings.ca), "")
    if certificate.authority_path:
        path = certificate.authority_path
        return PeerTrust(_read(disk, path), os.path.abspath(path), "localhost")
    path = os.path.abspath(settings.certificate)
    return PeerTrust(certificate.chain, path, server_name_of(certificate.chain))


def server_name_of(chain: bytes) -> str:
    """A name that the server's certificate is good for. ConfigError when it has none."""
    try:
        leaf = x509.load_pem_x509_certificate(chain)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise ConfigError(f"the certificate names no server: {error}") from error
    found = [*names.get_values_for_type(x509.DNSName)]
    found += [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    if not found:
        raise ConfigError("the certificate names no server")
    return found[0].replace("*", "headrace", 1)


def load_certificate(disk: Disk, clock: Clock, settings: TlsSettings, data_dir: str) -> Certificate:
    """Blocks. ConfigError when the files are missing or only one of the two is named."""
    if bool(settings.certificate) != bool(settings.key):
        raise ConfigError("tls.certificate and tls.key belong together; set both or neither")
    if settings.has_files:
        chain, key = (_read(disk, path) for path in (settings.certificate, settings.key))
        return Certificate(chain, key, "", settings.certificate, settings.key)
    folder = f"{data_dir}/secrets/tls"
    if not disk.exists(f"{folder}/certificate.pem"):
        _make_development(disk, clock, folder)
    paths = [f"{folder}/{name}.pem" for name in ("certificate", "key")]
    chain, key = (_read(disk, path) for path in paths)
    return Certificate(chain, key, f"{folder}/ca.pem", *paths)


def _read(disk: Disk, path: str) -> bytes:
    try:
        return disk.read(path)
    except (NotFoundError, StorageError) as error:
        raise ConfigError(f"cannot read the TLS file {path}: {error}") from error


def _make_development(disk: Disk, clock: Clock, folder: str) -> None:
    now = datetime.fromtimestamp(clock.now_ms() // 1000, UTC)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _sign_authority(authority_key, now)
    leaf = _sign_leaf(key, authority, authority_key, now)
    disk.make_folder(folder)
    pem = Encoding.PEM
    disk.write_atomic(f"{folder}/ca.pem", authority.public_bytes(pem), mode=0o644)
    private = key.private_bytes(pem, PrivateFormat.PKCS8, NoEncryption())
    disk.write_atomic(f"{folder}/key.pem", private, mode=0o600)
    # Last: where it exists, all three do.
    disk.write_atomic(f"{folder}/certificate.pem", leaf.public_bytes(pem), mode=0o644)


def _begin(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: x509.Name | None, now: datetime
) -> x509.CertificateBuilder:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _sign_authority(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    return (
        _begin("Headrace development authority", key, None, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(certificates=True), critical=True)
        .sign(key, SHA256())
    )


def _sign_leaf(
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    now: datetime,
) -> x509.Certificate:
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    names += [x509.IPAddress(ip_address(address)) for address in _ADDRESSES]
    # rustls takes no certificate authority for a server, so the two are not one certificate.
    return (
        _begin("localhost", key, authority.subject, now)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, SHA256())
    )


def _usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        key_cert_sign=certificates,
        crl_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


@dataclass(frozen=True, slots=True)
class Tls:
    certificate: Certificate
    acceptor: TlsAcceptor | None
    """For our ports; None = no TLS."""
    peers: ClientTls | None
    """For other servers of the cluster; None = they are plain to each other."""


async def load_tls(runtime: Runtime, settings: Settings) -> Tls:
    """The files are read now, so that a wrong path stops the start and not a client."""
    files = runtime.executor("process", 1)
    try:
        return await files.run(_load, runtime, settings)
    finally:
        files.close()


def _load(runtime: Runtime, settings: Settings) -> Tls:
    certificate = load_certificate(runtime.disk, runtime.clock, settings.tls, settings.data_dir)
    trust = load_trust(runtime.disk, settings.tls, certificate)
    return Tls(
        certificate=certificate,
        acceptor=certificate.acceptor(settings.tls),
        peers=None if trust is None else trust.client(),
    )
