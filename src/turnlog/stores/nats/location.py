"""What a `nats:` or `tls:` URL means.

    nats://user:password@host:port,host2:port2/STREAM?replicas=3

A name without a password is a token. What is special in them stands in percent-encoding. The
stream's name is `TURNLOG` unless given. The options:

    replicas          how many servers keep each turn; 3 unless given
    tls_ca            the file of the certificates to trust, in place of the system's; for `tls:`
    tls_cert tls_key  the files of one's own certificate and its key
"""

from __future__ import annotations

import re
import ssl
from typing import Final
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from turnlog.errors import UnknownStore

_STREAM: Final = re.compile("[A-Za-z0-9_-]{1,200}")
_SERVER: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::([0-9]{1,5}))?")
_REPLICAS: Final = frozenset("12345")
_PORT: Final = 4222
_LAST_PORT: Final = 65535
_OPTIONS: Final = ("replicas", "tls_ca", "tls_cert", "tls_key")
_EXAMPLE: Final = "give nats://user:password@host:4222/STREAM?replicas=3"


class Location(Struct, frozen=True):
    """Where the stream is, and who one is there.

    Attributes:
        servers: the URL of each server, without credentials.
        stream: the stream's name.
        replicas: how many servers are to keep each message.
        user: the user's name, or None.
        password: his password, or None.
        token: a token, or None.
        tls: whether to speak by TLS only.
        tls_files: the files to trust, of the certificate and of its key; empty where not given.
        shown: the URL without what is secret.
    """

    servers: tuple[str, ...]
    stream: str
    replicas: int
    user: str | None
    password: str | None
    token: str | None
    tls: bool
    tls_files: tuple[str, str, str]
    shown: str

    def __repr__(self) -> str:
        """Show what is not secret."""
        return self.shown

    def tls_context(self) -> ssl.SSLContext | None:
        """Make what TLS needs; None where it is not asked for.

        Raises:
            OSError: a file cannot be read; an ssl.SSLError where it is no certificate or key.
        """
        if not self.tls:
            return None
        ca, certificate, key = self.tls_files
        context = ssl.create_default_context(cafile=ca or None)
        if certificate:
            context.load_cert_chain(certificate, key or None)
        return context


def parse(url: str) -> Location:
    """Take a URL apart. Touches no disk.

    Raises:
        UnknownStore: it is no such URL, or an option is not known. The credentials are not in the
            message.
    """
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    login, at, place = rest.rpartition("@")
    hosts, _, stream = place.partition("/")
    begin = f"{scheme}://…"
    if "@" in query or "@" in login or "/" in login:
        raise _refusal(
            begin,
            "its credentials cannot be told from the rest",
            "write them once, before the first server, with '/' as %2F, '?' as %3F and '@' as %40",
        )
    servers = _servers(scheme, hosts)
    stream = _stream(scheme, stream or "TURNLOG")
    shown = f"{scheme}://{hosts}/{stream}"
    options = _options(query, shown)
    replicas = _replicas(options.get("replicas", "3"), shown)
    user, colon, password = login.partition(":")
    return Location(
        servers=servers,
        stream=stream,
        replicas=replicas,
        user=unquote(user) if colon else None,
        password=unquote(password) if colon else None,
        token=unquote(user) if at and not colon else None,
        tls=scheme == "tls",
        tls_files=_tls_files(scheme, options, shown),
        shown=f"{shown}?replicas={replicas}" if "replicas" in options else shown,
    )


def _options(query: str, shown: str) -> dict[str, str]:
    """Return the options. What is no good is not shown: it may be a part of a password."""
    options = dict(parse_qsl(query, keep_blank_values=True))
    if ";" in query or not set(options).issubset(_OPTIONS):
        known = f"the options are {', '.join(_OPTIONS)}; give them as name=value, joined by '&'"
        raise _refusal(shown, "it has an option that is not known", known)
    return options


def _servers(scheme: str, hosts: str) -> tuple[str, ...]:
    found = [_SERVER.fullmatch(host) for host in hosts.split(",")]
    ports = [int(match[2] or _PORT) for match in found if match]
    servers = [f"{scheme}://{match[1]}:{match[2] or _PORT}" for match in found if match]
    if len(servers) < len(found) or not all(0 < port <= _LAST_PORT for port in ports):
        raise _refusal(f"{scheme}://…", "it does not say which servers", _EXAMPLE)
    return tuple(servers)


def _stream(scheme: str, name: str) -> str:
    if not _STREAM.fullmatch(name):
        raise _refusal(
            f"{scheme}://…",
            "the stream's name, which follows the servers, is not plain",
            "give one of A-Z, a-z, 0-9, _ and -",
        )
    return name


def _replicas(text: str, shown: str) -> int:
    if text not in _REPLICAS:
        raise _refusal(
            shown, "replicas is not a number from 1 to 5", "give one, and best an odd one"
        )
    return int(text)


def _tls_files(scheme: str, options: dict[str, str], shown: str) -> tuple[str, str, str]:
    files = tuple(options.get(name, "") for name in _OPTIONS[1:])
    if any(files) and scheme != "tls":
        raise _refusal(shown, "it has options of TLS, and speaks without", "begin it with tls://")
    return (files[0], files[1], files[2])


def _refusal(shown: str, what: str, hint: str) -> UnknownStore:
    return UnknownStore(f"location {shown!r}", what, hint)
