"""A conversation through the providers' own SDKs, over HTTP: it is taken as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from localserver import Provider, serving

from turnlog import Conversation, Memory, Message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    """Give a provider on this machine."""
    with serving("Hello.") as provider:
        yield provider


@pytest.fixture(scope="module")
def openai_client(provider: Provider) -> Iterator[openai.OpenAI]:
    """Give OpenAI's client."""
    with openai.OpenAI(api_key="none", base_url=f"{provider.url}/v1", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def anthropic_client(provider: Provider) -> Iterator[anthropic.Anthropic]:
    """Give Anthropic's client."""
    with anthropic.Anthropic(api_key="none", base_url=provider.url, max_retries=0) as client:
        yield client


def ask_openai(client: openai.OpenAI, conv: Conversation) -> str | None:
    """Send a conversation to OpenAI's chat completions; give the reply."""
    answer = client.chat.completions.create(model="m", messages=conv.to_openai())
    return answer.choices[0].message.content


def ask_anthropic(client: anthropic.Anthropic, conv: Conversation) -> str:
    """Send a conversation to Anthropic's Messages; give the reply."""
    create: Any = client.messages.create  # its overloads do not take what is unpacked
    answer = create(model="m", max_tokens=9, **conv.to_anthropic())
    return answer.content[0].text


def conversation(*turns: tuple[str, str]) -> Conversation:
    """Make a conversation of roles and texts."""
    roles: dict[str, Any] = {"u": "user", "a": "assistant", "s": "system"}
    return Conversation(Message(roles[role], text) for role, text in turns)


def sent(provider: Provider) -> tuple[str | None, list[tuple[str, str]]]:
    """Give the system text of the last request, and its messages in short."""
    body = provider.requests[-1]
    return body.get("system"), [(m["role"][0], m["content"]) for m in body["messages"]]


PLAIN = conversation(("s", "be brief"), ("u", "q"), ("a", "r"), ("u", "q2"))


def test_openai_takes_a_conversation(provider: Provider, openai_client: openai.OpenAI) -> None:
    """OpenAI gets each message with its role and text, in its place, and nothing else."""
    assert ask_openai(openai_client, PLAIN) == "Hello."
    assert provider.requests[-1]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "r"},
        {"role": "user", "content": "q2"},
    ]


def test_anthropic_takes_a_conversation(
    provider: Provider, anthropic_client: anthropic.Anthropic
) -> None:
    """Anthropic gets the system message by itself, and the rest as messages."""
    assert ask_anthropic(anthropic_client, PLAIN) == "Hello."
    assert provider.requests[-1]["system"] == "be brief"
    assert provider.requests[-1]["messages"] == [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "r"},
        {"role": "user", "content": "q2"},
    ]


@pytest.mark.parametrize(
    ("conv", "system", "messages"),
    [
        pytest.param(
            conversation(("u", "1"), ("u", "2"), ("a", "3"), ("a", "4"), ("u", "5")),
            None,
            [("u", "1\n\n2"), ("a", "3\n\n4"), ("u", "5")],
            id="roles in a row",
        ),
        pytest.param(
            conversation(("u", "1"), ("s", "be kind"), ("u", "2"), ("s", "be brief"), ("a", "3")),
            "be kind\n\nbe brief",
            [("u", "1\n\n2"), ("a", "3")],
            id="system in the middle",
        ),
        pytest.param(
            conversation(("u", "1"), ("a", " \n\t\u00a0"), ("u", ""), ("u", "2"), ("s", "  ")),
            None,
            [("u", "1\n\n2")],
            id="white space alone",
        ),
        pytest.param(
            conversation(("u", " 1 "), ("a", " 2 \n\u00a0")),
            None,
            [("u", " 1 "), ("a", " 2")],
            id="white space at the end",
        ),
        pytest.param(
            conversation(("u", "1"), ("a", "2 \n"), ("u", "3 \n")),
            None,
            [("u", "1"), ("a", "2 \n"), ("u", "3 \n")],
            id="white space in between",
        ),
        pytest.param(
            conversation(("u", "1"), ("a", "2"), ("a", "3\n"), ("a", "\n")),
            None,
            [("u", "1"), ("a", "2\n\n3")],
            id="white space at the end of several",
        ),
        pytest.param(
            conversation(("s", "\ud800s"), ("u", "\udfffu\ud83e"), ("a", "\ud800")),
            "\ufffds",
            [("u", "\ufffdu\ufffd"), ("a", "\ufffd")],
            id="half characters",
        ),
    ],
)
def test_anthropic_gets_what_it_takes(
    provider: Provider,
    anthropic_client: anthropic.Anthropic,
    conv: Conversation,
    system: str | None,
    messages: list[tuple[str, str]],
) -> None:
    """What Anthropic would refuse is merged, left out or mended, and nothing else (C13)."""
    assert ask_anthropic(anthropic_client, conv) == "Hello."
    assert sent(provider) == (system, messages)


