"""The command as a process: closed pipes, Ctrl-C, locales, terminals, shells, a missing extra."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import COMMAND, at_terminal, environment, piped, terminal, unmeasured
from stored import put

from turnlog import Memory

STEERING = "red \x1b[31m bell \x07 title \x1b]0;x\x07 back\r csi \x9b2J turned \u202e\tand\nkept"
ESCAPED = (
    "red \\x1b[31m bell \\x07 title \\x1b]0;x\\x07 back\\r csi \\x9b2J turned \\u202e\tand\nkept"
)


# ---- output that nobody reads, or that cannot be written ----


@pytest.mark.parametrize(
    "command", ["show", "show --json", "search turn", "export", "tail -n 99999"]
)
@pytest.mark.usefixtures("big")
def test_a_closed_pipe_ends_it_quietly(root: Path, command: str) -> None:
    """`| head -1` gets its line, and the command ends without a word."""
    name, *options = command.split()
    args = [*options, "big"] if name == "search" else ["big", *options]
    with subprocess.Popen(
        [*COMMAND, name, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(root),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_ls_into_a_closed_pipe(root: Path) -> None:
    """Listing many threads ends when its reader has gone, like any other command."""
    for n in range(2000):
        put(root, f"thread-{n}", b'{"content":"x"}\n')
    done = subprocess.run(
        ["sh", "-c", '"$@" ls | head -n 1', "sh", *COMMAND],
        env=environment(root),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith(b"default/thread-0\t")
    assert done.stderr == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.parametrize("args", ["show t", "--help", "show --help", "--version"])
def test_output_that_cannot_be_written_is_an_error(root: Path, args: str) -> None:
    """Where the output's disk is full, the command says so in a line and fails."""
    put(root, "t", b'{"content":"x"}\n')
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, *args.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(root),
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (1, b"Error: No space left on device\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-"])
def test_closed_streams(root: Path, closed: str) -> None:
    """A command whose standard streams were closed works without them."""
    script = f'"$@" append t x {closed} && "$@" show t {closed}'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND],
        env=environment(root),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    with Memory(root, read_only=True) as memory:
        assert len(memory.open("t")) == 1


