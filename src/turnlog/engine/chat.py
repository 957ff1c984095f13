"""Chat: a conversation sent to a model as it is, and its reply.

No thread takes part: what comes back is a text, and `Conversation.say` gives a new conversation.

Source: spec R18; Sema, llm/chat, llm/stream, conversation/say; semantics, chat and stream.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack

from turnlog.capability import Capability, require
from turnlog.conversation import Conversation
from turnlog.display import cut_short
from turnlog.engine.blocking import run_blocking
from turnlog.engine.exchange import Exchange
from turnlog.engine.history import SystemTurns, checked_system_turns, history_of, turns_in
from turnlog.engine.listener import Listener, OnText, OnToolCall
from turnlog.engine.loop import DEFAULT_MAX_TURNS, Asking, check_turns, converse
from turnlog.engine.models import DEFAULT_MAX_TOKENS, ReasoningEffort, made, settings_of
from turnlog.engine.options import refuse_unknown
from turnlog.engine.result import Result
from turnlog.engine.shield import opened
from turnlog.engine.tools import Toolbox
from turnlog.errors import CutReplyWarning, InvalidTurn, RunFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic_ai.models import Model


ToolMode: TypeAlias = Literal["auto", "none"]


class ChatOptions(TypedDict, total=False):
    """What `chat` and its relatives take beside the conversation.

    Attributes:
        model: as an Agent takes it; the conversation's own model unless given.
        system: what the model is told to be. It goes ahead of the conversation's own system
            messages.
        system_turns: "system" (the default) sends those behind it; "user" sends them as the user's
            text, in their place; "omit" leaves them out.
        max_tokens: how many tokens the reply may have; 4,096 unless given, None for the provider's
            own limit.
        temperature: the sampling temperature; the provider's own unless given.
        reasoning_effort: "none", "minimal", "low", "medium", "high" or "xhigh".
        tools: functions that the model may call, as an Agent takes them.
        tool_mode: "auto" (the default) to run the tools that the model asks for; "none" to only
            show them to it.
        max_tool_rounds: how many requests with tools are made at most; 10 unless given.
        on_text: gets each piece of text as it comes, as in a run.
        on_tool_call: gets a `ToolEvent` when a tool starts and when it ends, as in a run.
        timeout: how long a reply may take, in seconds; 600 s, by the engine, unless given.
    """

    model: Model | str | None
    system: str
    system_turns: SystemTurns
    max_tokens: int | None
    temperature: float | None
    reasoning_effort: ReasoningEffort | None
    tools: Sequence[Callable[..., Any]]
    tool_mode: ToolMode
    max_tool_rounds: int
    on_text: OnText | None
    on_tool_call: OnToolCall | None
    timeout: float | None


def chat(conversation: Conversation, **options: Unpack[ChatOptions]) -> str:
    """Send a conversation to a model; give its reply. As `achat`, for plain code.

    Raises:
        RunningLoop: it is called where an event loop runs: await `achat` there.

    Blocks until the reply is there.
    """
    return run_blocking(lambda: achat(conversation, **options), "achat")


async def achat(conversation: Conversation, **options: Unpack[ChatOptions]) -> str:
    """Send a conversation to a model; give its reply.

    Args:
        conversation: what was said, such as `mem.messages()`. It ends with what the model is to
            answer; where it ends with an assistant message, the model goes on from that.
        options: those of `ChatOptions`.

    Returns:
        The reply's text; "" for an empty one. The conversation is as it was.

    Raises:
        InvalidTurn: nothing in the conversation can be sent, or an option is no good.
        RunFailed: there is no reply, or it has no text since it reached the limit of tokens or
            was only thought.
        UnknownModel, MissingKey, MissingExtra: the model cannot be asked.
        CapabilityDenied: the sandbox took LLM away.

    A reply that was cut short is given with a CutReplyWarning. Writes nothing anywhere. Source:
    Sema, llm/chat.
    """
    result = await answer(conversation, options)
    cut = cut_short(result.conversation[-1])
    if cut:
        message = f"conversation: {cut}; give a greater max_tokens, or have the model go on"
        warnings.warn(CutReplyWarning(message), stacklevel=2)
    return result.response


async def answer(
    conversation: Conversation, options: ChatOptions, give: OnText | None = None
) -> Result[str]:
    """Send a conversation to a model; give the result, whose conversation has the reply.

    Args:
        conversation: what was said.
        options: those of `ChatOptions`.
        give: gets each piece of text too, after the options' `on_text`.

    Raises as `achat` does.
    """
    asking = await _asking(conversation, options)
    system_turns = checked_system_turns(options.get("system_turns", "system"), asking.subject)
    history = history_of(conversation, system_turns)
    if not history:
        raise InvalidTurn(
            asking.subject, "it holds no text to send to a model", "add what the user says"
        )
    exchange = Exchange(history)
    exchange.system = options.get("system", "")
    on_text = [options.get("on_text"), give]
    try:
        async with opened(asking.model):
            await converse(exchange, asking, Listener(on_text, options.get("on_tool_call")))
    except RunFailed as error:
        error.messages = tuple(exchange.messages)
        error.conversation = conversation + turns_in(exchange.spoken)
        error.usage = exchange.usage
        raise
    response = exchange.response
    return Result(
        response=response,
        output=response,
        messages=tuple(exchange.messages),
        conversation=conversation + turns_in(exchange.spoken),
        usage=exchange.usage,
    )


async def _asking(conversation: Conversation, options: ChatOptions) -> Asking:
    """Give how the model is asked."""
    subject = "conversation"
    if not isinstance(conversation, Conversation):  # pyright: ignore[reportUnnecessaryIsInstance]
        kind = type(conversation).__name__
        raise InvalidTurn("chat", f"it was given a {kind}", "give a Conversation: mem.messages()")
    refuse_unknown(options, ChatOptions, "a chat")
    require(Capability.LLM, "llm/chat", subject)
    mode = options.get("tool_mode", "auto")
    if mode not in {"auto", "none"}:
        raise InvalidTurn(subject, f"tool_mode is {mode!r}", "use 'auto' or 'none'")
    return Asking(
        subject=subject,
        model=await made(options.get("model") or conversation.model, subject),
        toolbox=Toolbox(options.get("tools", ())),
        settings=settings_of(
            max_tokens=options.get("max_tokens", DEFAULT_MAX_TOKENS),
            reasoning_effort=options.get("reasoning_effort"),
            temperature=options.get("temperature"),
            timeout=options.get("timeout"),
            subject=subject,
        ),
        max_turns=check_turns(
            options.get("max_tool_rounds", DEFAULT_MAX_TURNS), "max_tool_rounds", subject
        ),
        runs_tools=mode == "auto",
    )


# ---- saying; what the methods of a conversation call ----


async def said(conversation: Conversation, content: str, options: ChatOptions) -> Conversation:
    """Give the conversation with what the user says and the model's reply."""
    _check_said(content)
    return (await answer(conversation.add(content), options)).conversation


async def said_as(
    conversation: Conversation, system: str, content: str, options: ChatOptions
) -> Conversation:
    """Give the conversation with both, where the model has another system text for this once."""
    _check_said(content)
    asked = conversation.filter(lambda message: message.role != "system").add(content)
    replied = (await answer(asked, {**options, "system": system})).conversation
    return conversation + replied[len(asked) - 1 :]


def _check_said(content: object) -> None:
    if isinstance(content, str) and not content.strip():
        raise InvalidTurn("conversation", "what is said is empty", "give what the user says")
