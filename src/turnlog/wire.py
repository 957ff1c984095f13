"""Messages as the providers' SDKs take them. Pure.

Half characters (lone surrogates, which a broken stream leaves) go out as U+FFFD: no provider takes
them. Source: design, sections 2, 3 and 6; the providers' own references, named below.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turnlog.message import Message

_HALF: Final = re.compile("[\ud800-\udfff]")
BETWEEN: Final = "\n\n"  # two turns of one role that go out as one


def whole_characters(text: str) -> str:
    """Give a text that can be written as UTF-8.

    Two half characters side by side are one again, as they are in a thread's file; a lone one is
    U+FFFD.
    """
    if not _HALF.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def openai_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return the `messages` of OpenAI's chat completions.

    The system messages go first, as one: templates of models that speak this API refuse others, and
    two messages of one role in a row.

    Source: OpenAI's API reference, chat completions, `messages`.
    """
    system, turns = _system_and_turns(messages)
    return [{"role": "system", "content": system}, *turns] if system else turns


def anthropic_request(messages: Iterable[Message]) -> dict[str, Any]:
    """Return the `messages`, and `system` where there is one, of Anthropic's Messages API.

    It has no system role: the system messages go together into `system`. It refuses white space at
    the end of a last assistant message, so that is cut.

    Source: Anthropic's API reference, Messages, `system` and `messages`.
    """
    system, turns = _system_and_turns(messages)
    if turns and turns[-1]["role"] == "assistant":
        turns[-1]["content"] = turns[-1]["content"].rstrip()
    return {"system": system, "messages": turns} if system else {"messages": turns}


def _system_and_turns(messages: Iterable[Message]) -> tuple[str, list[dict[str, Any]]]:
    """Return the system text, and the other messages with those of one role in a row as one.

    Messages of white space alone are left out: providers refuse them.
    """
    said = [message for message in messages if message.content.strip()]
    system = _joined(message for message in said if message.role == "system")
    turns = [
        {"role": role, "content": _joined(group)}
        for role, group in groupby(
            (message for message in said if message.role != "system"), lambda message: message.role
        )
    ]
    return system, turns


def _joined(messages: Iterable[Message]) -> str:
    return BETWEEN.join(whole_characters(message.content) for message in messages)
