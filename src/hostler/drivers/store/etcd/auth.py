"""Access to etcd: certificates, user and password."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import grpc
import grpc.aio

from hostler.errors import Invalid
from hostler.settings.password import read_password

if TYPE_CHECKING:
    from collections.abc import Sequence


_OPTIONS: Sequence[tuple[str, int]] = (
    # A range or a batch of events may have any size; the server bounds what it sends.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Only the driver decides what is repeated.
    ("grpc.enable_retries", 0),
    # Every store has its own connections: closing one never affects another.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_http_proxy", 0),
    # A dead connection with a stream is detected within 9 s. The keepalive timeout alone does not end a connection, the
    # ping timeout does. The server refuses pings more often than every 5 s, or on a connection without a stream.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    # Duration of one connection attempt, and the wait between two.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


_CERTIFICATE = {
    10: "renew its certificate",
    62: "issue it for the host that the store's URL names",
    64: "issue it for the address that the store's URL names",
}
"""Advice by OpenSSL's X509_V_ERR: expired, another host, another address."""


class Problem(NamedTuple):
    """Why a member cannot be connected to, and what to do; without advice: start it, or wait."""

    what: str
    advice: str = ""


class Access:
    """Credentials for etcd. Its repr does not include the password."""

    def __init__(
        self,
        *,
        tls: bool = False,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        user: str | None = None,
        password: str | None = None,
        password_file: str | None = None,
    ) -> None:
        if not tls and (ca or cert or key):
            raise Invalid("etcd: ca, cert and key need TLS; write etcds:// instead of etcd://")
        if (cert is None) != (key is None):
            raise Invalid("etcd: cert and key belong together; give both")
        if password is not None and password_file is not None:
            raise Invalid("etcd: give either password or password_file")
        if (user is None) != (password is None and password_file is None):
            raise Invalid("etcd: user and password belong together; give both")
        self._tls, self._ca, self._cert, self._key = tls, ca, cert, key
        self.user, self._password, self._password_file = user, password, password_file

    def __repr__(self) -> str:
        return f"Access(tls={self._tls}, user={self.user!r})"

    def password(self) -> str:
        """Return the password; read from its file each time, so that it can be changed there."""
        if self._password_file is not None:
            return read_password(self._password_file, "etcd")
        return self._password or ""

    def check(self) -> None:
        """Raise Invalid if a configured file cannot be read."""
        if self._password_file is not None:
            self.password()
        self._credentials()
        if self._tls:
            self._context()

    def connection_problem(self, target: str, within: float) -> Problem | None:
        """Return why a connection to a member fails; None: it succeeds. Blocks: call it in a thread."""
        host, _, port = target.rpartition(":")
        host = host.strip("[]")
        try:
            with socket.create_connection((host, int(port)), timeout=within) as plain:
                if self._tls:
                    self._shake_hands(plain, host, within)
                elif _wants_tls(plain):
                    return Problem("it requires TLS", "write etcds:// in the store's URL, with ?ca=FILE of its CA")
        except ssl.SSLCertVerificationError as error:
            advice = _CERTIFICATE.get(error.verify_code, "name the file of its CA: ?ca=FILE in the store's URL")
            return Problem(f"its certificate is not accepted here: {error.verify_message}", advice)
        except ssl.SSLError as error:
            reason = (error.reason or str(error)).replace("_", " ").lower()
            if "alert" in reason:
                advice = "check the client's certificate: ?cert=FILE&key=FILE in the store's URL"
                return Problem(f"TLS fails: {reason}", advice)
            return Problem(f"TLS fails: {reason}", "if it does not use TLS, write etcd:// in the store's URL")
        except TimeoutError:
            return Problem(f"no connection within {within:g} s")
        except OSError as error:
            return Problem((error.strerror or str(error)).lower())
        return None

    def _shake_hands(self, plain: socket.socket, host: str, within: float) -> None:
        """Complete the TLS handshake.

        With TLS 1.3 the server checks the client's certificate after the client's handshake is done, and only then
        reports an error. A server that accepts it waits for the client.
        """
        with self._context().wrap_socket(plain, server_hostname=host) as secured:
            secured.settimeout(min(within, 0.5))
            with suppress(TimeoutError):
                secured.recv(1)

    def channel(self, target: str) -> grpc.aio.Channel:
        """Return a channel to one member, not yet connected."""
        credentials = self._credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(target, options=_OPTIONS)
        return grpc.aio.secure_channel(target, credentials, options=_OPTIONS)

    def _context(self) -> ssl.SSLContext:
        """Return the TLS context. Invalid: the files cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self._ca)
        except (OSError, ValueError) as error:
            raise Invalid(f"etcd ca {self._ca!r}: no certificates in it ({error}); name a PEM file") from None
        if self._cert is not None and self._key is not None:
            try:
                context.load_cert_chain(self._cert, self._key, password=lambda: "")
            except (OSError, ValueError) as error:
                reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
                if reason == "KEY_VALUES_MISMATCH":
                    raise Invalid(
                        f"etcd cert {self._cert!r}: the key {self._key!r} belongs to another certificate; name two"
                        " that belong together"
                    ) from None
                words = str(reason).replace("_", " ").lower()
                raise Invalid(f"etcd cert {self._cert!r}, key {self._key!r}: {words}; name two PEM files") from None
        return context

    def _credentials(self) -> grpc.ChannelCredentials | None:
        if not self._tls:
            return None
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self._ca, "ca") if self._ca else None,
            private_key=_read(self._key, "key") if self._key else None,
            certificate_chain=_read(self._cert, "cert") if self._cert else None,
        )


def _wants_tls(plain: socket.socket) -> bool:
    """Return whether the server answers a TLS handshake, without checking certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with context.wrap_socket(plain):
            return True
    except OSError:
        return False


def _read(path: str, option: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Invalid(f"etcd {option} {path!r}: {reason}; name a file that can be read") from None
