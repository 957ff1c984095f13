"""Models: which one a name means, what it is told beside the turns, and what may be missing."""

from __future__ import annotations

import asyncio
import importlib.metadata
import re
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pytest
from localserver import MODELS, Provider, environment, serving, turns
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import infer_model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from without import evaluated

import turnlog
from turnlog import (
    Agent,
    Conversation,
    InvalidTurn,
    Memory,
    MissingKey,
    TurnlogError,
    UnknownModel,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

CLAUDE, GPT, GEMINI = "claude-haiku-4-5-20251001", "gpt-5-mini", "gemini-2.5-flash"
MESSAGES, COMPLETIONS = "/v1/messages", "/v1/chat/completions"
ASKED: Final = ("user", "Is it paid?")


def by_run(model: Any) -> str:
    """Ask a model by an agent's run."""
    return Agent(name="Helper", model=model).run(ASKED[1]).response


def by_stream(model: Any) -> str:
    """Ask a model by an agent's stream."""
    return "".join(Agent(name="Helper", model=model).stream(ASKED[1]))


def by_chat(model: Any) -> str:
    """Ask a model by a conversation."""
    return turnlog.chat(Conversation().add(ASKED[1]), model=model)


by_each_way = pytest.mark.parametrize("ask", [by_run, by_stream, by_chat])


# ---- names ----


@by_each_way
@pytest.mark.parametrize(
    ("name", "path", "sent"),
    [
        (f"anthropic:{CLAUDE}", MESSAGES, CLAUDE),
        (CLAUDE, MESSAGES, CLAUDE),
        ("claude-opus-4-6", MESSAGES, "claude-opus-4-6"),
        (f"openai-chat:{GPT}", COMPLETIONS, GPT),
        (GPT, COMPLETIONS, GPT),
        ("gpt-4o", COMPLETIONS, "gpt-4o"),
        ("chatgpt-4o-latest", COMPLETIONS, "chatgpt-4o-latest"),
        ("o3", COMPLETIONS, "o3"),
    ],
)
def test_a_name_means_its_providers_model(
    provider: Provider, ask: Callable[[Any], str], name: str, path: str, sent: str
) -> None:
    """`provider:model` and the bare names of Sema's documents ask that model at its provider."""
    assert ask(name) == "Hello."
    [request] = provider.calls
    assert (request.path, request.body["model"]) == (path, sent)
    assert turns(request.body) == [ASKED]


def test_a_ready_model_is_taken_as_it_is(provider: Provider, wire: str, model: str) -> None:
    """A model object that the user made asks its provider, in a loop and again in another."""
    ready = infer_model(model)
    agent = Agent(model=ready)

    async def ask_twice() -> list[str]:
        async with ready:
            return [(await agent.arun("Again.")).response for _ in range(2)]

    assert asyncio.run(ask_twice()) == asyncio.run(ask_twice()) == ["Hello.", "Hello."]
    path = {"anthropic": MESSAGES, "openai": COMPLETIONS}[wire]
    assert [request.path for request in provider.calls] == [path] * 4


def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Give a reply."""
    del messages, info
    return ModelResponse([TextPart("I am a function.")])


async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    """Give a reply in pieces."""
    del messages, info
    for piece in ("I am ", "a function."):
        yield piece


@by_each_way
def test_the_engines_models_for_tests_are_taken_too(ask: Callable[[Any], str]) -> None:
    """A FunctionModel and a TestModel reply without any network, also by the engine's own name."""
    assert ask(FunctionModel(reply, stream_function=stream)) == "I am a function."
    assert ask(TestModel(custom_output_text="Tested.")) == "Tested."
    assert ask("test") == "success (no tool calls)"


@by_each_way
def test_the_offline_model_needs_nothing_and_says_what_it_is(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Any], str]
) -> None:
    """`offline` replies without a key, and no one can take it for a language model."""
    without_keys(monkeypatch)
    reply = ask("offline")
    assert "offline" in reply
    assert "no language model" in reply
    assert ASKED[1] in reply


# ---- no such model ----


@by_each_way
@pytest.mark.parametrize(
    "name", ["nobody:model", "llama-3", "gpt", "Claude-haiku-4-5", ":x", "OFFLINE", " offline"]
)
def test_an_unknown_name_is_an_error_that_says_how_to_write_one(
    provider: Provider, ask: Callable[[Any], str], name: str
) -> None:
    """The error names who asks and the model, and shows how to write a name; nobody was asked."""
    with pytest.raises(UnknownModel) as caught:
        ask(name)
    assert "Helper" in caught.value.subject or caught.value.subject == "conversation"
    assert repr(name) in caught.value.what
    assert "provider:model" in caught.value.hint
    assert "'anthropic:" in caught.value.hint
    assert provider.calls == []


