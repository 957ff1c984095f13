"""What the tests of agents share: a provider over real HTTP, and a look at what is on disk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# Siblings whose helpers are used here: the provider, and programs that run in other processes.
sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("llm", "faults")]

import google_wire  # noqa: E402
from localserver import MODELS, Provider, environment, serving, turns  # noqa: E402
from programs import Reopened, Stored, reopened_in_a_new_process  # noqa: E402
from ways import AGENTS, WAYS, Make, Perform  # noqa: E402
from wires import Wire  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnlog import Memory


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """Give a provider that the real SDKs speak to, in this process and in those it starts."""
    with serving() as provider:
        for name, value in environment(provider).items():
            monkeypatch.setenv(name, value)
        yield provider


@pytest.fixture(params=["anthropic", "openai"])
def wire(request: pytest.FixtureRequest) -> str:
    """Give each wire format in turn, by its name."""
    return request.param


@pytest.fixture
def model(provider: Provider, wire: str) -> str:
    """Give a model's name that asks the provider over the wire format."""
    del provider
    return MODELS[wire]


@pytest.fixture
def one_model(provider: Provider) -> str:
    """Give one model's name, for what does not depend on the wire format."""
    del provider
    return MODELS["openai"]


@pytest.fixture(params=["anthropic", "openai", "google"])
def any_wire(
    request: pytest.FixtureRequest, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Wire]:
    """Give each provider in turn, Google's too, which can only be asked and looked at."""
    if request.param != "google":
        yield Wire(MODELS[request.param], lambda: [*map(turns, provider.requests)])
        return
    pytest.importorskip("google.genai")
    with google_wire.serving() as google:
        for name, value in google.environment.items():
            monkeypatch.setenv(name, value)
        yield Wire(google_wire.MODEL, lambda: [*map(google_wire.turns, google.requests)])


@pytest.fixture
def reopened() -> Reopened:
    """Give what reads a thread in a new process: `reopened(root, id)` gives its turns."""
    return reopened_in_a_new_process


@pytest.fixture
def stored(memory: Memory, root: Path) -> Stored:
    """Give a thread that is new, to be looked at on disk too."""
    return Stored(memory.open("t"), root)


@pytest.fixture(params=AGENTS)
def make(request: pytest.FixtureRequest) -> Make:
    """Give what makes an agent, ours and the engine's own: `make(model, system="", tools=())`."""
    return AGENTS[request.param]


@pytest.fixture(params=WAYS)
def perform(request: pytest.FixtureRequest) -> Perform:
    """Give each way to run an agent in turn: `perform(agent, content, **options)`."""
    return WAYS[request.param]
