"""`turnlog chat`: a talk at a terminal and in a pipe, with a provider over HTTP and offline."""

from __future__ import annotations

import os
import pty
import re
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from processes import COMMAND, environment, piped, terminal, unmeasured
from stored import put

from turnlog import Memory

# Siblings whose helpers are used here: the provider, and a file system that is read-only.
sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from localserver import MODELS, Broken, Failure, Gate, Provider, Reply, serving, turns
from localserver import environment as speaking_to
from machine import mounted, needs_root

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from processes import Terminal
    from stored import Invoke

KEYS: Final = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY")
OFFLINE: Final = "(offline responder, no language model)"
FIRST: Final = f'{OFFLINE} You say: "Hi" This is our first turn.'

both_wires = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what would choose a model."""
    for name in (*KEYS, "TURNLOG_MODEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch, _no_keys: None) -> Iterator[Provider]:
    """Give a provider that the command speaks to, in processes of its own."""
    with serving() as provider:
        for name, value in speaking_to(provider).items():
            monkeypatch.setenv(name, value)
        yield provider


def kept(root: Path) -> list[tuple[str, str]]:
    """Give the roles and texts that the thread holds now; a reply that broke off ends in "..."."""
    with Memory(root, read_only=True) as memory:
        return [
            (turn.role, turn.content + ("..." if (turn.meta or {}).get("interrupted") else ""))
            for turn in memory.open("t", "s").messages()
        ]


@contextmanager
def talking(root: Path, model: str = "offline", **more: str) -> Generator[Terminal]:
    """Sit at a terminal with a chat that waits for the first line."""
    env = {"NO_COLOR": "1", "INPUTRC": str(inputrc(root)), **more}
    with terminal(root, "chat", "s/t", "--model", model, env=env) as person:
        person.wait_for("> ")
        yield person


def inputrc(root: Path) -> Path:
    """Give a configuration of readline's in which it shows a prompt as it is."""
    file = root.with_name("inputrc")
    file.write_text("set enable-bracketed-paste off\n")
    return file


def leave(person: Terminal, after: str = "") -> tuple[int, str]:
    """Press Ctrl-D at the prompt after a text; give the exit status, and all that was read."""
    person.wait_for(f"{after}> ")
    person.type("\x04")
    status, shown = person.end()
    return status, shown.replace("\r", "")


def press_ctrl_c(person: Terminal) -> None:
    """Press Ctrl-C when the command waits.

    Where it falls into the moment in which Python has looked for signals and is about to wait, it
    takes another key. What was shown just before gives the test its turn in that very moment.
    """
    state = Path(f"/proc/{person.process.pid}/stat")
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "S":
        os.sched_yield()
    person.type("\x03")


