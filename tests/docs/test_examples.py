"""The examples: each runs as its docstring says, offline and against a provider over real HTTP."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import json
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from localserver import Failure, Gate, Provider, Reply, ToolCall, turns

import turnlog

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"
CLAUDE: Final = "claude-haiku-4-5-20251001"
GPT: Final = "gpt-5-mini"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in a folder of one's own, with a default memory of its own, offline unless told."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    monkeypatch.delenv("TURNLOG_URL", raising=False)
    monkeypatch.delenv("TURNLOG_MODEL", raising=False)
    turnlog.default_memory().close()  # one of an earlier test; the next use makes another
    yield
    turnlog.default_memory().close()


def said(thread: str, namespace: str) -> list[tuple[str, str]]:
    """Give what is in a thread's file, read anew."""
    with turnlog.Memory(read_only=True) as memory:
        return [(turn.role, turn.content) for turn in memory.open(thread, namespace).messages()]


def is_interrupted(thread: str, namespace: str) -> bool:
    """Say whether the last turn in a thread's file was broken off."""
    with turnlog.Memory(read_only=True) as memory:
        return "interrupted" in (memory.open(thread, namespace).messages()[-1].meta or {})


# ---- the plain script ----


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script to its end, in a process of its own."""
    command = [sys.executable, str(EXAMPLES / "support_script.py"), *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=60)


def test_the_script_remembers_in_a_second_process() -> None:
    """Without a key or a network, the second process quotes what the first was told (R19, R24)."""
    first = script("ticket-981", "My invoice is wrong.")
    second = script("ticket-981", "Any update?")

    assert (first.stderr, second.stderr) == ("", "")
    assert first.stdout == (
        "(offline responder, no language model) "
        'You say: "My invoice is wrong." This is our first turn.\n'
    )
    assert second.stdout == (
        "(ticket-981 holds 2 turns)\n"
        '(offline responder, no language model) You say: "Any update?" '
        'You wrote once before; first: "My invoice is wrong."\n'
    )


@pytest.mark.parametrize("model", [CLAUDE, GPT])
def test_the_script_asks_a_model(
    model: str, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process sends the texts, and nothing of the tools (R20 to R22, A09)."""
    monkeypatch.setenv("TURNLOG_MODEL", model)
    provider.script(
        Reply("Let me look.", ToolCall("invoice_status", {"number": 8})),
        "It was sent on Monday.",
        "Not yet.",
    )

    first = script("ticket-981", "How is invoice 8?")
    second = script("ticket-981", "Is it paid?")

    assert (first.stderr, second.stderr) == ("", "")
    assert first.stdout == "Let me look.\n[invoice_status number=8]\nIt was sent on Monday.\n"
    assert second.stdout == "(ticket-981 holds 3 turns)\nNot yet.\n"
    assert turns(provider.requests[1])[-1] == ("tool", "sent on Monday, not paid yet")
    sent = [text for role, text in turns(provider.requests[2]) if role != "system"]
    assert "\n\n".join(sent) == (  # OpenAI's wire has the two replies as one
        "How is invoice 8?\n\nLet me look.\n\nIt was sent on Monday.\n\nIs it paid?"
    )