@by_each_way
@pytest.mark.parametrize(
    ("given", "words"),
    [("", "no model"), (None, "no model"), (5, "int"), (object(), "object")],
)
def test_what_is_no_model_is_an_error(ask: Callable[[Any], str], given: object, words: str) -> None:
    """The error says what was given, and how to give a model."""
    with pytest.raises(UnknownModel) as caught:
        ask(given)
    assert words in caught.value.what
    assert "no model" in caught.value.what
    assert "'anthropic:" in caught.value.hint


def test_a_model_is_looked_up_at_the_first_run(memory: Memory) -> None:
    """An agent of an unknown model can be made; its run fails, and its thread stays as it was."""
    thread = memory.open("t")
    agent = Agent(model="nobody:model")
    with pytest.raises(UnknownModel):
        agent.run("Is it paid?", memory=thread)
    assert list(thread.messages()) == []


# ---- keys ----

VARIABLES: Final = {
    CLAUDE: ["ANTHROPIC_API_KEY"],
    f"anthropic:{CLAUDE}": ["ANTHROPIC_API_KEY"],
    GPT: ["OPENAI_API_KEY"],
    f"openai-chat:{GPT}": ["OPENAI_API_KEY"],
    f"openai:{GPT}": ["OPENAI_API_KEY"],
    GEMINI: ["GOOGLE_API_KEY", "GEMINI_API_KEY"],
    f"google:{GEMINI}": ["GOOGLE_API_KEY", "GEMINI_API_KEY"],
    "openai-responses:gpt-5-mini": ["OPENAI_API_KEY"],
    "deepseek:deepseek-chat": ["DEEPSEEK_API_KEY"],
}


def without_keys(monkeypatch: pytest.MonkeyPatch, value: str | None = None) -> None:
    """Take the keys of all providers out of the environment, or give them another value."""
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)  # a server of one's own may need no key
    for name in chain.from_iterable(VARIABLES.values()):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)


@pytest.mark.parametrize("value", [None, ""], ids=["unset", "empty"])
@pytest.mark.parametrize("name", VARIABLES)
def test_a_missing_key_is_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str | None
) -> None:
    """The error names who asks, the model and each variable that its key is looked for in."""
    without_keys(monkeypatch, value)
    with pytest.raises(MissingKey) as caught:
        by_run(name)
    assert "Helper" in caught.value.subject
    assert repr(name) in caught.value.what
    assert "no key" in caught.value.what
    for variable in VARIABLES[name]:
        assert variable in caught.value.hint


@pytest.mark.parametrize("name", [CLAUDE, GPT, GEMINI])
@pytest.mark.parametrize("ask", [by_stream, by_chat])
def test_a_stream_and_a_chat_tell_of_a_missing_key_too(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Any], str], name: str
) -> None:
    """Whichever way a model is asked, the error names the variables of its key."""
    without_keys(monkeypatch)
    with pytest.raises(MissingKey, match=" or ".join(VARIABLES[name])):
        ask(name)


def test_a_key_that_is_set_later_is_found(
    monkeypatch: pytest.MonkeyPatch, memory: Memory, wire: str
) -> None:
    """Once the variable is set the same agent runs, and the failed run has left no turn."""
    thread = memory.open("t")
    agent = Agent(model=MODELS[wire])
    with serving() as provider:
        without_keys(monkeypatch)
        with pytest.raises(MissingKey):
            agent.run("Is it paid?", memory=thread)
        for name, value in environment(provider).items():
            monkeypatch.setenv(name, value)
        assert agent.run("Is it paid?", memory=thread).response == "Hello."
        assert len(provider.calls) == 1
    assert [message.content for message in thread.messages()] == ["Is it paid?", "Hello."]


# ---- packages ----


