"""Tools: Python functions that a model may call.

A tool is a typed function with a docstring, sync or async; its name, its description and the
schema of its arguments come from there. `tool` is for those where they have to be given.

The engine makes the schemas and checks the arguments. A sync tool runs in a thread; when the run
is cancelled, the run does not wait for that thread, which goes on by itself: nothing can stop it.

Source: Sema, deftool and agent/run; semantics, agent run.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, cast, overload

import anyio.to_thread
import pydantic_ai
from pydantic import BaseModel, ValidationError

from turnlog.engine.history import json_text
from turnlog.errors import TurnlogError
from turnlog.wire import whole_characters

if TYPE_CHECKING:
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.tools import ToolDefinition

_Parameters = ParamSpec("_Parameters")
_Returned = TypeVar("_Returned")


# What each of the providers takes.
_NAME: Final = re.compile("[a-zA-Z0-9_-]{1,64}")


class Tool(Generic[_Parameters, _Returned]):
    """A function that a model may call, with what it is told of it. What `tool` gives.

    Called, it is the function itself.
    """

    def __init__(
        self,
        function: Callable[_Parameters, _Returned],
        name: str | None = None,
        description: str | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep a function and what a model is told of it."""
        functools.update_wrapper(self, function)
        self.function: Callable[_Parameters, _Returned] = function
        self.name: str | None = name
        self.description: str | None = description
        self.schema: Mapping[str, Any] | None = schema

    def __call__(self, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Returned:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __get__(self, owner: object, kind: type[Any] | None = None) -> Tool[..., _Returned]:
        """Be the method of an object, where it was declared in a class."""
        if owner is None:
            return self
        bound = cast("Any", self.function).__get__(owner, kind)
        return Tool(bound, self.name, self.description, self.schema)

    def __repr__(self) -> str:
        """Name it."""
        return f"<Tool {self.name or _name_of(self.function)!r}>"


@overload
def tool(function: Callable[_Parameters, _Returned], /) -> Tool[_Parameters, _Returned]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    schema: Mapping[str, Any] | None = None,
) -> Callable[[Callable[_Parameters, _Returned]], Tool[_Parameters, _Returned]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    schema: Mapping[str, Any] | None = None,
) -> Any:
    """Make a tool of a function, where its own name, docstring or types do not say it all.

    Args:
        function: the function, where it is used as a plain decorator.
        name: the name for the model; the function's own unless given.
        description: what the model is told of it; the docstring unless given.
        schema: the JSON schema of its arguments, an object's; made from the types unless given.
            With it the arguments are passed on by name, unchecked.

    Returns:
        The tool, which can still be called as the function; or a decorator, where no function was
        given: `@turnlog.tool(name="lookup")`.
    """
    if function is None:
        return functools.partial(_declared, name=name, description=description, schema=schema)
    return _declared(function, name=name, description=description, schema=schema)


def _declared(function: object, **said: Any) -> Tool[..., Any]:
    return Tool(_function(function), **said)


class ToolError(Exception):
    """Raised when a call of a tool failed; its text is what the model is told."""

    def __init__(self, text: str) -> None:
        """Take the text, without half characters."""
        super().__init__(whole_characters(text))


class Toolbox:
    """The tools of one agent or chat, as the engine has them.

    Raises:
        TurnlogError: what is given is no function, two have one name, or a function's types give no
            schema.
    """

    def __init__(self, tools: Iterable[Callable[..., Any]]) -> None:
        """Make the engine's tools of functions."""
        if not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TurnlogError("tools", f"{tools!r} is no list of functions", "put it in a list")
        self._tools: Final[dict[str, pydantic_ai.Tool[None]]] = {}
        for given in tools:
            made = _engine_tool(given)
            if made.name in self._tools:
                raise TurnlogError(
                    f"tool {made.name!r}", "there are two of this name", "name one by @turnlog.tool"
                )
            self._tools[made.name] = made

    @property
    def definitions(self) -> list[ToolDefinition]:
        """What the model is told of them."""
        return [made.tool_def for made in self._tools.values()]

    async def call(self, call: ToolCallPart) -> str:
        """Call a tool as the model asks; give the result as text.

        Raises:
            ToolError: there is no such tool, its arguments do not fit, or it raised.
        """
        called = self._tools.get(call.tool_name)
        if called is None:
            known = ", ".join(self._tools) or "none"
            raise ToolError(f"there is no tool {call.tool_name!r}; the tools are: {known}")
        try:
            arguments = _checked(called, call)
        except ValidationError as error:
            raise ToolError(f"the arguments do not fit: {_misfits(error)}") from error
        try:
            result = await called.function_schema.call(arguments, cast("Any", None))
            return _as_text(result)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            raise ToolError("what it awaited was cancelled") from error
        except Exception as error:
            words = f": {error}" if str(error) else ""
            raise ToolError(f"{type(error).__name__}{words}") from error


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _checked(called: pydantic_ai.Tool[None], call: ToolCallPart) -> dict[str, Any]:
    validator = called.function_schema.validator
    arguments: object = (
        validator.validate_json(call.args or "{}")
        if isinstance(call.args, str)
        else validator.validate_python(call.args or {})
    )
    if isinstance(arguments, dict):
        return cast("dict[str, Any]", arguments)
    raise ToolError("the arguments do not fit: they are no JSON object")  # by a schema of its own


