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
from urllib.parse import parse_qsl, unquote, urlencode

from msgspec import Struct
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from turnlog.errors import UnknownStore

_PLAIN: Final = re.compile("[a-z_][a-z0-9_]{0,39}")  # leaves room in an identifier's 63 bytes
_MOST_CONNECTIONS: Final = 1000

# Unless the URL says otherwise: a server that is gone is noticed while a caller still waits.
_DEFAULTS: Final[dict[str, Any]] = {
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
            not in the message.
    """
    address, _, query = url.partition("?")
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    own = {name: unquote(value) for name, _, value in pairs if name in _OWN}
    rest = "&".join("".join(pair) for pair in pairs if pair[0] not in own)
    shown = _shown(url)
    try:
        parameters = conninfo_to_dict(f"{address}?{rest}")
    except ProgrammingError:
        parameters = None  # libpq's words quote the part that it cannot read
    if parameters is None:
        raise UnknownStore(
            f"location {shown!r}",
            "libpq cannot read it",
            "give postgresql://user@host:port/database?parameter=value, with what is special in "
            "a user, a password or a value in percent-encoding",
        )
    return Location(
        _DEFAULTS | parameters,
        _name(own, "schema", "public", shown),
        _name(own, "table_prefix", "turnlog_", shown),
        _count(own, shown),
        shown,
    )


_OWN: Final = frozenset(("schema", "table_prefix", "max_connections"))
_SHOWN: Final = ("schema", "table_prefix", "max_connections", "sslmode", "target_session_attrs")


def _shown(url: str) -> str:
    """Give the URL with the hosts and the database, and of the query what is surely no secret."""
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    hosts, slash, database = rest.partition("/")
    if "@" in database:  # a slash in the password was not encoded
        hosts, slash, database = f"{hosts}/{database}".rpartition("@")[2].partition("/")
    kept = urlencode([pair for pair in parse_qsl(query) if pair[0] in _SHOWN])
    return f"{scheme}://{hosts.rpartition('@')[2]}{slash}{database}{'?' if kept else ''}{kept}"


def _name(own: dict[str, str], parameter: str, default: str, shown: str) -> str:
    name = own.get(parameter, default)
    if not _PLAIN.fullmatch(name):
        raise UnknownStore(
            f"location {shown!r}",
            f"the {parameter} {name!r} is no plain name",
            "give one of a-z, 0-9 and _, not beginning with a digit, of at most 40 characters",
        )
    return name


def _count(own: dict[str, str], shown: str) -> int:
    text = own.get("max_connections", "8")
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _MOST_CONNECTIONS):
        raise UnknownStore(
            f"location {shown!r}",
            f"max_connections is {text!r}",
            f"give a number from 1 to {_MOST_CONNECTIONS}",
        )
    return int(text)
