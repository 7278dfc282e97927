"""Calls to processes and their answers, with small processes that need neither torch nor a launch."""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path

import pytest
from launching import wait_for
from served import Served

from placebench.errors import JobExit, LaunchError
from placebench.jobs.end import classify
from placebench.plan import checks
from placebench.ppo.running import Running, RunningWork
from placebench.sessions.torchrun.calls import Link, RankCalls, RankDiedError, RankError
from placebench.sessions.torchrun.command import RANK, rank_environment
from placebench.sessions.torchrun.serving import CONTROLLER_VARIABLE, CREATE, NODE_VARIABLE, tuned_socket
from placebench.sessions.torchrun.session import Doorway, Torchrun
from placebench.spec.launchers import RAY, TORCHRUN, unusable_launcher
from placebench.spec.placement import Role
from placebench.spec.words import parse_placement

LOOPBACK = "127.0.0.1"
PROGRAM = """
import sys
from placebench.sessions.torchrun.serving import connect, serve
serve(connect({"local_rank": int(sys.argv[1])}))
"""


class Processes:
    """Processes that serve a `Served` each, and the way to wait for their answers."""

    def __init__(self, count: int, *made: object) -> None:
        self.calls, doorway = RankCalls(), Doorway(LOOPBACK, count)
        environment = {**os.environ, **doorway.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.started = [
            subprocess.Popen([sys.executable, "-c", PROGRAM, str(number)], env=environment) for number in range(count)
        ]
        links: dict[int, Link] = {}
        while len(links) < count:
            if come := doorway.next(20):
                connection, greeting = come
                number = greeting["local_rank"]
                assert greeting["pid"] == self.started[number].pid
                links[number] = Link(connection, f"the worker of cpu:{number}", self.calls)
                links[number].ask(CREATE, made or (Served, number))
        self.links = [links[number] for number in range(count)]


@contextmanager
def processes(count: int, *made: object) -> Iterator[Processes]:
    """Some processes; all have ended afterwards, by the end of their connections alone."""
    started = Processes(count, *made)
    try:
        yield started
    finally:
        for link in started.links:
            link.close()
        for process in started.started:
            process.wait(20)
    assert {process.returncode for process in started.started} <= {0, -signal.SIGKILL}


def test_answers_come_in_the_order_of_the_questions() -> None:
    with processes(2) as there:
        large = bytes(1 << 24)
        asked = [link.number.remote() for link in there.links] + [link.same.remote(large) for link in there.links]
        assert there.calls.get(asked) == [0, 1, large, large]
        assert there.calls.wait(asked, len(asked), 0) == asked


def test_messages_wait_for_no_others_in_both_directions() -> None:
    with processes(1) as there:
        (link,) = there.links
        assert link._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert there.calls.get([link.undelayed.remote()]) == [[True]]


def test_an_answer_is_waited_for_as_long_as_is_said() -> None:
    with processes(2) as there:
        slow, quick = there.links[0].sleep.remote(300), there.links[1].number.remote()
        assert there.calls.wait([slow, quick]) == [quick]
        begun = time.monotonic()
        assert there.calls.wait([slow, quick], 2, 0.2) == [quick]
        with pytest.raises(TimeoutError):
            there.calls.get([slow], 0.2)
        assert time.monotonic() - begun >= 0.4


@pytest.mark.parametrize(
    ("source", "outcome", "said"),
    [
        ("raise MemoryError('all of it')", JobExit.OOM, "\nMemoryError: all of it"),
        ("from placebench.errors import UsageError as E; raise E('bad')", JobExit.USAGE, "UsageError: bad"),
        ("raise RuntimeError('GPU is lost')", JobExit.DEVICE_LOST, "\nRuntimeError: GPU is lost"),
        ("raise ValueError('x')", JobExit.FAILED, "\nValueError: x"),
        ("raise UnsendableError('out of', 'memory')", JobExit.OOM, "served.UnsendableError: out of memory"),
        (
            "raise type('OutOfMemoryError', (Exception,), {'__module__': 'x'})('here')",
            JobExit.OOM,
            "x.OutOfMemoryError: here",
        ),
        ("e = RuntimeError('x'); e.add_note('held by cpu:0: much'); raise e", JobExit.FAILED, "\nheld by cpu:0: much"),
    ],
)
def test_what_a_rank_fails_for_is_told_and_classified_and_it_goes_on(source: str, outcome: JobExit, said: str) -> None:
    with processes(1) as there:
        (link,) = there.links
        with pytest.raises(RankError) as raised:
            there.calls.get([link.fail.remote(source)])
        assert str(raised.value).startswith("the worker of cpu:0\nTraceback (most recent call last):\n")
        assert said in str(raised.value)
        assert classify(raised.value) is outcome
        assert there.calls.get([link.number.remote()]) == [0]
        assert there.calls.first_death is None


def test_an_answer_that_cannot_be_sent_is_a_failure() -> None:
    with processes(1) as there, pytest.raises(RankError, match="cannot pickle"):
        there.calls.get([there.links[0].lock.remote()])


def test_an_answer_that_cannot_be_read_fails_alone() -> None:
    with processes(1) as there:
        (link,) = there.links
        unreadable = r"^the worker of cpu:0: its answer cannot be read: ValueError\("
        with pytest.raises(RankError, match=unreadable):
            there.calls.get([link.unreadable.remote()], 20)
        assert there.calls.get([link.number.remote()], 20) == [0]


@pytest.mark.parametrize(
    ("made", "reason"),
    [((Served, -1), "\nValueError: below 0"), (("no class", 1), "'str' object is not callable")],
)
def test_what_cannot_be_made_tells_why_whatever_is_asked_of_it(made: tuple[object, ...], reason: str) -> None:
    with processes(1, *made) as there:
        for _ in range(2):
            with pytest.raises(RankError) as raised:
                there.calls.get([there.links[0].number.remote()], 20)
            assert reason in str(raised.value)


def test_a_request_that_cannot_be_read_is_a_failure_and_no_death(tmp_path: Path) -> None:
    (tmp_path / "here_alone.py").write_text("class Here:\n    pass\n")
    sys.path.insert(0, str(tmp_path))
    try:
        here = importlib.import_module("here_alone").Here
    finally:
        sys.path.remove(str(tmp_path))
    with processes(1) as there:
        (link,) = there.links
        with pytest.raises(RankError, match="No module named 'here_alone'"):
            there.calls.get([link.same.remote(here)], 20)
        assert there.calls.get([link.number.remote()], 20) == [0]


def test_whatever_is_asked_of_a_process_that_has_ended_fails_for_the_first_that_did() -> None:
    with processes(2) as there:
        first, second = there.links
        pending = first.sleep.remote(60)
        with pytest.raises(RankDiedError, match=r"^the worker of cpu:1 has ended: it was killed, or has crashed$"):
            there.calls.get([second.die.remote()])
        there.started[0].kill()
        for answer in (pending, first.number.remote(), second.number.remote()):
            with pytest.raises(RankDiedError, match="cpu:1"):
                there.calls.get([answer])


def test_a_rank_that_fails_because_another_has_died_is_not_what_is_told() -> None:
    with processes(2) as there:
        first, second = there.links
        work = RunningWork(there.calls)
        second.sleep.remote(0.5)
        pending = [first.fail.remote("raise RuntimeError('connection closed by peer')"), second.die.remote()]
        work.add(Running(1, "gen", Role.ROLLOUT, "pool", frozenset(), 0.0, pending, lambda answers: None))
        with pytest.raises(RankDiedError, match="cpu:1"):
            work.wait()


def test_processes_end_with_the_one_that_calls_them(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
from test_torchrun_calls import Processes
there = Processes(2)
for link in there.links:
    link.sleep.remote(300)
print(*(process.pid for process in there.started), flush=True)
sys.stdin.read()
"""
    caller = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    pids = [int(word) for word in caller.stdout.readline().split()]
    assert len(pids) == 2
    caller.kill()
    caller.communicate()
    wait_for(lambda: not any(_is_live(pid) for pid in pids))


def _is_live(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_stranger_is_not_let_in_and_keeps_nobody_out() -> None:
    doorway = Doorway(LOOPBACK, 1)
    told = json.loads(doorway.environment[CONTROLLER_VARIABLE])
    address, key = (told["host"], told["port"]), bytes.fromhex(told["key"])
    with pytest.raises(AuthenticationError):
        Client(address, authkey=b"guessed")
    assert doorway.next(0.1) is None
    with Client(address, authkey=key) as connection:
        connection.send_bytes(b"\x80\x04}\x94.")  # an empty dict
        assert doorway.next(20) is not None
    with pytest.raises(ConnectionError):  # all that were expected are there
        Client(address, authkey=key)


def test_a_stranger_that_says_nothing_keeps_nobody_out() -> None:
    doorway = Doorway(LOOPBACK, 1)
    told = json.loads(doorway.environment[CONTROLLER_VARIABLE])
    address, key = (told["host"], told["port"]), bytes.fromhex(told["key"])
    with socket.create_connection(address), socket.create_connection(address), Client(address, authkey=key) as rank:
        rank.send_bytes(b"\x80\x04}\x94.")  # an empty dict
        assert doorway.next(20) is not None


def test_a_host_that_is_gone_is_noticed() -> None:
    with Listener((LOOPBACK, 0)) as listener, Client(listener.address) as client, tuned_socket(client) as found:
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        wait_s, count, apart_s = (
            found.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPCNT, socket.TCP_KEEPINTVL)
        )
        assert wait_s + count * apart_s <= 30


def test_the_end_of_a_rank_is_told_in_place_of_what_fails_for_it() -> None:
    session = Torchrun("nowhere", {})
    failed, death = RankError("connection closed by peer", None), RankDiedError("cpu:1 has ended")
    assert session.explain(failed, "update_actor of step 3") is failed
    noticed = threading.Timer(0.3, session.calls.report, [death])
    noticed.start()
    assert session.explain(failed, "update_actor of step 3") is death
    noticed.join()
    # A torchrun that has ended takes the other ranks with it.
    early = LaunchError("torchrun has ended with exit code 1 before its ranks began: see train.log")
    assert session.explain(early, "start torchrun") is early


def test_a_rank_keeps_nothing_that_torchrun_has_set_for_its_own() -> None:
    calls, doorway = RankCalls(), Doorway(LOOPBACK, 1)
    own = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "n1", "TORCHELASTIC_RUN_ID": "x"}
    environment = {**os.environ, **doorway.environment, **own, NODE_VARIABLE: "n2", "KEPT": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    process = subprocess.Popen([sys.executable, "-m", RANK], env=environment)
    come = doorway.next(20)
    assert come is not None
    connection, greeting = come
    link = Link(connection, "a rank", calls)
    assert (greeting["node"], greeting["local_rank"]) == ("n2", 1)
    link.ask(CREATE, (Served, 0))
    unset = f"import os; assert not {{*{[*own, CONTROLLER_VARIABLE]}}} & os.environ.keys(); assert os.environ['KEPT']"
    torchless = "import sys; assert 'torch' not in sys.modules"  # it is not bound to its device yet
    calls.get([link.fail.remote(source) for source in (unset, torchless)])
    link.close()
    assert process.wait(20) == 0


def test_torchrun_starts_replicas_alone_and_joins_no_ray() -> None:
    placements = [parse_placement(word, [2], has_critic=True) for word in ("standard", "ddp:2/scaling=weak", "ddp:1")]
    assert list(unusable_launcher(TORCHRUN, placements[1:])) == []
    assert list(unusable_launcher(RAY, placements, (), "auto")) == []
    assert list(unusable_launcher(TORCHRUN, placements, (), "auto")) == [
        "--launcher torchrun runs only ddp placements, as in --placements ddp:1,ddp:2: leave out standard, or"
        " --launcher",
        "--launcher torchrun runs without Ray: leave out --ray-address, or --launcher",
    ]


def test_packages_of_ray_are_not_needed_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None if name == "ray" else object())
    assert list(checks.missing_packages(TORCHRUN)) == []
    assert list(checks.missing_packages(RAY)) == ["placebench run needs ray: pip install 'placebench[run]'"]


def test_threads_are_one_unless_the_user_says_otherwise() -> None:
    assert rank_environment({"A": "1"}) == {"A": "1", "OMP_NUM_THREADS": "1"}
    assert rank_environment({"OMP_NUM_THREADS": "4"}) == {"OMP_NUM_THREADS": "4"}