def extra_in(text: str) -> tuple[str, str]:
    """Give the distribution and the extra that a text says how to install."""
    found = re.search(r"""pip install ['\"]([\w-]+)\[([\w-]+)\]['\"]""", text)
    assert found, text
    return found[1], found[2]


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("anthropic", CLAUDE),
        ("anthropic", f"anthropic:{CLAUDE}"),
        ("openai", GPT),
        ("openai", f"openai-chat:{GPT}"),
        ("openai", f"openai:{GPT}"),
        ("google.genai", GEMINI),
        ("groq", "groq:llama-3.3-70b-versatile"),
    ],
)
def test_a_missing_package_of_a_provider(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, package: str, name: str
) -> None:
    """The error names the model and gives the line that installs its package; others work."""
    monkeypatch.setenv("GOOGLE_API_KEY", "none")
    monkeypatch.setenv("GROQ_API_KEY", "none")
    other = GPT if package == "anthropic" else CLAUDE
    run, chat, works = evaluated(
        f"turnlog.Agent(name='Helper', model={name!r}).run('Is it paid?')",
        f"turnlog.chat(turnlog.Conversation().add('Is it paid?'), model={name!r})",
        f"turnlog.Agent(model={other!r}).run('Is it paid?').response",
        without=package,
    )
    for came in (run, chat):
        assert came.error == "MissingExtra"
        assert repr(name) in came.text
        distribution, extra = extra_in(came.text)
        offered = importlib.metadata.metadata(distribution).get_all("Provides-Extra") or []
        assert extra in offered
    assert "Helper" in run.text
    assert works == ("", "Hello.")
    assert len(provider.calls) == 1


OF_AGENTS: Final = [
    "turnlog.Agent",
    "turnlog.tool",
    "turnlog.chat",
    "turnlog.achat",
    "turnlog.run",
    "turnlog.arun",
    "turnlog.stream",
    "turnlog.astream",
    "turnlog.Tool",
]


def test_without_the_extra_the_errors_say_how_to_install_it() -> None:
    """Each name of the agents', and each saying, is an ImportError with the line for pip."""
    says = [
        "turnlog.Conversation().say('Hi.', model='offline')",
        "turnlog.Conversation().say_as('Be brief.', 'Hi.', model='offline')",
        "__import__('asyncio').run(turnlog.Conversation().asay('Hi.', model='offline'))",
        "__import__('asyncio').run(turnlog.Conversation().asay_as('Be.', 'Hi.', model='offline'))",
        "exec('from turnlog import Agent')",
    ]
    came = evaluated(*OF_AGENTS, *says, without="pydantic_ai")
    assert [each.error for each in came] == ["MissingExtra"] * len(came)
    assert {extra_in(each.text) for each in came} == {("turnlog", "agents")}
    for name, each in zip(OF_AGENTS, came, strict=False):
        assert each.text.startswith(f"{name}: ")


def test_without_the_extra_everything_else_works(root: object) -> None:
    """Threads, conversations and the names that `dir` lists are there without the engine."""
    opened = f"turnlog.Memory({str(root)!r}).open('t')"
    appended, length, listed, added = evaluated(
        f"{opened}.append('Hi.')",
        f"len({opened}.messages())",
        "{*turnlog.__all__} - {*dir(turnlog)}",
        "turnlog.Conversation().add('Hi.').stats.messages",
        without="pydantic_ai",
    )
    assert appended.error == listed.error == ""
    assert length == added == ("", "1")
    assert listed.text == "set()"


HEAVY: Final = ("pydantic_ai", "pydantic", "anyio", "anthropic", "openai")
LOADED: Final = f"[name for name in {HEAVY!r} if name in sys.modules]"


def test_importing_turnlog_does_not_import_the_engine() -> None:
    """`import turnlog`, `dir` and threads load no engine; an agent does, but no provider yet."""
    first, _, _, later, *last = evaluated(
        LOADED,
        "dir(turnlog)",
        "turnlog.Memory('memory://').open('t').append('Hi.')",
        LOADED,
        "turnlog.Agent(model='anthropic:claude-haiku-4-5')",
        LOADED,
    )
    assert first == later == ("", "[]")
    assert last[0].error == ""
    assert last[1] == ("", "['pydantic_ai', 'pydantic', 'anyio']")


def test_every_name_is_listed_and_an_unknown_one_is_an_attribute_error() -> None:
    """`dir` has all of `__all__`; a name that there is not is an error as of any module."""
    assert {*turnlog.__all__} <= {*dir(turnlog)}
    assert not hasattr(turnlog, "agnet")
    with pytest.raises(AttributeError, match="'turnlog' has no attribute 'agnet'"):
        getattr(turnlog, "agnet")  # noqa: B009 - a checker would know


