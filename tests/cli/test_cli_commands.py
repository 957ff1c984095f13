"""What each command does and says, called in this process as in a pipe."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from stored import put

from turnlog import Memory, Message
from turnlog.cli.app import app
from turnlog.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result
    from stored import Invoke

AT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
HALF = "half \ud83d here"
TURN = '{"content":"x"}\n'


def lines(text: str) -> list[dict[str, object]]:
    """Read JSON lines."""
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def stored(root: Path) -> Path:
    """Give a root with three threads."""
    with Memory(root) as memory:
        memory.open("a").append("The invoice\nis WRONG.").append("Is it?", role="assistant")
        memory.open("b").append("No word of it.")
        mem = memory.open("user-42", "support")
        mem.append("Straße, wrong?\nNo, right.", meta={"name": "Zoë"}).append(HALF)
    return root


def contents(root: Path, id: str, namespace: str = "default") -> list[str]:
    """Give the texts of a thread as a new process would find them."""
    with Memory(root, read_only=True) as memory:
        return [message.content for message in memory.open(id, namespace).messages()]


# ---- the command itself ----


def test_help_names_every_command(invoke: Invoke) -> None:
    """`turnlog --help` lists the commands, each with a line about it."""
    done = invoke("--help")
    assert done.exit_code == 0
    for name in app.commands:
        assert re.search(rf"^  {name} +[A-Z].*\.$", done.stdout, re.MULTILINE), name


@pytest.mark.parametrize("name", app.commands)
def test_help_of_every_command(invoke: Invoke, name: str) -> None:
    """Every command has a help, and every option in it a word of help."""
    assert invoke(name, "--help").exit_code == 0
    for parameter in app.commands[name].params:
        if parameter.param_type_name == "option":
            assert getattr(parameter, "help", None), parameter.name


def test_root_says_where_the_threads_are(invoke: Invoke, stored: Path, tmp_path: Path) -> None:
    """`--root` takes a folder or a URL, and goes before the environment's TURNLOG_URL."""
    other = tmp_path / "other"
    assert invoke("--root", other, "append", "x", "There").exit_code == 0
    assert invoke("--root", f"file://{other}", "ls").stdout.startswith("default/x\t")
    assert "default/x" not in invoke("ls").stdout
    assert contents(stored, "a")


@pytest.mark.parametrize("name", app.commands)
def test_an_empty_root_is_refused(invoke: Invoke, name: str) -> None:
    """`--root ""`, which a variable that is not set makes, is a wrong call of every command."""
    done = invoke("--root", "", name)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Invalid value for '--root': it is empty" in done.stderr


def from_memory(*args: str) -> Result:
    """Call the command with TURNLOG_URL=memory://."""
    return CliRunner().invoke(app, args, input=TURN, env={"TURNLOG_URL": "memory://"})


@pytest.mark.parametrize("args", [("append", "t", "x"), ("append", "t"), ("import", "t")])
def test_nothing_is_stored_in_a_memory_that_ends(invoke: Invoke, args: tuple[str, ...]) -> None:
    """What would be gone when the command ends is not stored: a wrong call, named either way."""
    for done in (invoke("--root", "memory://", *args, input=TURN), from_memory(*args)):
        assert (done.exit_code, done.stdout) == (2, "")
        assert "memory:// ends with the command; give a folder as --root" in done.stderr


@pytest.mark.parametrize("kind", ["missing", "file"])
@pytest.mark.parametrize(
    "command",
    [
        *("ls", "ls s", "show t", "search x", "search x t", "export t", "doctor", "tail t"),
        "doctor --repair",
    ],
)
def test_a_named_root_that_is_no_folder(
    invoke: Invoke, root: Path, tmp_path: Path, kind: str, command: str
) -> None:
    """A root that was named, and is not there or is a file, is an error; nothing is made."""
    other = tmp_path / "other"
    for place, done in (
        (root, lambda: invoke(*command.split())),
        (other, lambda: invoke("--root", other, *command.split())),
    ):
        if kind == "file":
            place.write_bytes(b"mine")
        ended = done()
        assert (ended.exit_code, ended.stdout) == (1, "")
        assert ended.stderr == f"Error: {place}: there is no such folder\n"
        assert place.exists() == (kind == "file")


