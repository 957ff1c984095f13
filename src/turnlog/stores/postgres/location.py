"""What a `postgresql:` URL means: libpq's part of it, and ours.

Everything that libpq takes is its own: several hosts, `target_session_attrs`, `sslmode` and the
other parameters of TLS, `options`, a password file, the environment (`PGHOST` ...). Ours are three
parameters of the query, which are taken out of it:

    schema           the schema of the tables, made if it is missing; "public" unless given
    table_prefix     what the tables' names begin with; "turnlog_" unless given
    max_connections  how many connections the store may hold at once; 8 unless given

Source: PostgreSQL documentation, libpq, 34.1.1.2, connection URIs.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote

from msgspec import Struct
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from turnlog.errors import UnknownStore

_PLAIN: Final = re.compile("[a-z_][a-z0-9_]{0,39}")  # leaves room in an identifier's 63 bytes
_ODD: Final = re.compile(r"[;=&\s\"'<>\\]")  # what host, port and database have encoded, if at all
_NUMBER: Final = re.compile("[0-9]{1,5}")
_MOST_CONNECTIONS: Final = 1000

_DEFAULT: Final = {"schema": "public", "table_prefix": "turnlog_", "max_connections": "8"}

# Unless the URL says otherwise: a server that is gone is noticed while a caller still waits.
_DEFAULT_PARAMETERS: Final[dict[str, Any]] = {
    "application_name": "turnlog",
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


class Location(Struct, frozen=True):
    """Where the tables are.

    Attributes:
        parameters: what libpq connects with, the password among it.
        schema: the tables' schema.
        prefix: what their names begin with.
        max_connections: the most connections at once.
        shown: the URL without what is secret.
    """

    parameters: dict[str, Any]
    schema: str
    prefix: str
    max_connections: int
    shown: str

    @property
    def tables(self) -> str:
        """What names the tables within the database."""
        return f"{self.schema}.{self.prefix}"

    def __repr__(self) -> str:
        """Show what is not secret."""
        return self.shown


def parse(url: str) -> Location:
    """Take a URL apart.

    Raises:
        UnknownStore: libpq cannot read it, or one of our parameters is no good. The password is
            not in the message, wherever it stands.
    """
    address, _, query = url.partition("?")
    servers, _, path = address.partition("://")[2].partition("/")
    if servers.count("@") > 1 or "@" in path or "@" in query.rpartition("/")[0]:
        raise _unreadable()  # what is behind the first is a part of the password, most likely
    if _ODD.search(servers.rpartition("@")[2] + path) or ";" in query:
        raise _unreadable()  # options, and a password among them, that are not where they belong
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    own = {name: unquote(value) for name, _, value in pairs if name in _DEFAULT}
    rest = "&".join("".join(pair) for pair in pairs if pair[0] not in own)
    try:
        parameters = conninfo_to_dict(f"{address}?{rest}")
    except ProgrammingError:
        parameters = None  # libpq's words quote the part that it cannot read
    if parameters is None or not _are_ports(str(parameters.get("port", ""))):
        raise _unreadable()
    shown = _shown(parameters)
    for name in ("schema", "table_prefix"):
        if not _PLAIN.fullmatch(own.setdefault(name, _DEFAULT[name])):
            raise _no_good(
                shown,
                name,
                "a plain name: a-z, 0-9 and _, not beginning with a digit, at most 40 characters",
            )
        if own[name] != _DEFAULT[name]:
            shown += f"{'&' if '?' in shown else '?'}{name}={own[name]}"
    count = own.setdefault("max_connections", _DEFAULT["max_connections"])
    if not (_NUMBER.fullmatch(count) and 1 <= int(count) <= _MOST_CONNECTIONS):
        raise _no_good(shown, "max_connections", f"a number from 1 to {_MOST_CONNECTIONS}")
    return Location(
        _DEFAULT_PARAMETERS | parameters,
        own["schema"],
        own["table_prefix"],
        int(count),
        shown,
    )


def _shown(parameters: dict[str, Any]) -> str:
    """Give the hosts and the database, as libpq understands them, and no more."""
    hosts = str(parameters.get("host", "")).split(",")
    ports = str(parameters.get("port", "")).split(",")
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    names = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=True)]
    return f"postgresql://{','.join(names)}/{parameters.get('dbname', '')}"


def _are_ports(ports: str) -> bool:
    """Return whether it is a port for each host: else it may be a password without its host."""
    return all(not port or _NUMBER.fullmatch(port) for port in ports.split(","))


def _unreadable() -> UnknownStore:
    return UnknownStore(
        "location 'postgresql://…'",
        "it cannot be read as a URL of PostgreSQL's",
        "give postgresql://user@host:port/database?parameter=value, with what is special in a "
        "user, a password or a value in percent-encoding",
    )


def _no_good(shown: str, parameter: str, wanted: str) -> UnknownStore:
    return UnknownStore(f"location {shown!r}", f"its {parameter} is no good", f"give {wanted}")
