"""The URLs of the JetStream store."""

from __future__ import annotations

import pytest

from turnlog.errors import UnknownStore
from turnlog.stores.nats.location import parse


def test_a_url_names_servers_a_stream_and_options() -> None:
    """A URL holds servers, with their ports or the usual one, a stream and options."""
    found = parse("nats://one:1,two,[::1]:3/MINE?replicas=5")
    assert found.servers == ("nats://one:1", "nats://two:4222", "nats://[::1]:3")
    assert (found.stream, found.replicas, found.tls) == ("MINE", 5, False)
    assert (found.user, found.password, found.token) == (None, None, None)


@pytest.mark.parametrize("url", ["nats://host", "nats://host/", "nats://host?"])
def test_a_url_needs_no_more_than_a_server(url: str) -> None:
    """The stream is TURNLOG, on three servers, unless the URL says otherwise."""
    found = parse(url)
    assert (found.servers, found.stream, found.replicas) == (("nats://host:4222",), "TURNLOG", 3)


def test_tls_is_told_by_the_scheme() -> None:
    """With `tls:` the servers are spoken to by TLS, with the files that the options name."""
    found = parse("tls://host/S?tls_ca=/a/b.pem&tls_cert=c.pem&tls_key=k.pem")
    assert found.tls
    assert found.servers == ("tls://host:4222",)
    assert found.tls_files == ("/a/b.pem", "c.pem", "k.pem")


def test_credentials_are_decoded_and_not_shown() -> None:
    """A user with a password, or a token, is taken out of the URL, and no text shows them."""
    login = parse("nats://m%65:s%40cr%2Fet@host/S?replicas=1")
    assert (login.user, login.password, login.token) == ("me", "s@cr/et", None)
    token = parse("nats://t%3Aken@host/S?replicas=1")
    assert (token.user, token.password, token.token) == (None, None, "t:ken")
    for found in (login, token):
        assert repr(found) == found.shown == "nats://host/S?replicas=1"
        assert "@" not in "".join(found.servers)


@pytest.mark.parametrize(
    "url",
    [
        "nats://",
        "nats:///S",
        "nats://one,,two/S",
        "nats://host:port/S",
        "nats://host:123456/S",
        "nats://host:65536/S",
        "nats://host:0/S",
        "nats://ho st/S",
        "nats://host/a.b",
        "nats://host/a/b",
        "nats://host/>",
        f"nats://host/{'S' * 201}",
        "nats://host/S?replicas=0",
        "nats://host/S?replicas=6",
        "nats://host/S?replicas=",
        "nats://host/S?replica=1",
        "nats://host/S?tls_ca=a.pem",
        "nats://user:secret@one,user:secret@two/S",
        "nats://user:sec/ret@host/S",
        "nats://user:secret@host/S?password=secret",
    ],
)
def test_what_is_no_url_is_refused_without_its_secrets(url: str) -> None:
    """A URL that cannot be read is refused when the store is made; no credentials are shown."""
    with pytest.raises(UnknownStore) as caught:
        parse(url)
    assert "secret" not in str(caught.value)
    assert "user" not in str(caught.value).partition(";")[0]