@contextmanager
def in_pipes(
    root: Path, model: str, prepare: Callable[[], None] | None = None
) -> Generator[subprocess.Popen[bytes]]:
    """Start a chat in pipes; it is dead when the block ends."""
    with subprocess.Popen(
        [*COMMAND, "chat", "s/t", "--model", model],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(root) if prepare is None else unmeasured(root),
        preexec_fn=prepare,  # noqa: PLW1509 - it only sets a limit
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[bytes], line: str) -> None:
    """Write a line to its standard input."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n".encode())
    process.stdin.flush()


def hear(process: subprocess.Popen[bytes], text: str) -> None:
    """Read this very text from its standard output."""
    assert process.stdout is not None
    assert process.stdout.read(len(text)).decode() == text


# ---- a pipe ----


def test_a_pipe_gets_the_replies_and_nothing_else(root: Path) -> None:
    """Each line of a pipe is an input, blank ones are none, and only replies are written."""
    done = piped(root, "chat", "s/t", "--model", "offline", stdin=b"Hi\n\n \t\nAnd now?")
    second = f'{OFFLINE} You say: "And now?" You wrote once before; first: "Hi"'
    assert done == (0, f"{FIRST}\n{second}\n", "")
    assert kept(root) == [
        ("user", "Hi"),
        ("assistant", FIRST),
        ("user", "And now?"),
        ("assistant", second),
    ]


@both_wires
def test_a_provider_is_sent_the_turns_and_the_system_text(
    root: Path, provider: Provider, model: str
) -> None:
    """A second process sends what the first one left, and --system, which is not kept (R24)."""
    provider.script("Looking.", "Paid.")
    for line, reply in ("Is it paid?", "Looking."), ("Any update?", "Paid."):
        done = piped(
            root, "chat", "s/t", "--model", model, "--system", "Be brief.", stdin=line.encode()
        )
        assert done == (0, f"{reply}\n", "")
    said = [("user", "Is it paid?"), ("assistant", "Looking."), ("user", "Any update?")]
    sent = [turn for turn in turns(provider.requests[1]) if turn[0] in {"user", "assistant"}]
    assert sent == said
    assert "Be brief." in str(provider.requests[1])
    assert kept(root) == [*said, ("assistant", "Paid.")]


def test_a_pipe_gets_pieces_as_they_come(root: Path, provider: Provider) -> None:
    """A reply is written piece by piece, as the model has said it, line ends included."""
    gate = Gate()
    provider.script(Reply("It is ", gate, "\x1b[31mpaid.\n"), "Yes.")
    with in_pipes(root, MODELS["anthropic"]) as process:
        say(process, "Is it paid?")
        hear(process, "It is ")
        gate.open()
        hear(process, "\x1b[31mpaid.\n")
        say(process, "Really?")
        assert process.communicate(timeout=60) == (b"Yes.\n", b"")
        assert process.returncode == 0


def test_a_run_that_fails_does_not_end_a_pipe(root: Path, provider: Provider) -> None:
    """A failure is told in words, the lines after it are answered, and the status is 1 (A08)."""
    provider.script(Failure(400, "Too odd."), Reply("It is ", Broken()), "Fine.")
    done = piped(root, "chat", "s/t", "--model", MODELS["anthropic"], stdin=b"One\nTwo\nThree\n")
    assert (done.status, done.out) == (1, "It is \nFine.\n")
    refused, nothing, broken, some = done.err.splitlines()
    assert refused.startswith("Error: the provider ")
    assert "(status 400: Too odd.)" in refused
    assert nothing == "your message is not kept"
    assert broken.startswith("Error: ")
    assert some == "the reply is kept up to here"
    assert kept(root) == [
        ("user", "Two"),
        ("assistant", "It is ..."),
        ("user", "Three"),
        ("assistant", "Fine."),
    ]


both_signals = pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)


@both_signals
def test_a_signal_ends_a_pipe_and_keeps_the_reply(
    root: Path, provider: Provider, number: int, status: int
) -> None:
    """SIGINT or SIGTERM in a reply keeps what was said and ends the command (R23, A18)."""
    provider.script(Reply("It is ", Gate(), "paid."))
    with in_pipes(root, MODELS["anthropic"]) as process:
        say(process, "Is it paid?")
        hear(process, "It is ")
        process.send_signal(number)
        assert process.communicate(timeout=60) == (
            b"\n",
            b"stopped; the reply is kept up to here\n",
        )
        assert process.returncode == status
    provider.disconnected.expect()
    assert kept(root) == [("user", "Is it paid?"), ("assistant", "It is ...")]


def test_a_reader_that_goes_ends_it_quietly(root: Path, provider: Provider) -> None:
    """Where nobody reads the replies any more, the command ends without a word: 141."""
    with in_pipes(root, MODELS["anthropic"]) as process:
        say(process, "Hi")
        hear(process, "Hello.\n")
        assert process.stdout is not None
        process.stdout.close()
        say(process, "More")
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(60) == 141
    assert len(provider.requests) == 2
    assert kept(root)[2:] == [("user", "More"), ("assistant", "Hello....")]


def test_a_reply_that_was_cut_is_told(root: Path, provider: Provider) -> None:
    """The person hears of a reply cut at the limit of tokens, beside the reply (A15)."""
    provider.script(Reply("Hello", stop="length"))
    with in_pipes(root, MODELS["openai"]) as process:
        assert process.communicate(b"Hi\nMore\n", 60) == (
            b"Hello\nHello.\n",
            b"the reply was cut at the limit of tokens\n",
        )
    assert process.returncode == 0


def test_a_pipe_that_is_not_utf_8(invoke: Invoke, root: Path) -> None:
    """A line that is not UTF-8 ends the chat with an error that names it."""
    done = invoke("chat", "s/t", "--model", "offline", input=b"Hi\n\xff\nNo\n")
    assert (done.exit_code, done.stdout) == (1, f"{FIRST}\n")
    assert done.stderr == "Error: standard input is not UTF-8 (line 2)\n"
    assert len(kept(root)) == 2


def test_a_pipe_into_a_talk_that_is_seen(root: Path, provider: Provider) -> None:
    """From a pipe to a terminal only the reply is shown, and does not steer the terminal."""
    provider.script("\x1b[31mHello.")
    master, slave = pty.openpty()
    done = subprocess.run(
        [*COMMAND, "chat", "s/t", "--model", MODELS["anthropic"]],
        input=b"Hi\n",
        stdout=slave,
        stderr=subprocess.PIPE,
        env=environment(root),
        check=False,
        timeout=60,
    )
    os.close(slave)
    with open(master, "rb", buffering=0) as seen:
        assert (done.returncode, done.stderr, seen.read(1000)) == (0, b"", b"\\x1b[31mHello.\r\n")


def test_a_closed_standard_input_is_an_error(root: Path) -> None:
    """Where the shell closed standard input, there is nobody to talk with."""
    script = '"$@" chat t --model offline <&-'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND],
        env=environment(root),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"there is no standard input" in done.stderr


# ---- the model ----


def test_without_a_key(invoke: Invoke, root: Path) -> None:
    """Without a model or a key it names the variables, offers offline, and ends with 2."""
    done = invoke("chat", "s/t", input="Hi\n")
    assert (done.exit_code, done.stdout) == (2, "")
    for said in (*KEYS, "TURNLOG_MODEL", "--model offline", "no language model"):
        assert said in done.stderr
    assert not root.exists()


@pytest.mark.parametrize(
    ("variables", "model"),
    [(KEYS, "claude-haiku-4-5"), (("OPENAI_API_KEY",), "gpt-5-mini")],
    ids=["all", "OpenAI's"],
)
def test_the_model_of_the_first_key(
    root: Path,
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
    variables: tuple[str, ...],
    model: str,
) -> None:
    """The first provider whose key is in the environment is asked for a small model."""
    for name in KEYS:
        monkeypatch.setenv(name, "none" if name in variables else "")
    assert piped(root, "chat", "s/t", stdin=b"Hi\n") == (0, "Hello.\n", "")
    assert provider.requests[0]["model"] == model


@pytest.mark.parametrize("variable", ["GOOGLE_API_KEY", "GEMINI_API_KEY"])
def test_a_provider_whose_package_is_missing(
    root: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of Google's chooses Google's model; the error names its package where it is missing."""
    monkeypatch.setenv(variable, "none")
    done = without("google.genai", root)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"the model 'google:gemini-2.5-flash' needs its provider's package" in done.stderr
    assert b"pydantic-ai-slim[google]" in done.stderr


