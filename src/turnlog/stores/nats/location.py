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
from urllib.parse import parse_qsl, unquote, urlencode

from msgspec import Struct

from turnlog.errors import UnknownStore

_STREAM: Final = re.compile("[A-Za-z0-9_-]{1,200}")
_SERVER: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\[\],]+)(?::(\d{1,5}))?")
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
    options = dict(parse_qsl(query, keep_blank_values=True))
    shown = _shown(scheme, place, options)
    unknown = sorted(set(options).difference(_OPTIONS))
    if unknown:
        raise _refusal(shown, f"the option {unknown[0]!r} is not known", _known_options())
    if "@" in login or "/" in login:
        raise _refusal(
            shown,
            "its credentials cannot be told from the rest",
            "write them once, before the first server, with '/' as %2F and '@' as %40",
        )
    user, colon, password = login.partition(":")
    return Location(
        servers=_servers(scheme, hosts, shown),
        stream=_stream(stream or "TURNLOG", shown),
        replicas=_replicas(options.get("replicas", "3"), shown),
        user=unquote(user) if colon else None,
        password=unquote(password) if colon else None,
        token=unquote(user) if at and not colon else None,
        tls=scheme == "tls",
        tls_files=_tls_files(scheme, options, shown),
        shown=shown,
    )


def _servers(scheme: str, hosts: str, shown: str) -> tuple[str, ...]:
    found = [_SERVER.fullmatch(host) for host in hosts.split(",")]
    ports = [int(match[2] or _PORT) for match in found if match]
    servers = [f"{scheme}://{match[1]}:{match[2] or _PORT}" for match in found if match]
    if len(servers) < len(found) or not all(0 < port <= _LAST_PORT for port in ports):
        raise _refusal(shown, "it does not say which servers", _EXAMPLE)
    return tuple(servers)


def _stream(name: str, shown: str) -> str:
    if not _STREAM.fullmatch(name):
        raise _refusal(
            shown,
            f"the stream's name {name!r} is not plain",
            "give one of A-Z, a-z, 0-9, _ and -",
        )
    return name


def _replicas(text: str, shown: str) -> int:
    if text not in _REPLICAS:
        raise _refusal(shown, f"replicas is {text!r}", "give a number from 1 to 5, best an odd one")
    return int(text)


def _tls_files(scheme: str, options: dict[str, str], shown: str) -> tuple[str, str, str]:
    files = tuple(options.get(name, "") for name in _OPTIONS[1:])
    if any(files) and scheme != "tls":
        raise _refusal(shown, "it has options of TLS, and speaks without", "begin it with tls://")
    return (files[0], files[1], files[2])


def _shown(scheme: str, place: str, options: dict[str, str]) -> str:
    kept = urlencode({name: options[name] for name in _OPTIONS if name in options}, safe="/")
    return f"{scheme}://{place}{'?' if kept else ''}{kept}"


def _known_options() -> str:
    return f"the options are {', '.join(_OPTIONS)}"


def _refusal(shown: str, what: str, hint: str) -> UnknownStore:
    return UnknownStore(f"location {shown!r}", what, hint)
