"""Real servers, asked by real clients."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import psutil
import pytest
from launching import wait_for

from placebench.host import fork_client, fork_server
from placebench.host.fork_server import NotForkableError, check_forkable, listen
from placebench.host.processes import TOKEN_VARIABLE, LaunchMark, launch_processes

# Of a launch of this process alone: others run tests beside it.
TOKEN = secrets.token_hex(16)
PLAIN = ("--serialized-runtime-env-context={}", "--language=PYTHON")


class Server(NamedTuple):
    process: "subprocess.Popen[str]"
    word: str


@contextmanager
def server(*modules: str, **options: Any) -> Iterator[Server]:
    """A server of a random word."""
    word = secrets.token_hex(16)
    environment = {**os.environ, TOKEN_VARIABLE: secrets.token_hex(16), "OPENBLAS_NUM_THREADS": "1"}
    with listen(word) as listener:
        number = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "placebench.host.fork_server", str(number), *modules],
            **{"stderr": subprocess.PIPE, "text": True, "env": environment, "pass_fds": [number], **options},
        )
    with process:
        try:
            yield Server(process, word)
        finally:
            process.kill()


def client(word: str, folder: Path, source: str, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
    """A client that has a script run, or says so where it does without a server."""
    (script := folder / "script.py").write_text(source)
    (instead := folder / "instead.py").write_text("import sys; print('instead', sys.argv[1:])")
    names = {fork_client.ADDRESS_VARIABLE: word, fork_client.INSTEAD_VARIABLE: str(instead)}
    environment = {**os.environ, TOKEN_VARIABLE: TOKEN, **names}
    context = options.pop("context", PLAIN)
    return subprocess.Popen(
        [sys.executable, fork_client.__file__, str(script), *arguments, *context],
        stdout=subprocess.PIPE,
        text=True,
        **{"env": environment, "cwd": folder, **options},
    )


def test_a_forked_process_has_the_imports_and_inherits_from_who_asks(tmp_path: Path) -> None:
    source = (
        "import json, os, sys\n"
        "cores = sorted(os.sched_getaffinity(0))\n"
        "print(json.dumps([sys.argv, 'colorsys' in sys.modules, os.getcwd(), os.environ['SAID'], cores,"
        " os.nice(0), sorted(os.listdir('/proc/self/fd')), __name__]))\n"
        "sys.exit(7)"
    )
    core = min(os.sched_getaffinity(0))
    names = {TOKEN_VARIABLE: TOKEN, "SAID": "ä", fork_client.INSTEAD_VARIABLE: "/none"}
    with server("colorsys") as started:
        environment = {**os.environ, **names, fork_client.ADDRESS_VARIABLE: started.word}

        def narrow() -> None:
            os.sched_setaffinity(0, [core])
            os.nice(3)

        for _ in range(2):
            with client(started.word, tmp_path, source, "a b", env=environment, preexec_fn=narrow) as asked:
                said, _ = asked.communicate(timeout=300)
            script = str(tmp_path / "script.py")
            argv, has_import, cwd, value, cores, niceness, files, name = json.loads(said)
            assert (argv, has_import, cwd, value) == ([script, "a b"], True, str(tmp_path), "ä")
            assert (cores, niceness, name, asked.returncode) == ([core], min(os.nice(0) + 3, 19), "__main__", 7)
            assert len(files) == 4, "stdin, stdout, stderr and the folder that is listed"


def test_what_imports_have_set_in_the_environment_is_there_unless_who_asks_says_otherwise(tmp_path: Path) -> None:
    (tmp_path / "setting.py").write_text("import os; os.environ.update(NEW='1', CHANGED='2', ASKED='3')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "CHANGED": "0", "ASKED": "0"}
    source = "import os; print(*map(os.environ.get, ('NEW', 'CHANGED', 'ASKED')))"
    with server("setting", env=environment) as started:
        names = {fork_client.ADDRESS_VARIABLE: started.word, fork_client.INSTEAD_VARIABLE: "/none"}
        asked_for = environment | names | {"ASKED": "4"}
        with client(started.word, tmp_path, source, env=asked_for) as asked:
            assert asked.communicate(timeout=300)[0] == "1 2 4\n"


SLEEP = "import os, time; print(os.getpid(), flush=True); time.sleep(300)"


def is_live(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("killed", ["client", "server", "process"])
def test_process_and_client_end_together_and_with_the_server(tmp_path: Path, killed: str) -> None:
    with server() as started, client(started.word, tmp_path, SLEEP) as asked:
        assert asked.stdout
        forked = psutil.Process(int(asked.stdout.readline()))
        # It is known by its launch from outside, and the server, which is no part of the launch, is not.
        mark = LaunchMark(TOKEN, tmp_path / "none")
        assert {found.pid for found in launch_processes(mark)} == {asked.pid, forked.pid}
        assert fork_client.is_forked(forked.pid)
        assert not fork_client.is_forked(asked.pid)
        os.kill({"client": asked.pid, "server": started.process.pid, "process": forked.pid}[killed], signal.SIGKILL)
        wait_for(lambda: not is_live(forked))
        assert asked.wait(300) == (-signal.SIGKILL if killed == "client" else 128 + signal.SIGKILL)
        assert not fork_client.is_forked(asked.pid), "it has ended"
        assert (started.process.poll() is None) is (killed != "server")


def test_a_server_goes_on_after_others_have_ended(tmp_path: Path) -> None:
    with server() as started, client(started.word, tmp_path, SLEEP) as first:
        assert first.stdout
        assert first.stdout.readline()
        with client(started.word, tmp_path, "raise SystemExit(3)") as second:
            assert second.wait(300) == 3
        first.kill()
        with client(started.word, tmp_path, "import os; os.abort()") as third:
            assert third.wait(300) == 128 + signal.SIGABRT


def test_the_end_of_one_is_not_taken_for_that_of_another_with_its_file_descriptor(tmp_path: Path) -> None:
    (script := tmp_path / "three.py").write_text("raise SystemExit(3)")
    with server() as started, client(started.word, tmp_path, SLEEP) as first:
        assert first.stdout
        forked = psutil.Process(int(first.stdout.readline()))
        started.process.send_signal(signal.SIGSTOP)  # so that it finds all that follows at once, in this order
        forked.kill()
        wait_for(lambda: forked.status() == psutil.STATUS_ZOMBIE)
        asked = fork_client.connect(started.word)
        assert asked
        first.kill()
        first.wait()
        with asked:
            content = json.dumps(fork_client.inherited([str(script)])).encode()
            socket.send_fds(asked, [fork_client.LENGTH.pack(len(content))], [0, 1, 2])
            asked.sendall(content)
            started.process.send_signal(signal.SIGCONT)
            end = fork_client.receive(asked, 2 + fork_client.STATUS.size)
        assert end == fork_client.FORKED + fork_client.ENDED + fork_client.STATUS.pack(3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_who_ends_the_process_group_of_a_process_leaves_the_server(tmp_path: Path, number: signal.Signals) -> None:
    with server() as started, client(started.word, tmp_path, SLEEP) as first:
        assert first.stdout
        os.killpg(os.getpgid(int(first.stdout.readline())), number)
        assert first.wait(300) == 128 + number
        with client(started.word, tmp_path, "raise SystemExit(3)") as second:
            assert second.wait(300) == 3


@pytest.mark.parametrize(
    "context",
    [
        ('--serialized-runtime-env-context={"command_prefix": ["nice"]}', "--language=PYTHON"),
        ('--serialized-runtime-env-context={"env_vars": {"A": "1"}}', "--language=PYTHON"),
        ("--serialized-runtime-env-context=?", "--language=PYTHON"),
        ("--serialized-runtime-env-context={}", "--language=JAVA"),
        ("--serialized-runtime-env-context={}",),
    ],
)
def test_what_a_raylet_asks_beyond_a_script_is_done_without_a_server(tmp_path: Path, context: tuple[str, ...]) -> None:
    with client("unused", tmp_path, "", context=context) as asked:
        said, _ = asked.communicate(timeout=300)
    assert said == f"instead {[str(tmp_path / 'script.py'), *context]}\n"


def test_without_a_server_of_that_word_it_is_done_without(tmp_path: Path) -> None:
    with client("of nobody", tmp_path, "print('forked')") as asked:
        said, _ = asked.communicate(timeout=300)
    assert said.startswith("instead ")


def test_a_process_that_cannot_inherit_is_done_without_a_server(tmp_path: Path) -> None:
    with server("time") as started:
        names = {fork_client.ADDRESS_VARIABLE: started.word, fork_client.INSTEAD_VARIABLE: str(tmp_path / "i.py")}
        (tmp_path / "i.py").write_text("print('instead')")
        (tmp_path / "s.py").write_text("print('forked')")
        program = "import os, runpy, sys; sys.argv[:] = sys.argv[1:]; os.getcwd = lambda: '/none'"
        program += f"; runpy.run_path({fork_client.__file__!r}, run_name='__main__')"
        done = subprocess.run(
            [sys.executable, "-c", program, fork_client.__file__, str(tmp_path / "s.py"), *PLAIN],
            env={**os.environ, **names},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=300,
        )
        assert done.stdout == "instead\n"
        assert started.process.poll() is None


def test_a_server_whose_imports_fail_ends_and_those_who_wait_do_without(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import sys; print('here', file=sys.stderr, flush=True); sys.stdin.read(); 1 / 0")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with server("slow", stdin=subprocess.PIPE, env=environment) as (process, word):
        assert process.stderr
        assert process.stdin
        assert process.stderr.readline() == "here\n"
        with client(word, tmp_path, "print('forked')") as asked:
            process.stdin.close()
            said, _ = asked.communicate(timeout=300)
        assert said.startswith("instead ")
        assert "ZeroDivisionError" in process.stderr.read()
        assert process.wait(300) == 1


def test_what_a_fork_would_share_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "_threads", list)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    check_forkable()
    monkeypatch.setattr(fork_server, "_GPU_FILES", "/dev/zero")
    with (
        open("/dev/zero"),
        pytest.raises(NotForkableError, match=r"^the imports have opened /dev/zero$"),
    ):
        check_forkable()
    check_forkable()
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    with pytest.raises(NotForkableError, match=r"^the imports have brought in Ray$"):
        check_forkable()
    monkeypatch.undo()
    # Another test of this process may have imported it.
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    done = threading.Event()
    (thread := threading.Thread(target=done.wait)).start()
    try:
        with pytest.raises(NotForkableError, match=r"have started \d+ threads: "):
            check_forkable()
        for task in Path("/proc/self/task").iterdir():
            if int(task.name) != os.getpid():
                (task / "comm").write_text("cuda00001800007")
        check_forkable()
    finally:
        done.set()
        thread.join()
