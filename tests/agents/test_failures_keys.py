"""Keys with a character that no header may have, such as the newline at the end of their file."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING, Any

import pydantic_ai
import pytest
from failing import helper
from localserver import MODELS, environment
from openai import AsyncOpenAI
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import turnlog
from turnlog import Conversation, MissingKey, ModelFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from localserver import Provider

SECRET = "hunter2"
KEYS = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}


def told(error: BaseException) -> str:
    """Return all that an error and what led to it say, in each of its forms."""
    said = [*traceback.format_exception(error)]
    left: list[BaseException | None] = [error]
    seen: list[BaseException] = []
    while left:
        each = left.pop()
        if each is not None and each not in seen:
            seen.append(each)
            said += [repr(each), str(each), repr(vars(each))]
            left += [each.__cause__, each.__context__]
    return "\n".join(said)


def chat(model: Any) -> object:
    """Send a conversation."""
    return turnlog.chat(Conversation().add("Hello"), model=model)


def run(model: Any) -> object:
    """Run an agent."""
    return helper(model).run("Hello")


def stream(model: Any) -> object:
    """Run an agent, and take its text as it comes."""
    return list(helper(model).stream("Hello"))


def run_other_agent(model: Any) -> object:
    """Run an agent of pydantic-ai's."""
    return turnlog.run(pydantic_ai.Agent(model), "Hello")


@pytest.mark.parametrize("key", [f"sk-{SECRET}\n", f"{SECRET}\r\n", f"{SECRET}é"], ids=ascii)
@pytest.mark.parametrize("way", [chat, run, stream])
@pytest.mark.usefixtures("provider")
def test_a_key_that_cannot_be_sent(
    wire: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    key: str,
    way: Callable[[Any], object],
) -> None:
    """A key that no header can hold is refused, and is in no error or log (C38)."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(KEYS[wire], key)
    with pytest.raises(MissingKey, match=KEYS[wire]) as caught:
        way(MODELS[wire])
    assert SECRET not in told(caught.value)
    assert SECRET not in caplog.text


@pytest.mark.parametrize("key", [f"sk-{SECRET}\n", f"{SECRET}é"], ids=ascii)
@pytest.mark.parametrize("way", [chat, run, stream, run_other_agent])
def test_a_key_of_a_ready_model(provider: Provider, key: str, way: Callable[[Any], object]) -> None:
    """The key of a ready model is in no message, cause or context of what its client says (C38)."""
    base_url = environment(provider)["OPENAI_BASE_URL"]
    client = AsyncOpenAI(api_key=key, base_url=base_url, max_retries=0)
    model = OpenAIChatModel("gpt-5-mini", provider=OpenAIProvider(openai_client=client))
    with pytest.raises((ModelFailed, ModelAPIError, UnicodeEncodeError)) as caught:
        way(model)
    assert SECRET not in told(caught.value)
    if way is not run_other_agent:
        assert isinstance(caught.value, ModelFailed)
        assert "header" in caught.value.what
        assert "OPENAI_API_KEY" in caught.value.hint


@pytest.mark.parametrize("key", ["no key", "k", "a-b_c.d/e+f="])
def test_a_key_that_can_be_sent(
    provider: Provider, one_model: str, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """A key that is unusual, as a server of one's own may take it, is sent (C38)."""
    monkeypatch.setenv(KEYS["openai"], key)
    provider.script("Fine.")
    assert helper(one_model).run("Hello").response == "Fine."


def test_an_error_of_the_caller_s_own(provider: Provider, one_model: str) -> None:
    """What a callback cannot encode is its own matter, and stays as it is (C38)."""
    provider.script("Fine.")

    def on_text(text: str) -> None:
        f"{text}é".encode("ascii")

    with pytest.raises(UnicodeEncodeError) as caught:
        helper(one_model).run("Hello", on_text=on_text)
    assert caught.value.object.endswith("é")
