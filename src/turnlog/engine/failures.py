"""What went wrong with a model, in words for people: the engine's errors become ModelFailed.

The provider's own words stay in the message, and the engine's error is the cause.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelRequestTimeout,
)
from pydantic_ai.messages import TextPart, ThinkingPart

from turnlog.display import one_line
from turnlog.engine.models import KEY_VARIABLES, full_name
from turnlog.errors import ModelFailed, TurnlogError

if TYPE_CHECKING:
    from collections.abc import Generator

    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model

    from turnlog.engine.listener import Listener


_ILLEGAL: Final = "Illegal header value"  # h11's words, which httpx hands on
_REWORD: Final = "word the input in another way"


@contextmanager
def failing(subject: str, model: Model, listener: Listener) -> Generator[None]:
    """Raise ModelFailed for what the model raises; what `on_text` raises goes through as it is."""
    try:
        yield
    except TurnlogError:
        raise
    except Exception as error:
        raised = listener.raised
        if raised is not None and (error is raised or error.__cause__ is raised):
            raise
        hide_key(error)
        what, hint = explained(error, _name_of(model), model.system)
        raise ModelFailed(subject, what, hint) from error


def hide_key(error: BaseException) -> None:
    """Take the key out of an error, and out of what led to it.

    HTTP clients quote a header that they cannot send: a key that ends in a newline, for one.
    """
    for each in _chain(error):
        if not _is_of_a_header(each):
            continue
        if isinstance(each, UnicodeEncodeError):
            each.object, each.start, each.end = "?", 0, 1
            each.args = (each.encoding, each.object, 0, 1, each.reason)
        else:
            each.args = (f"{_ILLEGAL} …",)


def _is_of_a_header(error: BaseException) -> bool:
    """Return whether an error is of a header that an HTTP client cannot send."""
    if not isinstance(error, UnicodeEncodeError):
        return str(error).startswith(_ILLEGAL)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return module.startswith("httpx")


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and all that led to it, each once."""
    found: dict[int, BaseException] = {}
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in found:
            found[id(each)] = each
            left += [each.__cause__, each.__context__]
            if isinstance(each, BaseExceptionGroup):
                left += cast("BaseExceptionGroup[BaseException]", each).exceptions
    return list(found.values())


def check_reply(subject: str, model: Model, response: ModelResponse) -> None:
    """Raise ModelFailed for a reply without a text where the model did not just say nothing.

    It may have refused to reply, reached the limit of tokens, or only thought.
    """
    if (response.text or "").strip() or response.tool_calls:
        return
    thought = any(isinstance(part, ThinkingPart) for part in response.parts)
    if response.finish_reason == "content_filter":
        said = (response.provider_details or {}).get("refusal") or "it gives no reason"
        what, hint = f"refused to answer ({one_line(str(said))})", _REWORD
    elif response.finish_reason == "length":
        doing = "while it was thinking" if thought else "before it said anything"
        what, hint = f"reached the limit of tokens {doing}", "give a greater max_tokens"
    elif thought and all(isinstance(part, ThinkingPart | TextPart) for part in response.parts):
        what, hint = "thought, but said nothing", "run it again, or lower reasoning_effort"
    else:
        return
    raise ModelFailed(subject, f"{_name_of(model)} {what}", hint)


def explained(error: Exception, name: str, system: str = "") -> tuple[str, str]:
    """Say what an error of a model's means, and what to do.

    Args:
        error: the error.
        name: the model's name, for people.
        system: its provider, where that is known.
    """
    if isinstance(error, ExceptionGroup):  # of several models, each of which failed
        errors = cast("ExceptionGroup[Exception]", error).exceptions
        each = [explained(one, str(getattr(one, "model_name", name))) for one in errors]
        return "; ".join(what for what, _ in each), each[-1][1]
    if any(map(_is_of_a_header, _chain(error))):
        what = "has a header, most likely its key, with a character that is not allowed there"
        hint = f"look for a newline, or what else was copied, in {_key_of(name, system)}"
        return f"the request to {name} {what}", hint
    return _explained_by_kind(error, name, system)


def _explained_by_kind(error: Exception, name: str, system: str) -> tuple[str, str]:
    if isinstance(error, ModelHTTPError):
        return _refused(error, name, system)
    if isinstance(error, ModelRequestTimeout):
        return f"{name} gave no reply in time ({_said(error)})", "give a longer timeout"
    if isinstance(error, ModelConnectionError):
        return (
            f"the connection to {name} failed or broke off ({_said(error)})",
            "look at the network and at the provider's status, and run it again",
        )
    if isinstance(error, ContentFilterError):
        return f"{name} refused to answer ({_said(error)})", _REWORD
    return (
        f"{name} could not reply ({type(error).__name__}: {_said(error)})",
        "the cause has the details",
    )


def _name_of(model: Model) -> str:
    return f"{model.model_name} of {model.system}"


def _refused(error: ModelHTTPError, name: str, system: str) -> tuple[str, str]:
    """Say what a provider's status means."""
    status = error.status_code
    said = f"status {status}: {_said(error)}"
    if status in {401, 403}:
        key = _key_of(name, system)
        return f"the provider refused the key for {name} ({said})", f"look at {key}"
    if status == 404:  # noqa: PLR2004 - the status of HTTP
        return f"the provider knows no model {name} ({said})", "look at the model's name"
    if status == 429:  # noqa: PLR2004
        return f"too many requests to {name} ({said})", _wait(error)
    if status >= 500:  # noqa: PLR2004
        return f"the provider failed on {name} ({said})", _wait(error)
    return f"the provider refused the request to {name} ({said})", "the provider's words say why"


def _key_of(name: str, system: str) -> str:
    provider = system or full_name(name).partition(":")[0]
    return " or ".join(KEY_VARIABLES.get(provider, ("the provider's key",)))


def _wait(error: ModelAPIError) -> str:
    seconds = error.retry_after
    return f"run it again in {seconds:g} s" if seconds else "run it again later"


def _said(error: Exception) -> str:
    """Give the provider's own words, where it had any; else the engine's, in a line."""
    body: Any = getattr(error, "body", None)
    for key in ("error", "message"):
        body = cast("dict[str, Any]", body).get(key, body) if isinstance(body, dict) else body
    return one_line(body if isinstance(body, str) else str(error))