@pytest.mark.parametrize(
    ("turns", "messages"),
    [
        ([("u", "1"), ("u", "2"), ("a", "3"), ("a", "4")], [("u", "1\n\n2"), ("a", "3\n\n4")]),
        ([("u", "1"), ("a", ""), ("a", "\n"), ("u", "2")], [("u", "1\n\n2")]),
        ([("u", "1"), ("s", "2"), ("u", "3"), ("s", "4")], [("s", "2\n\n4"), ("u", "1\n\n3")]),
        ([("s", "1"), ("s", " "), ("u", "2")], [("s", "1"), ("u", "2")]),
        ([("s", "1")], [("s", "1")]),
    ],
)
def test_openai_gets_messages_of_the_user_and_the_assistant_in_turn(
    provider: Provider,
    openai_client: openai.OpenAI,
    turns: list[tuple[str, str]],
    messages: list[tuple[str, str]],
) -> None:
    """Turns of one role in a row are one message, blank ones none, system ones first (A12, A17)."""
    assert ask_openai(openai_client, conversation(*turns)) == "Hello."
    assert sent(provider)[1] == messages


def test_openai_gets_half_characters_mended(
    provider: Provider, openai_client: openai.OpenAI
) -> None:
    """OpenAI gets U+FFFD for each half of a character, and all the other characters (C13)."""
    text = "a\ud800b\udfff \U0001f9f5 \0\u2028"
    conv = conversation(("s", text), ("u", text), ("a", " "), ("u", ""))
    assert ask_openai(openai_client, conv) == "Hello."
    mended = "a\ufffdb\ufffd \U0001f9f5 \0\u2028"
    assert sent(provider)[1] == [("s", mended), ("u", mended)]


def test_the_same_goes_out_before_and_after_it_was_stored(root: Path) -> None:
    """A conversation goes out as the same texts, taken from memory or from a thread (C13)."""
    conv = conversation(("u", "\ud83e\uddf5"), ("a", "\ud83e"))
    with Memory(root) as memory:
        memory.open("t").extend(conv)
    with Memory(root) as memory:
        stored = memory.open("t").messages()
    assert stored.to_openai() == conv.to_openai()
    assert stored.to_anthropic() == conv.to_anthropic()


def test_a_thread_and_its_reply(
    root: Path, openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic
) -> None:
    """Turns from a thread's file go to either provider, and the replies go back into the thread."""
    with Memory(root) as memory:
        memory.open("t").append("rule", role="system", meta={"a": 1}).append("q\ud800", key="k")
    with Memory(root) as memory:
        mem = memory.open("t")
        mem.append(ask_openai(openai_client, mem.messages()) or "", role="assistant")
        mem.append("and?")
        mem.append(ask_anthropic(anthropic_client, mem.messages()), role="assistant")
        conv = mem.messages()
    assert [m.content for m in conv] == ["rule", "q\ud800", "Hello.", "and?", "Hello."]
    assert conv.to_anthropic() == {
        "system": "rule",
        "messages": [
            {"role": "user", "content": "q\ufffd"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "and?"},
            {"role": "assistant", "content": "Hello."},
        ],
    }


texts = st.text(st.sampled_from("ab \n\t\u00a0\u2028\x1c\0\ud800\udfff\ufeff\u200b"), max_size=4)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from("uas"), texts), max_size=6))
def test_whatever_a_conversation_holds_is_taken(
    openai_client: openai.OpenAI,
    anthropic_client: anthropic.Anthropic,
    turns: list[tuple[str, str]],
) -> None:
    """With a word of the user's in it, any conversation is taken by both providers."""
    conv = conversation(("u", "q"), *turns)
    assert ask_openai(openai_client, conv) == "Hello."
    assert ask_anthropic(anthropic_client, conv) == "Hello."


# ---- the provider itself: it can refuse ----


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"messages": []}, "at least one"),
        ({"messages": [{"role": "system", "content": "s"}]}, "Input should be"),
        ({"messages": [{"role": "user", "content": ""}]}, "non-empty"),
        ({"messages": [{"role": "user", "content": " \n"}]}, "non-whitespace"),
        ({"messages": [{"role": "user", "content": "q"}], "system": " "}, "system"),
        ({"messages": [{"role": "assistant", "content": "a "}]}, "trailing whitespace"),
    ],
)
def test_the_provider_refuses_as_anthropic_does(
    anthropic_client: anthropic.Anthropic, request_: Any, why: str
) -> None:
    """Without our mending Anthropic's client gets an error: the tests above can fail."""
    with pytest.raises(anthropic.BadRequestError, match=why):
        anthropic_client.messages.create(model="m", max_tokens=9, **request_)


@pytest.mark.parametrize(
    "messages", [[], [{"role": "tool", "content": "x"}], [{"role": "user", "content": None}]]
)
def test_the_provider_refuses_as_openai_does(openai_client: openai.OpenAI, messages: Any) -> None:
    """Without our mending OpenAI's client gets an error: the tests above can fail."""
    with pytest.raises(openai.BadRequestError):
        openai_client.chat.completions.create(model="m", messages=messages)


def test_half_characters_are_taken_by_nobody(
    openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic
) -> None:
    """Half a character fails in the client already, or at the provider: it must be mended."""
    message: Any = {"role": "user", "content": "\ud800"}
    with pytest.raises((openai.BadRequestError, UnicodeEncodeError)):
        openai_client.chat.completions.create(model="m", messages=[message])
    with pytest.raises((anthropic.BadRequestError, UnicodeEncodeError)):
        anthropic_client.messages.create(model="m", max_tokens=9, messages=[message])