@pytest.mark.parametrize("command", ["append t", "import t"])
def test_a_named_root_is_made_by_what_writes(invoke: Invoke, root: Path, command: str) -> None:
    """An append and an import make the root that they are given."""
    assert invoke(*command.split(), input=TURN).exit_code == 0
    assert (root / "default" / "t.jsonl").exists()


def test_an_unknown_store_is_an_error(invoke: Invoke) -> None:
    """A URL that no store is known by is told in a line."""
    done = invoke("--root", "nowhere://x", "ls")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: location 'nowhere://…': no store is known")


@pytest.mark.parametrize("name", ["", "a/b/c", "../x", "/x", "x/", ".x", "a\x1bb"])
@pytest.mark.parametrize("command", ["show", "append", "tail", "export", "import", "doctor", "rm"])
def test_a_name_that_is_not_plain_is_refused(
    invoke: Invoke, root: Path, command: str, name: str
) -> None:
    """A bad name is a wrong call, told with the rule that it broke; nothing is made (R10, C16)."""
    done = invoke(command, name)
    assert done.exit_code == 2
    assert re.search(r"Error: Invalid value for '.*THREAD.*': (id|namespace) '", done.stderr)
    assert "\x1b" not in done.stderr
    assert not root.exists()


@pytest.mark.parametrize("command", ["show", "tail", "export", "doctor", "search x", "rm --yes"])
def test_a_thread_that_does_not_exist_is_an_error(
    invoke: Invoke, stored: Path, command: str
) -> None:
    """A command on a thread that is not there fails, says so, and makes none."""
    done = invoke(*command.split(), "support/nobody")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: thread 'nobody' in namespace 'support': there is no such thread; "
        "`turnlog ls` lists what there is\n"
    )
    assert not (stored / "support" / "nobody.jsonl").exists()


# ---- ls ----


def test_ls_in_a_pipe(invoke: Invoke, stored: Path) -> None:
    """In a pipe, ls gives the name, the bytes and the time of each thread, between tabs."""
    done = invoke("ls")
    size = (stored / "default" / "a.jsonl").stat().st_size
    assert re.fullmatch(rf"default/a\t{size}\t{AT}", done.stdout.splitlines()[0])
    names = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert names == ["default/a", "default/b", "support/user-42"]


def test_ls_of_a_namespace(invoke: Invoke, stored: Path) -> None:
    """Listing a namespace lists its threads only, and of one that is not there none."""
    assert stored.exists()
    assert [item["id"] for item in lines(invoke("ls", "support", "--json").stdout)] == ["user-42"]
    assert (invoke("ls", "nobody").exit_code, invoke("ls", "nobody").output) == (0, "")


def test_ls_as_json(invoke: Invoke, stored: Path) -> None:
    """With --json, ls gives an object a line."""
    found = lines(invoke("ls", "--json").stdout)[2]
    assert list(found) == ["namespace", "id", "size", "modified"]
    assert found["size"] == (stored / "support" / "user-42.jsonl").stat().st_size
    assert re.fullmatch(AT, str(found["modified"]))


@pytest.mark.parametrize("command", ["ls", "ls --json", "doctor"])
def test_without_a_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Where no root is named, and there is none yet, there are no threads; none is made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TURNLOG_URL", raising=False)
    done = CliRunner().invoke(app, command.split())
    assert (done.exit_code, done.output) == (0, "")
    assert list(tmp_path.iterdir()) == []


# ---- show and tail ----


def test_show_in_a_pipe(invoke: Invoke, stored: Path) -> None:
    """In a pipe, show gives role and time, the text as it is, and an empty line for each turn."""
    assert stored.exists()
    out = invoke("show", "a").stdout
    assert re.fullmatch(rf"user  {AT}\nThe invoice\nis WRONG.\n\nassistant  {AT}\nIs it\?\n\n", out)


def test_show_of_a_half_character(invoke: Invoke, stored: Path) -> None:
    """A half character is U+FFFD in a pipe, and its escape in JSON (C13)."""
    assert stored.exists()
    assert "half \ufffd here" in invoke("show", "support/user-42").stdout
    as_json = invoke("show", "support/user-42", "--json").stdout
    assert "half \\ud83d here" in as_json
    assert lines(as_json)[1]["content"] == HALF


