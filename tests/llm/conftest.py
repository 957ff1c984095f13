"""What the tests of providers share: the real SDKs' clients, which speak to the provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anthropic
import openai
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from localserver import Provider


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