def _misfits(error: ValidationError) -> str:
    """Say which arguments do not fit, and why."""
    return "; ".join(
        ": ".join(filter(None, (".".join(map(str, each["loc"])), each["msg"])))
        for each in error.errors(include_url=False, include_context=False, include_input=False)
    )


def _as_text(result: object) -> str:
    """Give a result as the model gets it: text as it is, maps and sequences as JSON."""
    plain: object = result
    if isinstance(result, Mapping):
        plain = dict(cast("Mapping[Any, Any]", result))
    elif isinstance(result, Sequence | set | frozenset) and not isinstance(result, str):
        plain = list(cast("Iterable[Any]", result))
    elif not isinstance(result, BaseModel) and not is_dataclass(result):
        return whole_characters(str(result))
    return json_text(plain)


def _engine_tool(given: object) -> pydantic_ai.Tool[None]:
    declared = cast("Tool[..., Any]", given if isinstance(given, Tool) else Tool(_function(given)))
    function = _function(declared.function)
    name = declared.name or _name_of(function)
    _check_declared(name, declared.schema)
    awaited = _async_form(function)
    try:
        if declared.schema is not None:
            description = declared.description or inspect.getdoc(function)
            return pydantic_ai.Tool[None].from_schema(
                awaited, name, description, dict(declared.schema)
            )
        return pydantic_ai.Tool(
            awaited, takes_ctx=False, name=name, description=declared.description
        )
    except Exception as error:
        raise TurnlogError(
            f"tool {name!r}",
            f"its types give no schema ({error})",
            "annotate its parameters, or give @turnlog.tool a schema",
        ) from error


def _check_declared(name: str, schema: object) -> None:
    """Raise TurnlogError for what the providers would refuse."""
    if not _NAME.fullmatch(name):
        raise TurnlogError(
            f"tool {name!r}",
            "a tool's name is 1 to 64 letters, digits, _ or -",
            "name it by @turnlog.tool(name=...)",
        )
    kind = cast("Mapping[str, Any]", schema).get("type") if isinstance(schema, Mapping) else None
    if schema is not None and kind != "object":
        raise TurnlogError(
            f"tool {name!r}", "its schema is not an object's", 'give {"type": "object", ...}'
        )


def _function(given: object) -> Callable[..., Any]:
    if callable(given) and not isinstance(given, type):
        return given
    raise TurnlogError(
        f"tool {given!r}", "it is not a function", "give a function, or what @turnlog.tool gives"
    )


def _name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial):
        return _name_of(cast("functools.partial[Any]", function).func)
    return getattr(function, "__name__", type(function).__name__)


def _async_form(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function that is awaited; a sync one runs in a thread, which a cancelled run leaves.

    It has the parameters of the one given, and no type that it returns: the engine would make a
    schema of it, which nobody needs.
    """
    described: Any = function
    if isinstance(function, functools.partial):
        described = cast("functools.partial[Any]", function).func
    elif not hasattr(function, "__name__"):
        described = function = cast("Any", function).__call__
    is_async = inspect.iscoroutinefunction(described)

    @functools.wraps(described)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        called = functools.partial(function, *args, **kwargs)
        if is_async:
            return await called()
        result = await anyio.to_thread.run_sync(called, abandon_on_cancel=True)
        return await result if inspect.isawaitable(result) else result

    form = cast("Any", awaited)
    signature = inspect.signature(cast("Any", function))
    form.__signature__ = signature.replace(return_annotation=signature.empty)
    form.__annotations__ = {
        name: kind for name, kind in form.__annotations__.items() if name != "return"
    }
    return awaited