@pytest.mark.parametrize(
    "before",
    [
        "turnlog.run",
        "turnlog.stream",
        "turnlog.Agent(model='offline').run('Hi.')",
        "turnlog.Conversation().say('Hi.', model='offline')",
        "turnlog.ChatOptions",
        "[getattr(turnlog, name) for name in turnlog.__all__]",
        "exec('from turnlog import *')",
    ],
)
def test_a_name_means_the_same_whatever_was_used_before(before: str) -> None:
    """`turnlog.chat` and the others are functions, also once their modules have been imported."""
    _, kinds, said = evaluated(
        before,
        "{type(getattr(turnlog, name)).__name__ for name in ('chat', 'achat', 'run', 'tool')}",
        "turnlog.chat(turnlog.Conversation().add('Hi.'), model='offline')",
    )
    assert kinds == ("", "{'function'}")
    assert said.error == ""
    assert "offline" in said.text


# ---- what a model is told beside the turns ----


def limit_in(body: dict[str, Any]) -> int | None:
    """Give the most tokens that a request lets the reply have, whichever provider it went to."""
    return body.get("max_tokens", body.get("max_completion_tokens"))


def told(provider: Provider, model: str, **options: Any) -> list[dict[str, Any]]:
    """Give the requests of a run and of a chat with some options."""
    Agent(model=model, **options).run(ASKED[1])
    turnlog.chat(Conversation().add(ASKED[1]), model=model, **options)
    return provider.requests[-2:]


def test_a_reply_may_have_so_many_tokens(provider: Provider, model: str) -> None:
    """4,096 unless given, and what `max_tokens=` says; None leaves it to the provider."""
    assert [limit_in(body) for body in told(provider, model)] == [4096, 4096]
    assert [limit_in(body) for body in told(provider, model, max_tokens=99)] == [99, 99]
    for body in told(provider, model, max_tokens=None):
        limit = limit_in(body)
        assert limit is None or limit > 4096


@pytest.mark.parametrize("name", [CLAUDE, "gpt-4o"])
def test_a_temperature_is_sent(provider: Provider, name: str) -> None:
    """`temperature=` goes out as it is, and is left to the provider unless given."""
    assert [body["temperature"] for body in told(provider, name, temperature=0.5)] == [0.5, 0.5]
    assert ["temperature" in body for body in told(provider, name)] == [False, False]


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh"])
def test_how_much_to_think_is_sent_to_anthropic(provider: Provider, effort: str) -> None:
    """Anthropic is given a budget to think, on top of the tokens that the reply may have."""
    for body in told(provider, CLAUDE, reasoning_effort=effort):
        assert body["thinking"]["type"] == "enabled"
        assert body["max_tokens"] == 4096 + body["thinking"]["budget_tokens"]


def test_more_effort_is_a_larger_budget(provider: Provider) -> None:
    """Each step of `reasoning_effort` gives Anthropic's model more to think than the one before."""
    efforts = ["minimal", "low", "medium", "high", "xhigh"]
    asked = [told(provider, CLAUDE, reasoning_effort=effort)[0] for effort in efforts]
    budgets = [body["thinking"]["budget_tokens"] for body in asked]
    assert budgets == sorted({*budgets})


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
def test_how_much_to_think_is_sent_as_a_word(provider: Provider, effort: str) -> None:
    """OpenAI, and Anthropic's newer models, are told the effort by its name."""
    for body in told(provider, GPT, reasoning_effort=effort):
        assert body["reasoning_effort"] == effort
        assert limit_in(body) == 4096
    for body in told(provider, "claude-opus-4-6", reasoning_effort=effort):
        assert body["output_config"] == {"effort": effort}
        assert limit_in(body) == 4096


def test_no_effort_is_no_thinking(provider: Provider) -> None:
    """With "none" no thinking is asked for; without the option nothing is said of it."""
    for body in told(provider, CLAUDE, reasoning_effort="none"):
        assert body.get("thinking", {"type": "disabled"}) == {"type": "disabled"}
    for body in told(provider, GPT, reasoning_effort="none"):
        assert body.get("reasoning_effort", "none") in {"none", "minimal"}
    for name in (CLAUDE, GPT):
        assert not {"thinking", "reasoning_effort"} & {*told(provider, name)[0]}


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"reasoning_effort": "lots"}, "use one of none, minimal, low, medium, high, xhigh"),
        ({"max_turns": 0}, "1 or more"),
        ({"max_turns": "3"}, "1 or more"),
    ],
)
def test_an_option_that_is_no_good_is_refused_when_the_agent_is_made(
    option: Any, words: str
) -> None:
    """The error names the agent, the option and what it may be."""
    with pytest.raises(InvalidTurn) as caught:
        Agent(name="Helper", model="offline", **option)
    [name] = option
    assert isinstance(caught.value, TurnlogError)
    assert "Helper" in caught.value.subject
    assert name in caught.value.what
    assert words in caught.value.hint
