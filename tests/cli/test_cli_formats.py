"""The formats of export and import: what goes out comes back, and what is no good is refused."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnlog import Message
from turnlog.cli.formats import FORMATS, BadInput
from turnlog.message import ROLES, Scalar

TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=[])),  # half characters too
    st.text(alphabet="#\\ \n\r,user<!-meta:>{}\u2028\x00\x1b"),
    st.lists(
        st.sampled_from(
            [
                "## user",
                "## assistant, 2026-11-29T13:25:00Z",
                "\\## system",
                "\\\\## user, x",
                "## user ",
                "<!-- meta: {} -->",
                "",
                "\r",
                "text",
            ]
        )
    ).map("\n".join),
)
TIMES = st.none() | st.datetimes(timezones=st.just(dt.UTC))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
)
MESSAGES = st.lists(
    st.builds(
        Message,
        st.sampled_from(ROLES),
        TEXTS,
        TIMES,
        st.none() | st.dictionaries(TEXTS, SCALARS, max_size=3),
    ),
    max_size=5,
)


def there(name: str, messages: list[Message]) -> bytes:
    """Give messages as the bytes of a format."""
    return b"".join(FORMATS[name].write(messages))


def back(name: str, data: bytes) -> list[Message | None]:
    """Give the messages in the bytes of a format."""
    return list(FORMATS[name].read(data))


def each_half_replaced(text: str) -> str:
    """Give a text with U+FFFD for each half character."""
    return "".join("\ufffd" if "\ud800" <= one <= "\udfff" else one for one in text)


@given(MESSAGES)
def test_jsonl_is_exact(messages: list[Message]) -> None:
    """Role, content, time and meta come back from jsonl as they were, half characters too (C13)."""
    expected = [Message(m.role, joined(m.content), m.at, joined_meta(m)) for m in messages]
    assert back("jsonl", there("jsonl", messages)) == expected


def joined(text: str) -> str:
    """Give a text with halves that stand together as the character they make: JSON's rule."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def joined_meta(message: Message) -> dict[str, Scalar] | None:
    """Give a message's meta by the same rule."""
    if message.meta is None:
        return None
    return {
        joined(key): joined(value) if isinstance(value, str) else value
        for key, value in message.meta.items()
    }


@given(MESSAGES)
@example([Message("user", ""), Message("user", "\n"), Message("user", "\n\n")])
@example([Message("user", "## user"), Message("user", "\\## user, x\n\\\\## assistant")])
@example([Message("user", "<!-- meta: {} -->"), Message("user", "x", None, {"-->": "<!--"})])
def test_markdown_is_exact(messages: list[Message]) -> None:
    """Role, content, time and meta come back from Markdown; half characters in texts are U+FFFD."""
    expected = [
        Message(m.role, each_half_replaced(m.content), m.at, joined_meta(m)) for m in messages
    ]
    assert back("markdown", there("markdown", messages)) == expected


@given(MESSAGES)
def test_openai_keeps_roles_and_texts(messages: list[Message]) -> None:
    """An openai export is JSON of role and content, which come back."""
    data = there("openai", messages)
    texts = [(m.role, each_half_replaced(m.content)) for m in messages]
    assert [(item["role"], item["content"]) for item in json.loads(data)] == texts
    read = [None if m is None else (m.role, m.content) for m in back("openai", data)]
    assert read == texts


def test_markdown_is_for_people() -> None:
    """A turn in Markdown is a heading, its meta as a comment, and its text as it is."""
    at = dt.datetime(2026, 11, 29, 13, 25, tzinfo=dt.UTC)
    messages = [
        Message("user", "Grüße!\n\n- a list", at, {"name": "Zoë"}),
        Message("assistant", "## user\nis a heading", None),
    ]
    assert there("markdown", messages).decode() == (
        "## user, 2026-11-29T13:25:00.000000Z\n"
        '<!-- meta: {"name":"Zoë"} -->\n'
        "\n"
        "Grüße!\n\n- a list\n"
        "\n"
        "## assistant\n"
        "\n"
        "\\## user\nis a heading\n"
    )