def test_show_as_json(invoke: Invoke, stored: Path) -> None:
    """With --json, show gives role, content, time and meta of a turn a line."""
    assert stored.exists()
    found = lines(invoke("show", "support/user-42", "--json").stdout)[0]
    assert list(found) == ["role", "content", "at", "meta"]
    assert found["meta"] == {"name": "Zoë"}


@pytest.mark.parametrize(("last", "shown"), [(0, 0), (1, 1), (2, 2), (9, 2)])
def test_show_the_last_turns(invoke: Invoke, stored: Path, last: int, shown: int) -> None:
    """--last gives the last turns, or all where there are fewer; tail -n does so too."""
    assert stored.exists()
    texts = ["The invoice\nis WRONG.", "Is it?"][2 - shown :]
    for args in (("show", "--last"), ("tail", "-n")):
        done = invoke(*args, last, "a", "--json")
        assert done.exit_code == 0
        assert [item["content"] for item in lines(done.stdout)] == texts


def test_tail_shows_ten_turns(invoke: Invoke, root: Path) -> None:
    """A tail shows the last ten turns unless told otherwise."""
    with Memory(root) as memory:
        memory.open("t").extend(Message("user", str(n)) for n in range(12))
    assert [item["content"] for item in lines(invoke("tail", "t", "--json").stdout)] == [
        *map(str, range(2, 12))
    ]


def test_an_empty_thread_is_a_thread(invoke: Invoke, root: Path) -> None:
    """A file of no bytes is an empty thread, not a missing one (C20)."""
    put(root, "empty", b"")
    for command in ("show", "tail", "export", "doctor"):
        assert (invoke(command, "empty").exit_code, invoke(command, "empty").output) == (0, "")


# ---- append ----


def test_append_a_text(invoke: Invoke, root: Path) -> None:
    """An append makes the thread, keeps role and meta, and is quiet in a pipe."""
    done = invoke(
        "append", "s/t", "Hi", "--role", "assistant", "--meta", "a=b=c", "--meta", "model="
    )
    assert (done.exit_code, done.output) == (0, "")
    with Memory(root, read_only=True) as memory:
        (turn,) = memory.open("t", "s").messages()
    assert (turn.role, turn.content, turn.meta) == ("assistant", "Hi", {"a": "b=c", "model": ""})


@pytest.mark.parametrize(
    ("given", "kept"), [("Hi\n", "Hi"), ("Hi", "Hi"), ("Hi\n\n", "Hi\n"), ("\n", ""), ("é", "é")]
)
def test_append_standard_input(invoke: Invoke, root: Path, given: str, kept: str) -> None:
    """Without TEXT, standard input is the turn, less one newline at its end."""
    assert invoke("append", "t", input=given).exit_code == 0
    assert contents(root, "t") == [kept]


@pytest.mark.parametrize(
    ("args", "given", "status", "told"),
    [
        ([], b"", 2, "standard input is empty"),
        ([], b"caf\xe9", 1, "not UTF-8 (byte 3)"),
        (["caf\udce9"], b"", 2, "not UTF-8"),
        (["x", "--meta", "name"], b"", 2, "'name' is not of the form KEY=VALUE"),
        (["x", "--meta", "=name"], b"", 2, "not of the form KEY=VALUE"),
        (["x", "--role", "king"], b"", 2, "'king'"),
        (["x", "--expect", "-1"], b"", 2, "-1"),
        (["x", "--key", ""], b"", 1, "the key is ''"),
    ],
)
def test_append_refuses(  # noqa: PLR0913, PLR0917 - a case has four parts
    invoke: Invoke, root: Path, args: list[str], given: bytes, status: int, told: str
) -> None:
    """What cannot be appended is refused before anything is written."""
    done = invoke("append", "t", *args, input=given)
    assert done.exit_code == status
    assert told in done.stderr
    assert not root.exists()


def test_append_with_a_key_is_done_once(invoke: Invoke, root: Path) -> None:
    """A turn with a key that the thread has is not appended again; that is no error."""
    for _ in range(2):
        assert invoke("append", "t", "Hi", "--key", "k").exit_code == 0
    assert contents(root, "t") == ["Hi"]


