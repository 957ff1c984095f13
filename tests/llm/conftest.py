"""What the tests of providers share: a provider, and the real SDKs' clients, which speak to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anthropic
import openai
import pytest
from localserver import Provider, environment, serving

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """Give a provider that the real SDKs speak to."""
    with serving() as provider:
        for name, value in environment(provider).items():
            monkeypatch.setenv(name, value)
        yield provider


@pytest.fixture
def claude(provider: Provider) -> Iterator[anthropic.Anthropic]:
    """Give Anthropic's client, strict about what it is sent."""
    del provider
    with anthropic.Anthropic(max_retries=0, _strict_response_validation=True) as client:
        yield client


@pytest.fixture
def gpt(provider: Provider) -> Iterator[openai.OpenAI]:
    """Give OpenAI's client, strict about what it is sent."""
    del provider
    with openai.OpenAI(max_retries=0, _strict_response_validation=True) as client:
        yield client