def test_a_stopped_script_keeps_what_was_said(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C keeps the input and the text so far, and the next run sends both (R23, A02, A03)."""
    monkeypatch.setenv("TURNLOG_MODEL", CLAUDE)
    gate = Gate()
    provider.script(Reply("It will ", gate, "never come."), "As I said.")
    command = [sys.executable, str(EXAMPLES / "support_script.py"), "ticket-981", "When?"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    ) as stopped:
        assert stopped.stdout is not None
        assert stopped.stdout.read(len("It will ")) == "It will "
        stopped.send_signal(signal.SIGINT)
        output, errors = stopped.communicate(timeout=60)

    assert (stopped.returncode, output) == (1, "")
    assert errors == "\n(stopped; what was said is kept)\n"
    assert said("ticket-981", "support") == [("user", "When?"), ("assistant", "It will ")]
    assert is_interrupted("ticket-981", "support")
    assert script("ticket-981", "Well?").stdout.endswith("As I said.\n")
    assert [text.strip() for _, text in turns(provider.requests[1])[1:]] == [
        "When?",
        "It will",
        "Well?",
    ]


def test_the_script_says_what_is_wrong() -> None:
    """An error is one line, and a wrong call is answered with how to run it."""
    refused = script("../ticket", "Hello?")
    assert refused.returncode == 1
    assert refused.stderr.startswith("\nid '../ticket': it holds a path separator")
    assert "Traceback" not in refused.stderr
    assert "examples/support_script.py ticket-981" in script().stderr


# ---- the messenger's bot ----


class Scripted:
    """A messenger that brings what a test puts in, and keeps what is sent."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.updates: asyncio.Queue[Any] = asyncio.Queue()
        self.sent: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.polled: list[int] = []

    async def poll(self, after: int) -> Any:
        """Give what was put in next."""
        self.polled.append(after)
        return await self.updates.get()

    async def send(self, chat: str, text: str) -> None:
        """Keep what is sent."""
        self.sent.put_nowait((chat, text))


@pytest.fixture
def bot(monkeypatch: pytest.MonkeyPatch, provider: Provider) -> Any:
    """Give the bot as a module, which asks a model of the provider."""
    del provider  # its address is in the environment
    monkeypatch.setenv("TURNLOG_MODEL", CLAUDE)
    spec = importlib.util.spec_from_file_location("message_bot", EXAMPLES / "message_bot.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_messages_of_one_chat_are_answered_one_after_another(bot: Any, provider: Provider) -> None:
    """While a chat waits for its reply, its next message waits too, and other chats do not."""
    gate = Gate()

    def reply(body: dict[str, Any]) -> Reply:
        return Reply(gate, "1.") if turns(body)[-1][1] == "One?" else Reply("2.")

    provider.reply = reply

    async def main() -> list[tuple[str, str]]:
        messenger = Scripted()
        task = asyncio.create_task(bot.serve(messenger))
        messenger.updates.put_nowait(
            [bot.Update(5, "ada", "One?"), bot.Update(6, "ada", "Two?"), bot.Update(7, "eve", "Hi")]
        )
        answered = [await messenger.sent.get()]
        await gate.reached.aexpect()
        asked = [turns(body)[-1][1] for body in provider.requests]
        assert sorted(asked) == ["Hi", "One?"]
        gate.open()
        messenger.updates.put_nowait(None)
        await task
        assert messenger.polled == [0, 7]
        return [*answered, messenger.sent.get_nowait(), messenger.sent.get_nowait()]

    assert asyncio.run(main()) == [("eve", "2."), ("ada", "1."), ("ada", "2.")]
    assert said("ada", "messenger") == [
        ("user", "One?"),
        ("assistant", "1."),
        ("user", "Two?"),
        ("assistant", "2."),
    ]


def test_a_message_is_not_lost_when_the_provider_fails(bot: Any, provider: Provider) -> None:
    """A failing provider is answered politely, and the next run sends the message after all."""
    provider.script(Failure(500, "Oops."), "You have two invoices.")

    async def main() -> Sequence[tuple[str, str]]:
        messenger = Scripted()
        for batch in (
            [bot.Update(1, "ada", "How many?")],
            [],
            [bot.Update(2, "ada", "Hello?")],
            None,
        ):
            messenger.updates.put_nowait(batch)
        await bot.serve(messenger)
        return [messenger.sent.get_nowait() for _ in range(2)]

    assert asyncio.run(main()) == [("ada", bot.SORRY), ("ada", "You have two invoices.")]
    assert said("ada", "messenger") == [
        ("user", "How many?"),
        ("user", "Hello?"),
        ("assistant", "You have two invoices."),
    ]
    assert turns(provider.requests[1])[1:] == [("user", "How many?\n\nHello?")]


def test_the_bot_talks_on_a_console() -> None:
    """Started by hand it takes lines, answers each chat by itself, and ends at the end of input."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "message_bot.py")],
        input="ada: Hi\nada\n\nada: Again: hi\n",
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    hint, *answers = sorted(done.stdout.splitlines())
    assert hint == "(write it as `chat: text`)"
    assert [line.rpartition('You say: "')[2] for line in answers] == [
        'Again: hi" You wrote once before; first: "Hi"',
        'Hi" This is our first turn.',
    ]


# ---- the web chat ----


@contextmanager
def serving_chat(*options: str, workers: int = 1) -> Generator[int]:
    """Run the web chat in a process of its own; give its port, and end it as a system would."""
    options = (*options, "--workers", str(workers))
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", "0", *options]
    with subprocess.Popen(
        [*command, "web_chat:app"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stderr is not None
        try:
            lines: list[str] = []
            for line in server.stderr:
                lines.append(line)
                listening = re.search(r"running on http://[\w.]+:(\d+)", "".join(lines))
                ready = sum("startup complete" in each for each in lines) == workers
                if listening and ready:
                    yield int(listening[1])
                    break
            else:
                pytest.fail("".join(lines))
        finally:
            server.send_signal(signal.SIGTERM)  # it waits for the requests that are under way
            _, errors = server.communicate(timeout=60)
    assert "Traceback" not in errors or "timeout graceful shutdown exceeded" in errors


def ask(
    port: int, user: str, text: str | None = None
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Say something to the web chat, or ask for what was said."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"X-User": user, "Content-Type": "application/json"}
    method, body = ("GET", None) if text is None else ("POST", json.dumps({"text": text}))
    connection.request(method, "/chat", body, headers)
    return connection, connection.getresponse()


def whole(port: int, user: str, text: str | None = None) -> tuple[int, str]:
    """Give the status and the whole body of an answer."""
    connection, response = ask(port, user, text)
    try:
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_each_user_of_the_web_chat_has_a_thread() -> None:
    """Replies come as events, each user's turns are his own, and a name is checked."""
    with serving_chat() as port:
        status, body = whole(port, "ada", "My invoice\nis wrong.")
        assert status == 200
        pieces = [json.loads(data) for data in re.findall(r"event: text\ndata: (.+)\n", body)]
        assert len(pieces) > 5
        assert body.endswith('event: end\ndata: ""\n\n')
        whole(port, "eve", "Hello?")

        assert json.loads(whole(port, "ada")[1]) == [
            {"role": "user", "text": "My invoice\nis wrong.", "interrupted": False},
            {"role": "assistant", "text": "".join(pieces), "interrupted": False},
        ]
        assert json.loads(whole(port, "eve")[1])[0]["text"] == "Hello?"
        assert whole(port, "../ada")[0] == 422
        assert whole(port, "ada", " ")[0] == 422
    assert len(said("ada", "web-chat")) == 2


def test_a_client_that_goes_away_stops_the_reply(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the user had seen is kept, and the provider may stop (R23, A01, A02)."""
    monkeypatch.setenv("TURNLOG_MODEL", GPT)
    gate = Gate()
    provider.script(Reply("It will ", gate, "never come."), Failure(500, "Oops."))
    with serving_chat() as port:
        connection, response = ask(port, "ada", "When?")
        assert response.readline() + response.readline() == b'event: text\ndata: "It will "\n'
        gate.reached.expect()
        response.close()
        connection.close()
        provider.disconnected.expect()

        status, body = whole(port, "eve", "And mine?")  # a provider that fails
        assert (status, body.partition("\n")[0]) == (200, "event: error")

    assert said("ada", "web-chat") == [("user", "When?"), ("assistant", "It will ")]
    assert is_interrupted("ada", "web-chat")
    assert said("eve", "web-chat") == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_web_chat_that_is_told_to_end_keeps_what_was_said(
    workers: int, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM while a reply streams, with a limit of a second: input and text are kept (A18)."""
    monkeypatch.setenv("TURNLOG_MODEL", GPT)
    gate = Gate()
    provider.script(Reply("It will ", gate, "never come."))
    with serving_chat("--timeout-graceful-shutdown", "1", workers=workers) as port:
        connection, response = ask(port, "ada", "When?")
        assert response.readline() + response.readline() == b'event: text\ndata: "It will "\n'
        gate.reached.expect()
    response.close()
    connection.close()
    assert said("ada", "web-chat") == [("user", "When?"), ("assistant", "It will ")]
    assert is_interrupted("ada", "web-chat")
