"""`turnlog ls`: lists the stored threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from turnlog.cli.edge import note
from turnlog.cli.memories import open_to_read, shown
from turnlog.cli.output import Output
from turnlog.codec import rfc3339
from turnlog.names import ThreadKey
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from turnlog.stores.base import ThreadInfo


@click.command
@click.argument("namespace", required=False)
@click.option("--json", "as_json", is_flag=True, help="Write a JSON object a line.")
@click.pass_context
def ls(ctx: click.Context, namespace: str | None, *, as_json: bool) -> None:
    """List the threads.

    Those of one NAMESPACE or of all, with their size and when they were last written. In a pipe:
    name, bytes and time, with tabs between them.
    """
    out = Output()
    found = False
    with open_to_read(ctx) as memory:
        for info in memory.threads(namespace):
            if as_json:
                _write_json(out, info)
            elif out.person:
                if not found:
                    out.line(out.styled(f"{'SIZE':>9}  {'LAST WRITTEN':<23}  THREAD", "aside"))
                _write_row(out, info)
            else:
                _write_fields(out, info)
            found = True
        if not found and out.person:
            store = memory.store
            place = store.root if isinstance(store, JsonlStore) else store
            note(f"there are no threads in {namespace or place!r}")


def _write_json(out: Output, info: ThreadInfo) -> None:
    modified = rfc3339(info.modified)
    out.json({"namespace": info.namespace, "id": info.id, "size": info.size, "modified": modified})


def _write_fields(out: Output, info: ThreadInfo) -> None:
    name = shown(ThreadKey(info.namespace, info.id))
    out.line(f"{out.clean(name)}\t{info.size}\t{rfc3339(info.modified)}")


def _write_row(out: Output, info: ThreadInfo) -> None:
    """Write a row of the table. The name is last, so that rows align before all are known."""
    name = out.clean(shown(ThreadKey(info.namespace, info.id)))
    out.line(f"{_size(info.size):>9}  {out.time(info.modified)}  {out.styled(name, 'name')}")


def _size(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:  # noqa: PLR2004 - the next unit
            break
        size, unit = size / 1000, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