def test_append_reads_no_whole_thread(
    invoke: Invoke, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append to a thread of any length loads nothing but its end, unless it has to (C41)."""
    assert invoke("append", "t", "1").exit_code == 0
    monkeypatch.setattr(JsonlStore, "load", pytest.fail)
    assert invoke("append", "t", "2").exit_code == 0
    monkeypatch.undo()
    assert contents(root, "t") == ["1", "2"]


def test_append_expects(invoke: Invoke, root: Path) -> None:
    """With --expect, a thread of another length is refused, and says how to see what came (C23)."""
    assert invoke("append", "t", "1", "--expect", "0").exit_code == 0
    done = invoke("append", "t", "2", "--expect", "0")
    assert done.exit_code == 1
    assert "it holds 1 turns, not the 0 expected; nothing was written" in done.stderr
    assert "turnlog show default/t" in done.stderr
    assert contents(root, "t") == ["1"]


def test_append_to_a_torn_thread_tells(invoke: Invoke, hurt: Path) -> None:
    """What an append sets aside, and what it finds damaged, is told in a line each (C01, C19)."""
    done = invoke("append", "hurt", "The third.")
    assert done.exit_code == 0
    told = done.stderr.splitlines()
    assert [line.partition(":")[0] for line in told] == ["Warning", "Warning"]
    assert "hurt.jsonl.torn" in done.stderr
    assert "turnlog doctor" in done.stderr
    assert "py" not in done.stderr.lower()
    assert contents_ignoring(hurt) == ["The first.", "The second.", "The third."]


def contents_ignoring(file: Path) -> list[str]:
    """Give the texts of the lines of a file that are JSON."""
    lines_of_turns = [line for line in file.read_bytes().splitlines() if line.startswith(b"{")]
    return [json.loads(line)["content"] for line in lines_of_turns]


# ---- search ----


INVOICE, WRONG = "default/a:0: user: The invoice", "default/a:0: user: is WRONG."
IS_IT, NO_WORD = "default/a:1: assistant: Is it?", "default/b:0: user: No word of it."
STREET, RIGHT = "support/user-42:0: user: Straße, wrong?", "support/user-42:0: user: No, right."


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["wrong"], [WRONG, STREET]),
        (["WRONG", "--case-sensitive"], [WRONG]),
        (["strasse, W"], [STREET]),
        (["S", "support/user-42"], [STREET]),
        (["i", "a"], [INVOICE, WRONG, IS_IT]),
        (["i", "a", "--role", "assistant"], [IS_IT]),
        (["wrong", "b", "support/user-42"], [STREET]),
        (["wrong", "--namespace", "default"], [WRONG]),
        (["W.*g", "--regex"], [WRONG, STREET]),
        (["W.*G", "--regex", "--case-sensitive"], [WRONG]),
        (["^is w", "--regex"], [WRONG]),
        (["invoice$", "--regex"], [INVOICE]),
        (["invoice\nis"], [INVOICE]),
        (["."], [WRONG, NO_WORD, RIGHT]),
        (["", "a"], [INVOICE, WRONG, IS_IT]),
        (["^", "--regex", "--role", "assistant"], [IS_IT]),
        (["nobody said this"], []),
    ],
)
def test_search(invoke: Invoke, stored: Path, args: list[str], found: list[str]) -> None:
    """A search gives each line that holds the pattern, and exit status 1 where none does."""
    assert stored.exists()
    done = invoke("search", *args)
    assert done.stdout.splitlines() == found
    assert (done.exit_code, done.stderr) == (0 if found else 1, "")


def test_search_as_json(invoke: Invoke, stored: Path) -> None:
    """With --json, search gives an object for each line that is found."""
    assert stored.exists()
    (found,) = lines(invoke("search", "straße", "--json").stdout)
    assert list(found) == ["namespace", "id", "index", "role", "at", "line"]
    assert (found["index"], found["line"]) == (0, "Straße, wrong?")
    (half,) = lines(invoke("search", "half", "--json").stdout)
    assert half["line"] == HALF


@pytest.mark.parametrize(
    "args", [["(", "--regex"], ["a{99999999999}", "--regex"], ["x", "a", "--namespace", "b"], []]
)
def test_search_that_makes_no_sense(invoke: Invoke, stored: Path, args: list[str]) -> None:
    """A bad regular expression, or threads and a namespace, is a wrong call: exit status 2."""
    assert stored.exists()
    done = invoke("search", *args)
    assert (done.exit_code, done.stdout) == (2, "")


def test_search_goes_on_after_a_thread_that_cannot_be_read(invoke: Invoke, stored: Path) -> None:
    """One thread that cannot be read is told of, and fails the search, but does not stop it."""
    (stored / "default" / "a.jsonl").unlink()
    (stored / "default" / "a.jsonl").mkdir()
    done = invoke("search", "wrong", "a", "nobody", "support/user-42")
    assert (done.exit_code, done.stdout) == (1, f"{STREET}\n")
    first, second = done.stderr.splitlines()
    assert re.match("Error: thread 'a' in namespace 'default': .*regular file", first)
    assert second.startswith("Error: thread 'nobody' in namespace 'default': there is no such")


# ---- export and import ----


@pytest.mark.parametrize("name", ["t.jsonl", "t.md", "T.JSON"])
def test_export_and_import_by_the_ending(
    invoke: Invoke, stored: Path, tmp_path: Path, name: str
) -> None:
    """The format is that of the file's ending; what was exported is imported again."""
    file = tmp_path / name
    assert invoke("export", "a", "-o", file).exit_code == 0
    assert invoke("import", "copy/a", file).output == ""
    assert contents(stored, "a", "copy") == contents(stored, "a")
    assert file.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == [name]


def test_export_is_the_file_itself(invoke: Invoke, stored: Path) -> None:
    """An export to a pipe is jsonl unless told otherwise, byte for byte as the file."""
    file = stored / "support" / "user-42.jsonl"
    for args in ([], ["-o", "-"], ["--format", "jsonl"]):
        assert invoke("export", "support/user-42", *args).stdout_bytes == file.read_bytes()


def test_import_from_standard_input(invoke: Invoke, stored: Path) -> None:
    """Without FILE, or with -, what is imported comes from standard input."""
    data = invoke("export", "a", "--format", "markdown").stdout_bytes
    assert invoke("import", "b1", "--format", "markdown", input=data).exit_code == 0
    assert invoke("import", "b2", "-", "--format", "markdown", input=data).exit_code == 0
    assert contents(stored, "b1") == contents(stored, "b2") == contents(stored, "a")
    with Memory(stored, read_only=True) as memory:
        assert memory.open("b1").messages() == memory.open("a").messages()


@pytest.mark.parametrize("form", ["markdown", "openai"])
def test_export_says_what_it_cannot_keep(invoke: Invoke, stored: Path, form: str) -> None:
    """Half characters are U+FFFD in Markdown and openai, and it is said (C13)."""
    assert stored.exists()
    done = invoke("export", "support/user-42", "--format", form)
    assert "half \ufffd here" in done.stdout
    assert done.stderr == "half characters in 1 turn were written as U+FFFD\n"
    assert invoke("export", "a", "--format", form).stderr == ""


def test_export_does_not_overwrite(invoke: Invoke, stored: Path, tmp_path: Path) -> None:
    """A file that is there stays as it is, unless --force is given; links are followed."""
    assert stored.exists()
    file, link = tmp_path / "a.jsonl", tmp_path / "link.jsonl"
    file.write_text("mine")
    link.symlink_to(file)
    for target in (file, link):
        done = invoke("export", "a", "-o", target)
        assert (done.exit_code, file.read_text()) == (1, "mine")
        assert done.stderr == f"Error: {target}: the file exists; give --force to replace it\n"
    assert invoke("export", "a", "-o", link, "--force").exit_code == 0
    assert link.is_symlink()
    assert file.read_bytes() == (stored / "default" / "a.jsonl").read_bytes()


def test_export_replaces_nothing_but_files(invoke: Invoke, stored: Path, tmp_path: Path) -> None:
    """A folder or a device is not replaced, whatever is given; a missing folder is an error."""
    assert stored.exists()
    done = invoke("export", "a", "-o", "/dev/null", "--force", "--format", "jsonl")
    assert (done.exit_code, done.stderr) == (
        1,
        "Error: /dev/null: it is there, and is not a regular file\n",
    )
    done = invoke("export", "a", "-o", tmp_path / "none" / "a.md")
    assert done.exit_code == 1
    assert "No such file or directory" in done.stderr


STEERING = "\x1b[31m\nx"


@pytest.mark.parametrize(
    ("args", "given", "status"),
    [
        (["import", "t", "none.md"], None, 1),
        (["import", "t", "it.txt"], None, 2),
        (["import", "t", "empty.md"], b"", 1),
        (["import", "t", "bad.jsonl"], b"bad", 1),
        (["import", "t", "bad.md"], b"bad", 1),
        (["import", "t", "bad.json"], b"bad", 1),
        (["export", "a", "-o", "it.txt"], None, 2),
        (["export", "a", "-o", "mine.md"], b"mine", 1),
        (["export", "a", "-o", "none/a.md"], None, 1),
        (["export", "a", "--format", "jsonl", "-o", "slash/"], None, 1),
        (["export", "a", "--format", "jsonl", "--force", "-o", "."], None, 1),
    ],
)
def test_the_name_of_a_file_does_not_steer(  # noqa: PLR0913, PLR0917 - a case has three parts
    invoke: Invoke, stored: Path, tmp_path: Path, args: list[str], given: bytes | None, status: int
) -> None:
    """Whatever is wrong with a file, its name is escaped in what is said of it, on its line."""
    assert stored.exists()
    folder = tmp_path / STEERING
    folder.mkdir()
    if given is not None:
        (folder / args[-1]).write_bytes(given)
    done = invoke(*args[:-1], f"{folder}/{args[-1]}")
    assert (done.exit_code, done.stdout) == (status, "")
    assert "\x1b" not in done.stderr
    assert "/\\x1b[31m\\nx" in done.stderr
    assert [path.name for path in folder.iterdir()] == [args[-1]] * (given is not None)


@pytest.mark.parametrize("command", ["export", "import"])
def test_a_format_that_cannot_be_guessed(
    invoke: Invoke, stored: Path, tmp_path: Path, command: str
) -> None:
    """A file of another ending needs --format."""
    assert stored.exists()
    args = ["a", "-o", tmp_path / "x.txt"] if command == "export" else ["a", tmp_path / "x.txt"]
    done = invoke(command, *args)
    assert done.exit_code == 2
    assert "x.txt: its ending is none of .jsonl, .md, .json; give --format" in done.stderr


def test_import_into_a_thread_that_has_turns(invoke: Invoke, stored: Path) -> None:
    """It is refused, unless --append is given."""
    data = '{"content":"More."}\n'
    done = invoke("import", "a", input=data)
    assert done.exit_code == 1
    assert "it has 2 turns, and nothing was written; give --append" in done.stderr
    assert len(contents(stored, "a")) == 2
    assert invoke("import", "a", "--append", input=data).exit_code == 0
    assert contents(stored, "a")[2:] == ["More."]


def test_import_of_bad_input_writes_nothing(invoke: Invoke, root: Path) -> None:
    """What cannot be read is refused with its lines, and nothing of the rest is there."""
    done = invoke("import", "t", input=b'{"content":"x"}\n\x1b[31m\n{"content":"y"}\n')
    assert done.exit_code == 1
    assert done.stderr == ("Error: standard input: nothing was imported\nline 2: it is not JSON\n")
    assert not root.exists()


@pytest.mark.parametrize("form", ["jsonl", "openai", "markdown"])
def test_import_of_nothing_is_refused(invoke: Invoke, root: Path, form: str) -> None:
    """An input of no bytes is what a command that failed wrote: it is refused, in each format."""
    done = invoke("import", "t", "--format", form, input=b"")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "Error: standard input: it is empty, and nothing was imported\n"
    assert not root.exists()


def test_import_says_what_it_left_out(invoke: Invoke, root: Path) -> None:
    """Messages of tools and without text are left out of an openai import, and it is said."""
    given = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "42"},
    ]
    done = invoke("import", "t", "--format", "openai", input=json.dumps(given))
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "left out what is no text, of 2 messages\n"
    assert contents(root, "t") == ["Hi"]


