"""TLS in front of a PostgreSQL server, for clients as if it were the server's own.

The tests' server was built without TLS. This takes a client's request for TLS, and no connection
without, does the handshake, and forwards what was in it.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from proxy import Proxy
from serverprocess import make_certificate, new_folder, remove_folder

if TYPE_CHECKING:
    import asyncio

_TLS_REQUEST: Final = bytes([0, 0, 0, 8, 4, 210, 22, 47])
_YES: Final = b"S"


class TlsFront(Proxy):
    """A port that leads to a server's by TLS alone.

    Attributes:
        certificate: the file that a client trusts, say with `sslmode=verify-full&sslrootcert=`.
    """

    def __init__(self, target: int) -> None:
        """Make a certificate, and start to forward."""
        self._folder: Final = new_folder("tls")
        self.certificate: Final = self._folder / "certificate.pem"
        make_certificate(self.certificate, self._folder / "key.pem")
        self._context: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.certificate, self._folder / "key.pem")
        super().__init__(target)

    async def greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Turn the connection into one by TLS; refuse it where the client does not ask for that."""
        if await reader.read(len(_TLS_REQUEST)) != _TLS_REQUEST:
            raise ConnectionRefusedError
        writer.write(_YES)
        await writer.start_tls(self._context)

    def close(self) -> None:
        """Reset all connections, and end."""
        super().close()
        remove_folder(self._folder)