def test_without_the_extra_agents(root: Path) -> None:
    """Where the engine is not installed, one line says what to install."""
    done = without("pydantic_ai", root)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == (
        b"Error: turnlog chat: it needs the extra 'agents'; pip install 'turnlog[agents]'\n"
    )


def without(package: str, root: Path) -> subprocess.CompletedProcess[bytes]:
    """Run a chat where a package is not installed."""
    code = f"import sys; sys.modules[{package!r}] = None; from turnlog.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "chat", "t"],
        env=environment(root),
        input=b"Hi\n",
        capture_output=True,
        check=False,
        timeout=60,
    )


def test_the_command_does_not_import_the_engine() -> None:
    """Only a chat that runs imports the engine: the other commands stay quick."""
    code = "import sys, turnlog.cli.app; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert b"pydantic_ai" not in done.stdout.split()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("nonsense", "there is no model 'nonsense'"),
        ("nobody:nothing", "there is no model 'nobody:nothing'"),
        ("", "no model was given"),
        ("anthropic:claude-haiku-4-5", "set ANTHROPIC_API_KEY"),
        ("gpt-5-mini", "set OPENAI_API_KEY"),
    ],
)
def test_a_model_that_cannot_be_asked(invoke: Invoke, root: Path, model: str, said: str) -> None:
    """An unknown model, or one without its key, is told before anything is read: status 2."""
    done = invoke("chat", "s/t", "--model", model, input="Hi\n")
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert not root.exists()