def test_markdown_that_was_edited_by_hand_is_read() -> None:
    """Empty lines before the first heading, none at the end, and no empty lines at all are fine."""
    text = "\ufeff\n\n## user\nHello\n## assistant, 2026-11-29T13:25:00+01:00\n\nHi"
    at = dt.datetime(2026, 11, 29, 12, 25, tzinfo=dt.UTC)
    assert back("markdown", text.encode()) == [
        Message("user", "Hello"),
        Message("assistant", "Hi", at),
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_is_no_messages(name: str) -> None:
    """An empty thread goes out and comes back."""
    assert back(name, there(name, [])) == []


OPENAI: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "image_url"}]},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "user", "content": "Hi", "name": "Zoe"},
    {"role": "assistant", "content": "Let me look.", "tool_calls": [{"id": "1"}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "assistant"},
    {"role": "tool", "content": "42", "tool_call_id": "1"},
    {"role": "function", "content": "42", "name": "f"},
    {"role": "assistant", "content": "Done."},
]


def test_openai_of_others_is_read() -> None:
    """Developer is system, text parts are joined, tools and what has no text have no place."""
    assert back("openai", json.dumps(OPENAI).encode()) == [
        Message("system", "Be brief."),
        Message("user", "Look"),
        None,  # the image
        Message("user", "a\nb"),
        Message("user", "Hi", None, {"name": "Zoe"}),
        Message("assistant", "Let me look."),
        None,  # the call
        Message("assistant", "No."),
        Message("assistant", "Yes."),
        Message("assistant", ""),
        None,
        None,
        None,
        None,
        Message("assistant", "Done."),
    ]


BAD = {
    "jsonl": [
        (b'{"content":"x"}\nhello\n{"content":"y"}\n[1]\n', ["line 2: it is not JSON", "line 4:"]),
        (b'{"content":"x"}\n{"role":"user","content":"ha', ["line 2: it is no whole turn"]),
        (b'{"content":"\xff"}\n{"content":"x"}\n', ["line 1: it is not UTF-8"]),
        (b'{"content":"x","content":"y"}\n', ["line 1: the key 'content' is given more than once"]),
        (b"no\n" * 30, ["line 1:", "line 10:", "and 20 more"]),
    ],
    "markdown": [
        (b"# A title\n\n## user\n\nHi\n", ["line 1: it is not below a heading"]),
        (b"## user, yesterday\n\nHi\n", ["line 1: 'yesterday' is no time"]),
        (b"## user, 2026-11-29T13:25:00\n\nHi\n", ["line 1: the time", "timezone"]),
        (b"## user\n\nHi\n\n## user, \n\nHi\n", ["line 5: '' is no time"]),
        (b"## user\n<!-- meta: {] -->\n\nHi\n", ["line 2: the meta cannot be read"]),
        (b"## user\n<!-- meta: [1] -->\n\nHi\n", ["line 2: the meta cannot be read"]),
        (b'## user\n<!-- meta: {"a":[]} -->\n\nHi\n', ["line 1: meta['a'] is of type list"]),
        (b"## user\n\nHi\xff\n", ["line 3: it is not UTF-8"]),
        (b"## user, 2026-11-29T13:25:00Z\r\n\r\nHi\r\n", ["line 1:", "is no time"]),
    ],
    "openai": [
        (b"[{]", ["it is not JSON"]),
        (b"{}", ["no JSON array"]),
        (b"[" * 100_000, ["not JSON: it is nested too deep"]),
        (b"\xff", ["not JSON"]),
        (
            b'[1, {"role": "king", "content": "x"}]',
            ["message 1: it is no", "2: its role is 'king'"],
        ),
        (b'[{"role": [], "content": "x"}]', ["message 1: its role is []"]),
        (b'[{"role": "user", "content": 5}]', ["message 1: its content"]),
        (b'[{"role": "user", "content": [5]}]', ["message 1: a part"]),
    ],
}


@pytest.mark.parametrize(
    ("name", "data", "told"), [(name, *case) for name, cases in BAD.items() for case in cases]
)
def test_bad_input_is_refused_with_its_place(name: str, data: bytes, told: list[str]) -> None:
    """What is not of the format is refused, with the line or the message where it is wrong."""
    with pytest.raises(BadInput) as refused:
        back(name, data)
    for words in told:
        assert words in str(refused.value)


def test_jsonl_is_read_as_a_thread_is() -> None:
    """A copy of a thread's file, or anybody's lines, are turns: unknown roles and keys in meta."""
    data = b'{"role":"human","content":"Hi","n":1}\r\n\n{"content":"x","key":"k"}'
    assert back("jsonl", data) == [
        Message("user", "Hi", None, {"role": "human", "n": 1}),
        Message("user", "x"),
    ]