@pytest.mark.parametrize("command", ["append", "import"])
def test_a_closed_standard_input_is_no_input(root: Path, command: str) -> None:
    """A command that needs its standard input says that there is none."""
    done = subprocess.run(
        ["sh", "-c", f'"$@" {command} t <&-', "sh", *COMMAND],
        env=environment(root),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert b"there is no standard input" in done.stderr


def test_rm_asks_nobody_where_standard_input_is_closed(root: Path) -> None:
    """Where standard input was closed there is nobody to ask, and nothing is deleted."""
    file = put(root, "t", b'{"content":"x"}\n')
    done = subprocess.run(
        ["sh", "-c", '"$@" rm t <&-', "sh", *COMMAND],
        env=environment(root),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"Error: there is no terminal to ask on, and nothing was deleted")
    assert file.exists()


def test_an_export_that_fails_leaves_nothing(root: Path, tmp_path: Path, big: Path) -> None:
    """An export that cannot be written to its end leaves no file, and not the one beside it."""
    folder = tmp_path / "out"
    folder.mkdir()

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(
        [*COMMAND, "export", "big", "-o", str(folder / "x.md")],
        env=unmeasured(root),
        capture_output=True,
        check=False,
        timeout=60,
        preexec_fn=small,
    )
    assert big.stat().st_size > 100_000
    assert (done.returncode, done.stderr) == (1, b"Error: File too large\n")
    assert list(folder.iterdir()) == []


# ---- Ctrl-C ----


@pytest.mark.parametrize(
    ("command", "shown"),
    [("append t", "end with Ctrl-D"), ("import t", "end with Ctrl-D"), ("rm t", "[y/N]: ")],
)
def test_ctrl_c(root: Path, command: str, shown: str) -> None:
    """Ctrl-C ends a command that waits for a person: status 130, no traceback, nothing done."""
    file = put(root, "t", b'{"content":"x"}\n')
    with terminal(root, *command.split()) as person:
        person.wait_for(shown)
        status, seen = person.interrupt()
    assert (status, "Traceback" in seen) == (130, False)
    assert file.read_bytes() == b'{"content":"x"}\n'


def test_ctrl_d_at_a_question_is_no(root: Path) -> None:
    """The end of the input is not a yes."""
    file = put(root, "t", b'{"content":"x"}\n')
    with terminal(root, "rm", "t") as person:
        person.wait_for("[y/N]: ")
        person.type("\x04")
        assert person.end()[0] == 1
    assert file.exists()


def test_ctrl_c_in_the_middle_of_work(root: Path, big: Path) -> None:
    """Ctrl-C while turns run over the screen ends the command: status 130, no traceback."""
    assert big.exists()
    with terminal(root, "show", "big") as person:
        person.wait_for("This is turn 100.")
        status, seen = person.interrupt()
    assert (status, "Traceback" in seen, "turn 99999" in seen) == (130, False, False)


# ---- a terminal ----


@pytest.fixture
def steering(root: Path) -> Path:
    """Give a root with a thread whose text steers terminals."""
    with Memory(root) as memory:
        memory.open("t").append(STEERING)
    return root


@pytest.mark.parametrize("command", ["show", "tail", "export --format markdown"])
def test_a_text_does_not_steer_the_terminal(steering: Path, command: str) -> None:
    """Control characters are escaped for a person; newlines and tabs stay."""
    status, seen = at_terminal(steering, *command.split(), "t", env={"NO_COLOR": "1"})
    assert status == 0
    assert ESCAPED in seen
    assert "\x1b" not in seen
    assert STEERING in piped(steering, *command.split(), "t").out


def test_what_search_finds_does_not_steer_the_terminal(steering: Path) -> None:
    """The line and the match are escaped for a person, also where the match is what steers."""
    first, second = ESCAPED.split("\n")
    _, seen = at_terminal(steering, "search", "bell", env={"NO_COLOR": "1"})
    assert seen == f"default/t:0: user: {first}\n"
    _, seen = at_terminal(steering, "search", "--regex", r"\x1b|kept", env={"NO_COLOR": "1"})
    assert seen == f"default/t:0: user: {first}\ndefault/t:0: user: {second}\n"
    raw, _ = STEERING.split("\n")
    assert piped(steering, "search", "bell").out == f"default/t:0: user: {raw}\n"


def test_json_at_a_terminal(steering: Path) -> None:
    """With --json a terminal gets the same values as a pipe; JSON's escapes keep it safe."""
    for args in (("show", "t"), ("tail", "t"), ("search", "bell"), ("ls",), ("doctor",)):
        status, seen = at_terminal(steering, *args, "--json")
        assert (status, "\x1b" in seen) == (0, False)
        there = piped(steering, *args, "--json").out
        assert list(map(json.loads, seen.splitlines())) == list(map(json.loads, there.splitlines()))
        assert "\u202e" not in seen


def test_an_error_does_not_steer_the_terminal(root: Path) -> None:
    """What an error quotes is escaped."""
    status, seen = at_terminal(root, "import", "t", "\x1b[31m.md")
    assert (status, seen) == (1, "Error: \\x1b[31m.md: No such file or directory\n")


def test_a_root_that_is_missing_does_not_steer_the_terminal(root: Path) -> None:
    """The name of a root that is not there is escaped, on its line."""
    status, seen = at_terminal(root / "\x1b[31m\nx", "ls")
    assert (status, seen) == (1, f"Error: {root}/\\x1b[31m\\nx: there is no such folder\n")


@pytest.mark.parametrize(
    ("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours(root: Path, env: dict[str, str], coloured: bool) -> None:  # noqa: FBT001
    """A person gets colours, unless NO_COLOR is set or the terminal has none; a match is marked."""
    put(root, "t", b'{"content":"one two"}\n')
    for args in (("show", "t"), ("ls",), ("search", "two"), ("tail", "t")):
        _, seen = at_terminal(root, *args, env=env)
        assert ("\x1b[" in seen) == coloured
    _, seen = at_terminal(root, "search", "two", env=env)
    assert seen.endswith("one \x1b[1;31mtwo\x1b[0m\n" if coloured else "one two\n")
    assert "\x1b" not in piped(root, "search", "two", env={"FORCE_COLOR": "1"}).out


def test_a_person_types_a_turn(root: Path) -> None:
    """Without TEXT, append says what to do, and takes what is typed until Ctrl-D."""
    with terminal(root, "append", "s/t", "--key", "k") as person:
        person.wait_for("type the turn, end with Ctrl-D\n")
        person.type("Two\nlines\n\x04")
        status, seen = person.end()
    assert status == 0
    assert seen.endswith("appended turn 0 of s/t\n")
    _, seen = at_terminal(root, "append", "s/t", "x", "--key", "k")
    assert seen == "nothing appended: the key is that of turn 0 of s/t\n"
    with Memory(root, read_only=True) as memory:
        assert [m.content for m in memory.open("t", "s").messages()] == ["Two\nlines"]


def test_a_person_sees_meta(root: Path) -> None:
    """A turn's meta is shown to a person beside its role and time, on their line."""
    with Memory(root) as memory:
        memory.open("t").append("Hi", meta={"name": "Zo\u00eb", "note": "two\nlines", "n": 3})
    _, seen = at_terminal(root, "show", "t", env={"NO_COLOR": "1"})
    head, text, *_ = seen.split("\n")
    assert head.endswith(" UTC  name=Zo\u00eb  note=two\\nlines  n=3")
    assert text == "Hi"
    assert "name" not in piped(root, "show", "t").out


def test_a_person_is_told_that_there_is_nothing(root: Path) -> None:
    """A person is told where there are no threads."""
    root.mkdir()
    assert at_terminal(root, "ls", "s") == (0, "there are no threads in 's'\n")
    assert at_terminal(root, "ls") == (0, f"there are no threads in '{root}'\n")


# ---- the process ----


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_utf_8_whatever_the_locale(root: Path, tmp_path: Path, locale: str) -> None:
    """Arguments, input, output and file names are UTF-8, whatever the locale is (C14)."""
    env = {"LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    assert piped(root, "append", "한/국", "국어", env=env).status == 0
    assert piped(root, "append", "한/국", env=env, stdin="Łódź".encode()).status == 0
    out = piped(root, "show", "한/국", env=env).out
    assert [line for line in out.split("\n") if line in {"국어", "Łódź"}] == ["국어", "Łódź"]
    assert piped(root, "search", "łódź", env=env).out == "한/국:1: user: Łódź\n"
    file = tmp_path / "한.md"
    assert piped(root, "export", "한/국", "-o", file, env=env).status == 0
    assert piped(root, "import", "국", file, env=env).status == 0
    assert "국어" in file.read_text(encoding="utf-8")
    assert piped(root, "show", "없", env=env).err.startswith("Error: thread '없' in namespace")


def test_it_is_installed_as_a_command(root: Path) -> None:
    """`turnlog` and `python -m turnlog` are the same command, of the same version."""
    script = Path(sys.executable).with_name("turnlog")
    done = subprocess.run(
        [script, "--version"], capture_output=True, check=True, timeout=60, env=environment(root)
    )
    assert done.stdout == piped(root, "--version").out.encode()
    assert done.stdout.startswith(b"turnlog, version ")


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra(missing: str) -> None:
    """Where click or rich is not installed, the command says in one line what to install."""
    code = f"import sys; sys.modules[{missing!r}] = None; from turnlog.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "ls"], capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == (
        "Error: the turnlog command needs click and rich; "
        "install them: pip install 'turnlog[cli]'\n"
    )


@pytest.mark.parametrize(
    ("code", "absent"),
    [("import turnlog, turnlog.cli", {"click", "rich"}), ("import turnlog.cli.app", {"rich"})],
)
def test_what_importing_brings(code: str, absent: set[str]) -> None:
    """Importing turnlog brings neither click nor rich, and a command in a pipe needs no rich."""
    code = f"import sys; {code}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, check=True, timeout=60, text=True
    )
    assert absent.isdisjoint(done.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("do", ["doctor"]),
        ("show --l", ["--last"]),
        ("show user", ["user-1", "user-2"]),
        ("show s", ["support/user-1"]),
        ("show support/", ["support/user-1"]),
        ("search x user-2", ["user-2"]),
        ("export none/", []),
        ("--root nowhere://x show u", []),
    ],
)
def test_bash_completes(root: Path, typed: str, completed: list[str]) -> None:
    """The script for bash, sourced by bash, completes commands, options and stored threads."""
    for name in ("user-1", "user-2"):
        put(root, name, b"")
    put(root, "user-1", b"", "support")
    words = ["turnlog", *typed.split()]
    script = f"""
        eval "$(turnlog completion bash)"
        COMP_WORDS=({" ".join(words)})
        COMP_CWORD={len(words) - 1}
        COMPREPLY=()
        _turnlog_completion turnlog
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=environment(root, PATH=path),
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.stdout.split() == completed


PLAIN = ["a.b@c+d=e,f%g_h-i", "\uad6d\uc5b4"]
FOR_A_SHELL = [
    *("$(touch made)", "`touch made`", "x;touch made", "x&touch made", "x|touch made"),
    *(
        "$HOME",
        "(x)",
        "a b",
        "a'b",
        'a"b',
        "a:b",
        "a*",
        "~a",
        "a#b",
        "a!b",
        "{a,b}",
        "[a]",
        "a>made",
    ),
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_what_is_completed_is_no_command(root: Path, tmp_path: Path) -> None:
    """No thread is offered whose name a shell would take for more than a word: nothing is run."""
    for name in [*PLAIN, *FOR_A_SHELL]:
        put(root, name, b"")
        put(root, "t", b"", name)
    script = """
        eval "$(turnlog completion bash)"
        COMP_WORDS=(turnlog show "$0")
        COMP_CWORD=2
        _turnlog_completion turnlog
        for each in "${COMPREPLY[@]}"; do eval "printf '%s\\n' $each"; done
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for begun in ("", "$", "x", "a", "("):
        done = subprocess.run(
            ["bash", "--norc", "-c", script, begun],
            env=environment(root, PATH=path),
            cwd=tmp_path,
            capture_output=True,
            check=False,
            text=True,
            timeout=60,
        )
        names = [*PLAIN, *(f"{name}/t" for name in PLAIN)]
        assert done.stderr == ""
        assert sorted(done.stdout.splitlines()) == sorted(
            name for name in names if name.startswith(begun)
        )
    assert not (tmp_path / "made").exists()


# A small process in between: a process's peak counts that of the one it was made by.
PEAK = """
import os, sys
process = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(process, 0)
print(usage.ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak is counted otherwise")
@pytest.mark.parametrize(
    "command",
    [
        "ls",
        "ls --json",
        "show big",
        "show big --json",
        "search turn",
        "tail big -n 1",
        "export big --format markdown",
        "export big --format openai",
    ],
)
def test_memory_is_bounded(root: Path, big: Path, command: str) -> None:
    """What is written goes out as it is read: no command holds a list of all its lines (C17)."""
    assert big.stat().st_size < 10_000_000
    for n in range(10_000 if command.startswith("ls") else 0):
        put(root, f"{n}-{'x' * 100}", b"")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *COMMAND, *command.split()],
        env=unmeasured(root),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    assert int(done.stderr) < 50_000  # kB; the interpreter and click take some 20,000
