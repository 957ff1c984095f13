"""Model names to the engine's models, and Sema's options to the engine's settings.

A name is the engine's own `provider:model`, or a bare one whose maker its beginning tells, as
Sema's documents write them; or `offline`, the built-in that needs no network.

Source: Sema, llm/chat, options; semantics, chat and stream.
"""

from __future__ import annotations

import asyncio
import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args
from weakref import finalize, ref

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model
from pydantic_ai.profiles.anthropic import ANTHROPIC_THINKING_BUDGET_MAP, AnthropicModelProfile
from pydantic_ai.settings import ModelSettings

from turnlog.display import one_line
from turnlog.engine.offline import OFFLINE, offline_model
from turnlog.errors import InvalidTurn, MissingExtra, MissingKey, UnknownModel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

ReasoningEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh"]

DEFAULT_MAX_TOKENS: Final = 4096
_MOST_MAKERS: Final = 8

# Which provider a bare name belongs to. OpenAI's is the endpoint that others' servers speak too.
_BARE_NAMES: Final = (
    (re.compile("claude-"), "anthropic"),
    (re.compile(r"(chat)?gpt-|o\d"), "openai-chat"),
    (re.compile("gemini-"), "google"),
)
_SENDABLE_KEY: Final = re.compile("[!-~]([ -~]*[!-~])?")
# The variables that a provider's key is looked for in, the usual one first.
KEY_VARIABLES: Final[dict[str, tuple[str, ...]]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "openai-chat": ("OPENAI_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
}


class ModelChoice:
    """The model that somebody chose by its name, made once for each event loop and kept open.

    A client's connections belong to the loop that opened them: with a client for each, an agent
    may run in several threads at once, and its runs in one loop share connections. They are closed
    when the loop ends, or when the choice is no longer held. A ready model is its owner's to keep
    open: a run opens it, and closes it unless somebody else has opened it too.

    Args:
        model: what the user gave.
        subject: whose it is, for errors.
    """

    def __init__(self, model: object, subject: str) -> None:
        """Take the choice as it is; it is looked up when it is first asked for."""
        self._model = model
        self._subject = subject
        self._made: dict[asyncio.AbstractEventLoop, tuple[Model, finalize[..., Any]]] = {}

    def __reduce__(self) -> tuple[type[ModelChoice], tuple[object, str]]:
        """Pickle and copy by the choice alone."""
        return (ModelChoice, (self._model, self._subject))

    async def here(self) -> Model:
        """Give the model for the running loop. Raises as `made` does."""
        model: Any = self._model
        if isinstance(model, Model):
            return cast("Model[Any]", model)
        loop = asyncio.get_running_loop()
        if loop not in self._made:
            for closed in [each for each in list(self._made) if each.is_closed()]:
                self.forget(closed)
            model = await made(model, self._subject)
            if loop not in self._made:  # of two that made it at once, the first one's stays
                keeper = _keep(model, ref(self), loop)
                _keepers[id(keeper)] = keeper
                dropping = finalize(self, _keepers.pop, id(keeper), None)
                dropping.atexit = False
                self._made[loop] = model, dropping
                await anext(keeper)
        return self._made[loop][0]

    def forget(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let go of the model of a loop that has ended."""
        found = self._made.pop(loop, None)
        if found is not None:
            found[1]()


# By nobody else, so that a choice that is garbage leaves what it kept in one piece: dropped from
# here, a generator is closed by its loop, and closes the model's connections.
_keepers: Final[dict[int, AsyncGenerator[None]]] = {}


async def _keep(
    model: Model, choice: ref[ModelChoice], loop: asyncio.AbstractEventLoop
) -> AsyncGenerator[None]:
    """Keep a model open until its loop ends, which closes the generators still suspended."""
    try:
        async with model:
            yield
    finally:
        found = choice()
        if found is not None:
            found.forget(loop)


def fitted(settings: ModelSettings, model: Model) -> ModelSettings:
    """Give the settings with room for what the model thinks beside its reply.

    Anthropic's older models are given a budget of tokens to think, which counts among the reply's:
    as many more may be used.
    """
    given = cast("dict[str, Any]", settings)
    level, limit = given.get("thinking"), given.get("max_tokens")
    if not level or limit is None or model.system != "anthropic":
        return settings
    profile = cast("AnthropicModelProfile", model.profile)
    if profile.get("anthropic_supports_adaptive_thinking") or not profile.get("supports_thinking"):
        return settings
    return {**settings, "max_tokens": limit + ANTHROPIC_THINKING_BUDGET_MAP[level]}


async def made(model: object, subject: str) -> Model:
    """Give the engine's model of a name; a ready one as it is.

    The first one of a provider imports its package, which takes up to a second: in a thread.

    Args:
        model: what the user gave.
        subject: whose it is, for errors.

    Raises:
        UnknownModel: there is none of that name.
        MissingKey: its provider's key is not in the environment, or cannot be sent as it is there.
        MissingExtra: its provider's package is not installed.
    """
    if isinstance(model, Model) or model == OFFLINE:
        return _made(cast("object", model), subject)
    try:
        making = asyncio.get_running_loop().run_in_executor(_makers, _made, model, subject)
    except RuntimeError:  # the interpreter is ending, and has no more threads to give
        return _made(model, subject)
    return await making


def _new_makers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOST_MAKERS, "turnlog-model")


# Threads of their own, that no tool blocks; and that do not end with a run: a thread that has used
# OpenSSL takes a lock of its when it ends, which in the child of a fork at that moment nobody gives
# back, so that the child would hang at its first TLS context.
_makers = _new_makers()


def _after_fork() -> None:
    global _makers  # noqa: PLW0603 - its threads are the parent's
    _makers = _new_makers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _made(model: object, subject: str) -> Model:
    if isinstance(model, Model):
        return cast("Model[Any]", model)
    if not isinstance(model, str) or not model:
        given = "no model was given" if not model else f"a {type(model).__name__} is no model"
        raise UnknownModel(subject, given, "give model=, such as 'anthropic:claude-haiku-4-5'")
    if model == OFFLINE:
        return offline_model()
    name = full_name(model)
    provider = name.partition(":")[0]
    _check_keys(subject, model, provider)
    try:
        return infer_model(name)
    except ImportError as error:
        raise MissingExtra(
            subject,
            f"the model {model!r} needs its provider's package",
            one_line(str(error)),
        ) from error
    except Exception as error:
        raise _refused(subject, model, provider, error) from error


def _check_keys(subject: str, model: str, provider: str) -> None:
    """Refuse a key that no header can hold: an HTTP client would quote it in its error and log."""
    variable = next(filter(os.environ.get, KEY_VARIABLES.get(provider, ())), None)
    if variable is not None and not _SENDABLE_KEY.fullmatch(os.environ[variable]):
        raise MissingKey(
            subject,
            f"the key for the model {model!r} has a character that cannot be sent",
            f"look for a newline, or what else was copied, in {variable}",
        )


def full_name(model: str) -> str:
    """Give a bare name with its provider; any other as it is."""
    if ":" not in model:
        for pattern, provider in _BARE_NAMES:
            if pattern.match(model):
                return f"{provider}:{model}"
    return model


def _refused(subject: str, model: str, provider: str, error: Exception) -> Exception:
    said = str(error)
    variables = KEY_VARIABLES.get(provider, ())
    keyless = bool(variables) and not any(map(os.environ.get, variables))
    if keyless or "environment variable" in said:
        hint = f"set {' or '.join(variables)}" if variables else said
        return MissingKey(subject, f"there is no key for the model {model!r}", hint)
    if isinstance(error, UserError):
        return UnknownModel(
            subject,
            f"there is no model {model!r} ({said})",
            "write it as provider:model, such as 'anthropic:claude-haiku-4-5'",
        )
    return UnknownModel(subject, f"the model {model!r} cannot be made ({said})", "give another")


def settings_of(
    *,
    max_tokens: int | None,
    reasoning_effort: ReasoningEffort | None,
    temperature: float | None = None,
    timeout: float | None = None,
    subject: str,
) -> ModelSettings:
    """Give Sema's options as the engine's settings.

    Raises:
        InvalidTurn: an option is no good.
    """
    settings: dict[str, Any] = {}
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise InvalidTurn(subject, f"max_tokens is {max_tokens!r}", "give a number, 1 or more")
    for name, value in (("temperature", temperature), ("timeout", timeout)):
        if value is not None and (not isinstance(value, int | float) or value < 0):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidTurn(subject, f"{name} is {value!r}", "give a number, 0 or more")
    if reasoning_effort is not None:
        if reasoning_effort not in get_args(ReasoningEffort):
            raise InvalidTurn(
                subject,
                f"reasoning_effort is {reasoning_effort!r}",
                f"use one of {', '.join(get_args(ReasoningEffort))}",
            )
        settings["thinking"] = False if reasoning_effort == "none" else reasoning_effort
    if max_tokens is not None:
        settings["max_tokens"] = max_tokens
    if temperature is not None:
        settings["temperature"] = temperature
    if timeout is not None:
        settings["request_timeout"] = timeout
    return ModelSettings(**settings)
