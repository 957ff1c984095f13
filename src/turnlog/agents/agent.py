"""Agent: a model with a name, a system text and tools, run with or without a memory.

Source: spec R19 to R24; Sema, defagent and agent/run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Unpack

from turnlog.agents.perform import RunOptions, perform
from turnlog.agents.speakers import LoopSpeaker
from turnlog.engine.blocking import run_blocking
from turnlog.engine.loop import DEFAULT_MAX_TURNS, Asking, check_turns
from turnlog.engine.models import DEFAULT_MAX_TOKENS, ModelChoice, ReasoningEffort, settings_of
from turnlog.engine.stream import BlockingTextStream, TextStream
from turnlog.engine.tools import Toolbox
from turnlog.errors import InvalidTurn

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from pydantic_ai.models import Model

    from turnlog.engine.listener import OnText
    from turnlog.engine.result import Result


class Agent:
    """A model that runs with tools, and remembers what a thread holds.

    Args:
        name: its name, for people.
        system: what the model is told to be; nothing unless given. It is sent with each run and
            never written to a thread.
        model: `provider:model` as pydantic-ai takes it, a bare name such as
            "claude-haiku-4-5-20251001" or "gpt-5-mini", a ready model of pydantic-ai's, or
            "offline", the built-in that needs no network.
        tools: typed functions with docstrings, sync or async, or what `turnlog.tool` makes of them.
        max_turns: how many requests to the model a run makes at most; the text of the last one is
            then the reply.
        reasoning_effort: how much the model is to think: "none", "minimal", "low", "medium",
            "high" or "xhigh"; the provider's own default unless given.
        max_tokens: how many tokens a reply may have; None for the provider's own limit.
        temperature: the sampling temperature; the provider's own unless given.

    Raises:
        InvalidTurn: an argument is no good.
        TurnlogError: a tool is no function, or its types give no schema.

    It holds nothing of a run and can run any number of times at once. The model is looked up, and
    its key looked for, at the first run. Touches no disk. Source: spec R19; Sema, defagent.
    """

    def __init__(  # noqa: PLR0913 - what an agent is made of
        self,
        *,
        name: str = "agent",
        system: str = "",
        model: Model | str,
        tools: Sequence[Callable[..., Any]] = (),
        max_turns: int = DEFAULT_MAX_TURNS,
        reasoning_effort: ReasoningEffort | None = None,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        temperature: float | None = None,
    ) -> None:
        """Make an agent; nothing is asked of a model yet."""
        subject = f"agent {name!r}"
        if not isinstance(system, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidTurn(subject, f"system is of type {type(system).__name__}", "give a str")
        self.name: Final = name
        self.system: Final = system
        self.model: Final = model
        self._subject = subject
        self._choice = ModelChoice(model, subject)
        self._toolbox = Toolbox(tools)
        self._max_turns = check_turns(max_turns, "max_turns", subject)
        self._settings = settings_of(
            max_tokens=max_tokens,
            reasoning_effort=reasoning_effort,
            temperature=temperature,
            subject=subject,
        )

    def __repr__(self) -> str:
        """Name it and its model."""
        return f"<Agent {self.name!r} on {self.model!r}>"

    def run(self, content: str, **options: Unpack[RunOptions]) -> Result[str]:
        """Run the agent on an input. As `arun`, for plain code.

        Raises:
            RunningLoop: it is called where an event loop runs: await `arun` there.
            KeyboardInterrupt: Ctrl-C; what was said by then is written back first.

        Blocks until the run has ended and its turns are on disk.
        """
        return run_blocking(lambda: self.arun(content, **options), "arun")

    async def arun(self, content: str, **options: Unpack[RunOptions]) -> Result[str]:
        """Run the agent on an input.

        Args:
            content: what the user says.
            options: `memory`, the thread that the run starts from and writes its turns back to,
                and the others of `RunOptions`.

        Returns:
            The result, when the turns are on disk.

        Raises:
            RunFailed: there is no reply. What the assistant had said is written back with its
                input; where it had said nothing, nothing is written.
            WritebackFailed: what was said could not be written back.
            UnknownModel, MissingKey, MissingExtra: the model cannot be asked.
            InvalidTurn: the input or an option is no good.
            CapabilityDenied, ReadOnly, Closed: the thread would take no turns, or the sandbox took
                LLM away. Nothing was asked of a model.

        Cancelled, it writes back the input and what the assistant had said, and then goes on with
        the cancellation. The event loop never waits for the disk. Source: spec R19 to R24.
        """
        return await self.performing(content, options)(None)

    def stream(self, content: str, **options: Unpack[RunOptions]) -> BlockingTextStream[str]:
        """Run the agent on an input; give an iterator of the reply's text. As `astream`."""
        return BlockingTextStream(self.performing(content, options))

    def astream(self, content: str, **options: Unpack[RunOptions]) -> TextStream[str]:
        """Run the agent on an input; give an async iterator of the reply's text.

        Takes and raises what `arun` does. The run begins with the first piece that is asked for;
        `result` of the iterator is there when it has ended.
        """
        return TextStream(self.performing(content, options))

    def performing(
        self, content: str, options: RunOptions
    ) -> Callable[[OnText | None], Coroutine[Any, Any, Result[str]]]:
        """Give what runs the agent, and gives each piece of text to a function; for `turnlog.run`.

        Raises:
            InvalidTurn: the input is no good.
        """
        checked = self._checked(content)
        speaker = LoopSpeaker(self._subject, self.system, self._asking)
        return lambda give: perform(speaker, checked, options, give)

    async def _asking(self, subject: str) -> Asking:
        return Asking(
            subject,
            await self._choice.here(),
            self._toolbox,
            self._settings,
            self._max_turns,
        )

    def _checked(self, content: object) -> str:
        if not isinstance(content, str):
            kind = type(content).__name__
            raise InvalidTurn(self._subject, f"the input is of type {kind}", "give a str")
        if not content.strip():
            raise InvalidTurn(self._subject, "the input is empty", "give what the user says")
        return content