def test_import_is_one_append(invoke: Invoke, root: Path) -> None:
    """What is imported is one unit in the file: all or none, also over a crash (Contract 4)."""
    invoke("import", "t", input='{"content":"1"}\n{"content":"2"}\n{"content":"3"}\n')
    written = lines((root / "default" / "t.jsonl").read_text())
    assert [item.get("more", item.get("unit")) for item in written] == [True, True, 3]


def test_import_of_a_missing_file(invoke: Invoke, root: Path) -> None:
    """A file that is not there is an error in one line."""
    done = invoke("import", "t", "none.md")
    assert (done.exit_code, done.stderr) == (1, "Error: none.md: No such file or directory\n")
    assert not root.exists()


# ---- doctor ----


def test_doctor_finds_nothing(invoke: Invoke, stored: Path) -> None:
    """Where all is sound, doctor is quiet in a pipe, and its exit status is 0."""
    assert stored.exists()
    for args in ([], ["a"], ["a", "--repair"]):
        done = invoke("doctor", *args)
        assert (done.exit_code, done.output) == (0, "")


def test_doctor_finds_what_is_wrong(invoke: Invoke, stored: Path, hurt: Path) -> None:
    """The doctor tells bad lines by their place, torn ends and missing newlines (C19)."""
    put(stored, "cut", b'{"content":"x"}')
    before = hurt.read_bytes()
    done = invoke("doctor")
    assert (done.exit_code, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        "default/cut: its last line lacks the newline",
        "default/hurt: line 2, byte 39, 4 bytes: it is NUL bytes",
        "default/hurt: it ends in 35 bytes of an append that never finished",
    ]
    assert hurt.read_bytes() == before