def test_the_model_of_the_environment(
    invoke: Invoke, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TURNLOG_MODEL names the model where --model does not; empty, it names none."""
    monkeypatch.setenv("TURNLOG_MODEL", "offline")
    assert invoke("chat", "s/t", input="Hi\n").stdout == f"{FIRST}\n"
    assert "no model 'other'" in invoke("chat", "s/t", "--model", "other", input="Hi\n").stderr
    monkeypatch.setenv("TURNLOG_MODEL", "")
    assert "none is set" in invoke("chat", "s/t", input="Hi\n").stderr
    assert len(kept(root)) == 2


# ---- the store ----


@needs_root
def test_a_memory_that_is_read_only(root: Path, tmp_path: Path) -> None:
    """Where nothing can be written, the chat ends before the model is asked: status 1."""
    put(root, "t", b'{"content":"x"}\n', "s")
    with mounted(tmp_path / "mounted", "--bind", str(root)) as place:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
        done = piped(place, "chat", "s/t", "--model", "offline", stdin=b"Hi\n")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("Error: thread 't' in namespace 's': ")
    assert kept(root) == [("user", "x")]


def full(root: Path) -> Callable[[], None]:
    """Make the thread as large as a file may be; give what sets that limit in a process."""
    put(root, "t", b'{"content":"x"}\n' * 10_000, "s")
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (160_000, 160_000))


def test_a_reply_that_cannot_be_kept_ends_the_chat(root: Path, provider: Provider) -> None:
    """Where the thread takes no turns, the chat says so and ends; no line after it is sent."""
    with in_pipes(root, MODELS["anthropic"], full(root)) as process:
        out, err = process.communicate(b"Hi\nMore\n", timeout=60)
    assert (process.returncode, out) == (1, b"Hello.\n")
    assert err.startswith(b"Error: thread 't' in namespace 's': the run's 2 turns could not be")
    assert (err.count(b"\n"), len(provider.requests)) == (1, 1)
    assert len(kept(root)) == 10_000


@both_signals
def test_a_stopped_reply_that_cannot_be_kept_ends_the_chat(
    root: Path, provider: Provider, number: int, status: int
) -> None:
    """Where what was said before a signal cannot be kept, that is not passed over (R23, A18)."""
    del status
    provider.script(Reply("It is ", Gate(), "paid."))
    with in_pipes(root, MODELS["anthropic"], full(root)) as process:
        say(process, "Is it paid?")
        hear(process, "It is ")
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, b"\n"), err
    assert err.startswith(b"Error: thread 't' in namespace 's': the run's 2 turns could not be")
    assert len(kept(root)) == 10_000


# ---- a terminal ----


def test_a_person_talks_and_comes_back(root: Path) -> None:
    """A person reads who answers and how to leave, and in a second process what was said."""
    with talking(root) as person:
        person.type(" \n")
        person.wait_for(">  \n> ")
        person.type("Hi\n")
        status, shown = leave(person, f"{FIRST}\n\n")
    begun = "s/t with offline, a rule-based responder and no language model; Ctrl-C stops a reply, "
    assert (status, shown) == (0, f"{begun}Ctrl-D leaves\n>  \n> Hi\n{FIRST}\n\n> \n")
    with talking(root) as person:
        status, shown = leave(person)
    history = f"user\nHi\n\nassistant\n{FIRST}\n\n"
    assert (status, re.sub("  20.* UTC.*", "", shown)) == (
        0,
        f"{history}{begun}Ctrl-D leaves\n> \n",
    )


def test_the_last_twenty_turns_are_shown(root: Path) -> None:
    """Of a long thread the last twenty turns are shown, and how many there are before them."""
    put(root, "t", b"".join(b'{"content":"turn %d"}\n' % n for n in range(1025)), "s")
    with talking(root) as person:
        status, shown = leave(person)
    assert (status, shown.split("\n")[0]) == (0, "1,005 earlier turns: turnlog show s/t")
    assert re.findall(r"^turn (\d+)$", shown, re.MULTILINE) == [*map(str, range(1005, 1025))]


@both_wires
def test_ctrl_c_stops_a_reply_and_keeps_it(root: Path, provider: Provider, model: str) -> None:
    """Ctrl-C stops a reply on its way, keeps it as interrupted, and the talk goes on (A02, A03)."""
    gate = Gate()
    provider.script(Reply("It is ", gate, "paid."), "Yes, paid.")
    with talking(root, model) as person:
        person.type("Is it paid?\n")
        person.wait_for("It is ")
        press_ctrl_c(person)
        person.wait_for("stopped; the reply is kept up to here\n\n> ")
        provider.disconnected.expect()
        person.type("Any update?\n")
        status, shown = leave(person, "Yes, paid.\n\n")
    assert status == 0
    assert shown.startswith(f"s/t with {model}; Ctrl-C stops a reply, Ctrl-D leaves\n")
    assert "> Is it paid?\nIt is ^C\nstopped; the reply is kept up to here\n\n> Any" in shown
    said = [("user", "Is it paid?"), ("assistant", "It is "), ("user", "Any update?")]
    assert turns(provider.requests[1]) == said
    assert kept(root) == [said[0], ("assistant", "It is ..."), said[2], ("assistant", "Yes, paid.")]


def test_ctrl_c_before_the_reply_keeps_the_message(root: Path, provider: Provider) -> None:
    """Ctrl-C before the reply's first byte keeps what the person said (A01)."""
    gate = Gate()
    provider.script(Reply(gate, "It is paid."))
    with talking(root, MODELS["anthropic"]) as person:
        person.type("Is it paid?\n")
        gate.reached.expect()
        press_ctrl_c(person)
        person.wait_for("\n> Is it paid?\n^C\nstopped; your message is kept, without a reply\n\n> ")
        status, shown = leave(person)
    assert (status, "Traceback" in shown) == (0, False)
    assert kept(root) == [("user", "Is it paid?")]


def test_ctrl_c_at_the_prompt_discards_the_line(root: Path) -> None:
    """Ctrl-C at the prompt discards what was typed; two in a row leave with status 130."""
    hint = "\nCtrl-C once more leaves\n> "
    with talking(root) as person:
        person.type("Not this")
        person.wait_for("Not this")
        press_ctrl_c(person)
        person.wait_for(f"Not this{hint}")
        person.type("Hi\n")
        person.wait_for(f"{FIRST}\n\n> ")
        press_ctrl_c(person)
        person.wait_for(f"{FIRST}\n\n> {hint}")
        press_ctrl_c(person)
        status, shown = person.end()
    assert (status, "Traceback" in shown) == (130, False)
    assert kept(root) == [("user", "Hi"), ("assistant", FIRST)]


def test_a_reply_does_not_steer_the_terminal(root: Path, provider: Provider) -> None:
    """What a model says is shown escaped, also where an escape sequence comes in pieces."""
    provider.script(Reply("red \x1b", "[31m bell \x07", " turned \u202e\tand\nkept"))
    with talking(root, MODELS["anthropic"]) as person:
        person.type("Hi\n")
        person.wait_for("kept\n\n> ")
        assert "red \\x1b[31m bell \\x07 turned \\u202e\tand\nkept\n" in person.shown
        assert "\x07" not in person.shown
        assert leave(person)[0] == 0


def test_a_failure_does_not_end_a_talk(root: Path, provider: Provider) -> None:
    """At a terminal a failure is a line in words, the talk goes on, and Ctrl-D leaves with 0."""
    provider.script(Failure(500, "Out of order."), "Fine.")
    with talking(root, MODELS["openai"]) as person:
        person.type("One\n")
        person.wait_for("your message is not kept\n\n> ")
        person.type("Two\n")
        status, shown = leave(person, "Fine.\n\n")
    assert status == 0
    assert re.search(r"> One\nError: .*\(status 500: Out of order\.\)", shown)
    assert kept(root) == [("user", "Two"), ("assistant", "Fine.")]


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_person_types_utf_8_whatever_the_locale(root: Path, locale: str) -> None:
    """What is typed is UTF-8, whatever the locale is (C14)."""
    with talking(root, LC_ALL=locale, PYTHONCOERCECLOCALE="0", PYTHONUTF8="0") as person:
        person.type("Łódź 국어\n")
        assert leave(person, "our first turn.\n\n")[0] == 0
    assert kept(root)[0] == ("user", "Łódź 국어")


def test_colours_of_a_talk(root: Path) -> None:
    """A person gets colours, unless NO_COLOR is set."""
    put(root, "t", b'{"content":"x"}\n', "s")
    with talking(root, NO_COLOR="") as person:
        _, shown = leave(person)
    assert "\x1b[1;32muser\x1b[0m" in shown
    assert "\x1b[2ms/t with offline" in shown
    with talking(root) as person:
        _, shown = leave(person)
    assert "\x1b[" not in shown


def test_a_character_split_over_two_pieces_is_written_whole(root: Path, provider: Provider) -> None:
    """A pipe gets the characters that a gateway split, and U+FFFD for a lone half (A13)."""
    provider.script(Reply("Great \ud83d", "\ude00 news", " \ud83d"))
    model = MODELS["openai"]
    done = piped(root, "chat", "s/t", "--model", model, stdin=b"Hi\n")
    assert done == (0, "Great \U0001f600 news \ufffd\n", "")
    assert kept(root)[1] == ("assistant", "Great \U0001f600 news \ud83d")
