"""What the tests of agents share: a provider over real HTTP, and a look at what is on disk."""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# A sibling whose helpers are used here: programs that run in other processes.
sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

import google_wire
import responses_wire
from localserver import MODELS, Provider, turns
from programs import Reopened, Stored, reopened_in_a_new_process
from ways import AGENTS, WAYS, Make, Perform
from wires import Wire, strict

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from failing import Options

    from turnlog import Memory, MemoryThread


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
    with _asked(request.param, provider, monkeypatch) as wire:
        yield wire


@pytest.fixture(params=["anthropic", "openai", "google", "responses"])
def strict_wire(
    request: pytest.FixtureRequest, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Wire]:
    """Give each wire format in turn, of a model that refuses two messages of one role in a row."""
    provider.reply = strict
    with _asked(request.param, provider, monkeypatch) as wire:
        yield wire


@contextmanager
def _asked(name: str, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> Generator[Wire]:
    if name in MODELS:
        yield Wire(MODELS[name], lambda: [*map(turns, provider.requests)])
        return
    if name == "google":
        pytest.importorskip("google.genai")
    there: Any = google_wire if name == "google" else responses_wire
    with there.serving() as server:
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        yield Wire(there.MODEL, lambda: [*map(there.turns, server.requests)])
    gc.collect()  # here, where no loop runs: what is left of its client starts a task in one


@pytest.fixture
def reopened() -> Reopened:
    """Give what reads a thread in a new process: `reopened(root, id)` gives its turns."""
    return reopened_in_a_new_process


@pytest.fixture
def thread(memory: Memory) -> MemoryThread:
    """Give an empty thread."""
    return memory.open("t")


@pytest.fixture
def stored(memory: Memory, root: Path) -> Stored:
    """Give a thread that is new, to be looked at on disk too."""
    return Stored(memory.open("t"), root)


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def options(request: pytest.FixtureRequest) -> Options:
    """Give the options of a run that gets its replies whole, and of one that has them streamed."""
    return {"on_text": str} if request.param else {}


@pytest.fixture(params=AGENTS)
def make(request: pytest.FixtureRequest) -> Make:
    """Give what makes an agent, ours and the engine's own: `make(model, system="", tools=())`."""
    return AGENTS[request.param]


@pytest.fixture(params=WAYS)
def perform(request: pytest.FixtureRequest) -> Perform:
    """Give each way to run an agent in turn: `perform(agent, content, **options)`."""
    return WAYS[request.param]