def test_doctor_notes_strays(invoke: Invoke, stored: Path) -> None:
    """What belongs to no thread is noted, and is nothing wrong."""
    (stored / "default" / "notes.txt").write_text("mine")
    done = invoke("doctor")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("default/notes.txt: no thread's: ")
    (found,) = [item for item in lines(invoke("doctor", "--json").stdout) if "stray" in item]
    assert found["stray"] == "default/notes.txt"
    assert invoke("doctor", "a").output == ""


def test_doctor_repairs(invoke: Invoke, stored: Path, hurt: Path) -> None:
    """--repair leaves the turns, and says how many bytes were set aside, and where (Contract 6)."""
    done = invoke("doctor", "--repair")
    assert done.exit_code == 0
    aside = hurt.with_name("hurt.jsonl.torn").stat().st_size
    assert done.stdout.splitlines()[-1] == (
        f"default/hurt: repaired; {aside} bytes set aside in default/hurt.jsonl.torn"
    )
    assert contents(stored, "hurt") == ["The first.", "The second."]
    assert invoke("doctor").output == ""


def test_doctor_removes_what_a_repair_left(invoke: Invoke, stored: Path) -> None:
    """What a repair left that did not finish goes with the next one, also of a sound thread."""
    left = stored / "default" / ".a.jsonl.new"
    left.write_bytes(b"half")
    assert "default/.a.jsonl.new: " in invoke("doctor").stdout
    assert invoke("doctor", "--repair").exit_code == 0
    assert not left.exists()
    assert invoke("doctor").output == ""


