"""A plain script that remembers: ask about a ticket, read the reply, and ask again tomorrow.

    python examples/support_script.py ticket-981 "My invoice is wrong."
    python examples/support_script.py ticket-981 "Any update?"

TURNLOG_MODEL says which model to ask, such as claude-haiku-4-5-20251001, with its key in
ANTHROPIC_API_KEY. Unless it is set, "offline" answers, which is no language model: it follows a few
rules, needs no key and no network, calls no tools, and quotes what you wrote before.

Ctrl-C stops a reply. What it had said by then is kept, and the next run goes on from it.
"""

from __future__ import annotations

import os
import sys

import turnlog

INVOICES = {7: "paid", 8: "sent on Monday, not paid yet"}


def invoice_status(number: int) -> str:
    """Say how an invoice stands.

    Args:
        number: the invoice's number.
    """
    return INVOICES.get(number, "there is no such invoice")


BOT = turnlog.Agent(
    name="support",
    system="You are a support agent. Be brief.",
    model=os.environ.get("TURNLOG_MODEL", "offline"),
    tools=[invoice_status],
)


def ask(ticket: str, question: str) -> None:
    """Ask about a ticket, and print the reply as it comes."""
    mem = turnlog.open(ticket, namespace="support")
    if len(mem):
        print(f"({ticket} holds {len(mem)} turns)")
    for piece in BOT.stream(question, memory=mem, on_tool_call=show):
        print(piece, end="", flush=True)
    print()


def show(event: turnlog.ToolEvent) -> None:
    """Print which tool is called."""
    if event["event"] == "start":
        arguments = " ".join(f"{name}={value}" for name, value in event["args"].items())
        print(f"\n[{event['tool']} {arguments}]")


def main() -> None:
    """Ask what the command line says; end with a line, not with a traceback."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        ask(sys.argv[1], sys.argv[2])
    except turnlog.TurnlogError as error:
        sys.exit(f"\n{error}")
    except KeyboardInterrupt:
        sys.exit("\n(stopped; what was said is kept)")


if __name__ == "__main__":
    main()
