"""`turnlog chat`: a person talks with a model, and the thread remembers."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

import click

from turnlog.cli.edge import note, words
from turnlog.cli.memories import open_to_write, shown
from turnlog.cli.output import Output
from turnlog.cli.threadname import thread_argument
from turnlog.display import counted, cut_short, visible
from turnlog.errors import MissingExtra, MissingKey, RunFailed, UnknownModel, WritebackFailed

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator, Sequence

    from turnlog.agents.agent import Agent
    from turnlog.message import Message
    from turnlog.names import ThreadKey
    from turnlog.thread import MemoryThread

_NAME: Final = "turnlog chat"
_PROMPT: Final = "> "
_MOST_SHOWN: Final = 20
# So that readline takes UTF-8 as text whatever the locale is.
_EIGHT_BITS: Final = ("input-meta on", "output-meta on", "convert-meta off")
# For whoever names no model: the first of these whose provider's key is there.
_MODELS: Final = (
    "anthropic:claude-haiku-4-5",
    "openai-chat:gpt-5-mini",
    "google:gemini-2.5-flash",
)


@click.command
@thread_argument()
@click.option(
    "--model",
    metavar="MODEL",
    envvar="TURNLOG_MODEL",
    help="The model, as PROVIDER:NAME; or offline, which answers by rules, without a network, and "
    "is no language model.  [default: the environment's TURNLOG_MODEL, else a small model of the "
    "first provider whose key is there]",
)
@click.option(
    "--system",
    metavar="TEXT",
    default="",
    help="What the model is told to be. It is not kept in the thread.",
)
@click.pass_context
def chat(ctx: click.Context, thread: ThreadKey, model: str | None, *, system: str) -> None:
    """Talk with a model in a THREAD.

    The thread's turns are sent ahead, and what is said is appended. Ctrl-C stops a reply and keeps
    what was said of it; Ctrl-D leaves. From a pipe each line is an input, and only the replies are
    written.
    """
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - the shell closed it
        raise click.UsageError("there is no standard input")
    name, agent = _agent(model, system)
    with open_to_write(ctx) as memory:
        talk = _Talk(agent, memory.open(thread.id, thread.namespace))
        if talk.person:
            talk.begin(shown(thread), name)
        replied = [talk.reply(line) for line in talk.lines()]
    if not talk.person and not all(replied):
        ctx.exit(1)


# ---- the model ----


def _agent(model: str | None, system: str) -> tuple[str, Agent]:
    """Give the model's name, and the agent that asks it.

    Raises:
        UsageError: there is no such model, or no key for it.
        MissingExtra: the engine, or the provider's package, is not installed.
    """
    try:
        from turnlog.agents.agent import Agent  # noqa: PLC0415 - it takes half a second
        from turnlog.engine.blocking import run_blocking  # noqa: PLC0415
        from turnlog.engine.models import made  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra.of(_NAME, "agents") from error
    name = _of_a_key() if model is None else model
    try:
        # Now, and not when somebody has typed a line; the agent makes its own.
        run_blocking(lambda: made(name, _NAME), "made")
    except (UnknownModel, MissingKey) as error:
        raise click.UsageError(words(error)) from None
    return name, Agent(name=_NAME, system=system, model=name)


def _of_a_key() -> str:
    """Give the model of the first provider whose key is in the environment."""
    from turnlog.engine.models import KEY_VARIABLES  # noqa: PLC0415 - as above

    variables = {model: KEY_VARIABLES[model.partition(":")[0]] for model in _MODELS}
    for model in _MODELS:
        if any(map(os.environ.get, variables[model])):
            return model
    *names, last = (name for model in _MODELS for name in variables[model])
    raise click.UsageError(
        f"there is no model: neither --model nor TURNLOG_MODEL is given, and of the keys "
        f"{', '.join(names)} and {last} none is set; --model offline needs no key and no network, "
        "but answers by rules and is no language model"
    )


# ---- the talk ----


class _Talk:
    """A talk with an agent, in the lines of standard input.

    Attributes:
        person: whether it is somebody at a terminal.
    """

    def __init__(self, agent: Agent, thread: MemoryThread) -> None:
        self._agent = agent
        self._thread = thread
        self._out = Output()
        self.person: bool = self._out.person and sys.stdin.isatty()

    def begin(self, thread: str, model: str) -> None:
        """Show what was said last, and say who talks here."""
        from turnlog.engine.offline import OFFLINE  # noqa: PLC0415 - it has been imported

        turns = self._thread.messages()
        if len(turns) > _MOST_SHOWN:
            earlier = counted(len(turns) - _MOST_SHOWN, "earlier turn")
            self._aside(f"{earlier}: turnlog show {thread}\n")
        self._out.turns(turns.last(_MOST_SHOWN), as_json=False)
        self._out.flush()
        plainly = ", a rule-based responder and no language model" if model == OFFLINE else ""
        self._aside(f"{thread} with {model}{plainly}; Ctrl-C stops a reply, Ctrl-D leaves")

    def lines(self) -> Iterator[str]:
        """Give what is said to the agent, line by line; a blank line says nothing."""
        return self._typed() if self.person else _piped()

    def reply(self, line: str) -> bool:
        """Have the agent reply to a line; say whether it did.

        Raises:
            StoreError: the thread could not be read or written.
            KeyboardInterrupt: Ctrl-C, where there is no person to go on with.
            SystemExit: a signal that ends the program; what was said is written by then.
        """
        before = len(self._thread)
        try:
            self._stream(line)
        except RunFailed as error:
            note(f"Error: {error.what}; {error.hint}")
            self._aside(_kept(error.written))
            return False
        except (KeyboardInterrupt, SystemExit) as stop:
            if isinstance(stop.__cause__, WritebackFailed):
                raise stop.__cause__ from None
            self._aside(f"stopped; {_kept(self._thread.messages()[before:])}")
            if isinstance(stop, SystemExit) or not self.person:
                raise
            return False
        turns = self._thread.messages()[before:]
        if turns and (cut := cut_short(turns[-1])):
            self._aside(cut)
        return True

    def _stream(self, line: str) -> None:
        """Write the reply as it comes, and end its last line, whatever ends the reply."""
        last = "\n"
        try:
            with self._agent.stream(line, memory=self._thread) as pieces:
                for piece in pieces:
                    last = piece
                    sys.stdout.write(self._out.clean(piece))
                    self._out.flush()
        except KeyboardInterrupt:
            if self.person:
                last = "^C"  # the terminal shows it
            raise
        finally:
            if not last.endswith("\n"):
                self._out.line()
            self._out.flush()

    def _typed(self) -> Iterator[str]:
        """Read lines from a person, who can edit them where there is readline."""
        with suppress(ImportError):
            readline = importlib.import_module("readline")  # `input` uses it then
            for setting in _EIGHT_BITS:
                readline.parse_and_bind(f"set {setting}")
        cast("io.TextIOWrapper", sys.stdin).reconfigure(encoding="utf-8", errors="replace")
        stopped = False
        while True:
            try:
                line = input(_PROMPT)
            except EOFError:
                self._out.line()
                return
            except KeyboardInterrupt:
                self._out.line()
                if stopped:
                    raise
                stopped = True
                self._aside("Ctrl-C once more leaves")
                continue
            stopped = False
            if line.strip():
                yield line
                self._out.line()

    def _aside(self, text: str) -> None:
        """Say something beside the talk."""
        click.echo(self._out.styled(visible(text), "aside"), err=True)


def _piped() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise click.ClickException(f"standard input is not UTF-8 (line {number})") from None
        if text.strip():
            yield text.removesuffix("\n")


def _kept(turns: Sequence[Message]) -> str:
    """Say what the thread has of a reply that broke off."""
    if not turns:
        return "your message is not kept"
    if turns[-1].role == "assistant":
        return "the reply is kept up to here"
    return "your message is kept, without a reply"