def test_a_stray_is_a_line(invoke: Invoke, stored: Path) -> None:
    """The name of a stray that has a newline or an escape in it is on one line, escaped."""
    (stored / "default" / "a\nb\x1b[31m.txt").write_text("mine")
    (line,) = invoke("doctor").stdout.splitlines()
    assert line.startswith("default/a\\nb\\x1b[31m.txt: no thread's: ")


def test_doctor_says_what_it_cannot_repair(invoke: Invoke, root: Path) -> None:
    """A turn that gives a key twice stays, and so does the exit status."""
    data = b'{"content":"x","content":"y"}\n'
    file = put(root, "t", data)
    before = written(file)
    done = invoke("doctor", "--repair")
    assert done.exit_code == 1
    assert "given more than once" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("default/t: not repaired: which value")
    assert [path.name for path in file.parent.iterdir()] == ["t.jsonl"]
    assert (file.read_bytes(), written(file)) == (data, before)


def written(file: Path) -> tuple[int, ...]:
    """Tell whether, and when, a file was written; not when it was read."""
    found = file.stat()
    return found.st_ino, found.st_mode, found.st_mtime_ns, found.st_ctime_ns


def test_doctor_as_json(invoke: Invoke, stored: Path, hurt: Path) -> None:
    """With --json, doctor gives an object for each thread, sound or not."""
    assert stored.exists()
    found = lines(invoke("doctor", "--json").stdout)
    assert [(item["id"], item["sound"]) for item in found] == [
        ("a", True),
        ("b", True),
        ("hurt", False),
        ("user-42", True),
    ]
    assert found[2] == {
        "namespace": "default",
        "id": "hurt",
        "turns": 2,
        "sound": False,
        "repaired": False,
        "torn": 35,
        "unterminated": False,
        "problems": [{"line": 2, "offset": 39, "length": 4, "reason": "it is NUL bytes"}],
        "set_aside": 0,
    }
    (mended,) = lines(invoke("doctor", "hurt", "--repair", "--json").stdout)
    aside = hurt.with_name("hurt.jsonl.torn").stat().st_size
    assert (mended["sound"], mended["repaired"], mended["set_aside"]) == (False, True, aside)


