"""A web chat: each user has a thread, replies come piece by piece, and a stop loses nothing.

    pip install './turnlog[agents]' fastapi uvicorn
    uvicorn --app-dir examples web_chat:app              # then, in another terminal:
    curl -N -H 'X-User: ada' --json '{"text": "My invoice is wrong."}' http://127.0.0.1:8000/chat
    curl -H 'X-User: ada' http://127.0.0.1:8000/chat     # what was said

POST sends server-sent events: `text` with a piece of the reply, then `end`, or `error` where it
failed. A client that goes away (Ctrl-C in curl) stops the reply; what it had said is kept. So is
what was said when the server is told to end: give it a limit, `--timeout-graceful-shutdown 5`, else
it waits for the replies. Any number of workers may serve the same memory:
`uvicorn --workers 4 ...`.

TURNLOG_MODEL says which model to ask, such as claude-haiku-4-5-20251001, with its key in
ANTHROPIC_API_KEY. Unless it is set, "offline" answers, which is no language model: it follows a few
rules, needs no key and no network, and quotes what you wrote before.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Body, Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse, StreamingResponse

import turnlog

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

BOT = turnlog.Agent(
    name="web-chat",
    system="You are a support agent on a web page. Be brief.",
    model=os.environ.get("TURNLOG_MODEL", "offline"),
)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    """Let no worker end before what was said in its last requests is written."""
    yield
    await turnlog.astop_runs()


app = FastAPI(title="Web chat", lifespan=lifespan)


async def thread_of_user(x_user: Annotated[str, Header()]) -> turnlog.MemoryThread:
    """Open the user's thread. The header stands for your login: never trust it as it is."""
    return await turnlog.aopen(x_user, namespace="web-chat")


Thread = Annotated[turnlog.MemoryThread, Depends(thread_of_user)]


@app.post("/chat")
async def say(mem: Thread, text: Annotated[str, Body(embed=True)]) -> StreamingResponse:
    """Say something; the reply comes as server-sent events."""
    return StreamingResponse(events(BOT.astream(text, memory=mem)), media_type="text/event-stream")


@app.get("/chat")
async def history(mem: Thread) -> list[dict[str, Any]]:
    """Give what was said."""
    await mem.arefresh()  # another worker may have served the user meanwhile
    return [
        {"role": turn.role, "text": turn.content, "interrupted": "interrupted" in (turn.meta or {})}
        for turn in mem.messages()
    ]


async def events(reply: turnlog.TextStream[str]) -> AsyncIterator[str]:
    """Give a reply as server-sent events. A client that went away cancels this, and so the run."""
    try:
        async with reply:
            async for piece in reply:
                yield event("text", piece)
        yield event("end", "")
    except turnlog.TurnlogError as error:  # the status is sent already, so it must be an event
        logging.getLogger("uvicorn.error").warning("%s", error)
        yield event("error", "I cannot answer just now. Please send it again in a while.")


def event(name: str, text: str) -> str:
    """Give one server-sent event; as JSON its text has no line break."""
    return f"event: {name}\ndata: {json.dumps(text)}\n\n"


@app.exception_handler(turnlog.InvalidName)
@app.exception_handler(turnlog.InvalidTurn)
async def refuse(_: Request, error: Exception) -> JSONResponse:
    """Say what is wrong with a user's name, which names a file, or with a text."""
    return JSONResponse({"error": str(error)}, 422)