def test_doctor_goes_on_after_a_thread_that_cannot_be_read(invoke: Invoke, stored: Path) -> None:
    """One thread that cannot be read is told of, and the others are examined all the same."""
    (stored / "default" / "dir.jsonl").mkdir()
    put(stored, "cut", b'{"content":"x"}')
    done = invoke("doctor", "dir", "nobody", "cut")
    assert done.exit_code == 1
    assert done.stdout == "default/cut: its last line lacks the newline\n"
    first, second = done.stderr.splitlines()
    assert first.startswith("Error: thread 'dir' in namespace 'default': ")
    assert second.startswith("Error: thread 'nobody' in namespace 'default': there is no such")
    found = lines(invoke("doctor", "dir", "--json").stdout)
    assert str(found[0]["error"]).startswith("thread 'dir'")


def test_doctor_of_a_store_without_files(invoke: Invoke) -> None:
    """Another store has nothing to examine, and that is all right."""
    done = invoke("--root", "memory://", "doctor")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "nothing to examine: this memory has no files\n"


# ---- rm ----


def test_rm_without_a_terminal_needs_yes(invoke: Invoke, stored: Path) -> None:
    """Where nobody can be asked, nothing is deleted without --yes."""
    done = invoke("rm", "a", input="y\n")
    assert done.exit_code == 1
    assert "no terminal to ask on, and nothing was deleted; give --yes" in done.stderr
    assert len(contents(stored, "a")) == 2


def test_rm_deletes_what_is_there(invoke: Invoke, stored: Path) -> None:
    """Each thread that is there is deleted; one that is not fails the command in the end."""
    done = invoke("rm", "a", "nobody", "support/user-42", "--yes")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "'nobody'" in done.stderr
    assert [item["id"] for item in lines(invoke("ls", "--json").stdout)] == ["b"]
    assert not (stored / "default" / "a.jsonl").exists()


def test_rm_goes_on_after_a_thread_that_fails(invoke: Invoke, stored: Path) -> None:
    """A thread that cannot be deleted is told of, the others are deleted, and the status is 1."""
    (stored / "default" / "a.jsonl").unlink()
    (stored / "default" / "a.jsonl").mkdir()
    done = invoke("rm", "a", "support/user-42", "--yes")
    assert (done.exit_code, done.stdout) == (1, "")
    assert re.fullmatch(r"Error: thread 'a' in namespace 'default': .*\n", done.stderr)
    assert [item["id"] for item in lines(invoke("ls", "--json").stdout)] == ["b"]


# ---- completion ----


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(invoke: Invoke, shell: str) -> None:
    """The script of each shell asks turnlog for what it completes."""
    done = invoke("completion", shell)
    assert done.exit_code == 0
    assert f"_TURNLOG_COMPLETE={shell}_complete" in done.stdout


def test_there_are_three_shells(invoke: Invoke) -> None:
    """Another shell is a wrong call."""
    assert invoke("completion", "csh").exit_code == 2
