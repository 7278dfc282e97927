import os
from pathlib import Path

import pytest

from placebench.host import fork_client
from placebench.sessions.own_ray import OwnRay, _forked_workers, _last_words, _nothing_unused


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "[2026-11-24 20:57:24,085 E 1 1] (gcs_server) logging.cc:118: Unhandled exception: N5boost6systemE."
            " what(): signal_set_service pipe: Too many open files [system:24] /opt/ray/gcs_server(+0x14c3daa) [0x55]",
            "signal_set_service pipe: Too many open files [system:24]",
        ),
        (
            "[2026-11-24 20:59:48,286 C 2 2] (raylet) node_manager.cc:3576:  An unexpected system state has occurred."
            " Check failed: status.has_value() Timed out waiting for file /tmp/r/metrics_agent_port",
            "Timed out waiting for file /tmp/r/metrics_agent_port",
        ),
        (
            'Traceback (most recent call last):\n  File "agent.py", line 72, in <module>\n    warnings.warn(\n'
            "pydantic.warnings.PydanticDeprecated: it is deprecated",
            "pydantic.warnings.PydanticDeprecated: it is deprecated",
        ),
        (
            'Traceback (most recent call last):\n  File "agent.py", line 90, in start\n    sock.bind(address)\n'
            "OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 52365): [errno 98] address"
            " already in use\n"
            'Traceback (most recent call last):\n  File "main.py", line 7, in <module>\n    import grpc\n'
            "ModuleNotFoundError: No module named 'grpc'",
            "ModuleNotFoundError: No module named 'grpc'",
        ),
        (
            'Traceback (most recent call last):\n  File "agent.py", line 90, in start\n    sock.bind(address)\n'
            "OSError: [Errno 98] Address already in use",
            None,
        ),
        ("[2026-11-24 20:57:24,060 I 1 1] (gcs_server) gcs_server_main.cc:98: Ray cluster metadata", None),
    ],
)
def test_why_ray_did_not_start_is_found_in_its_logs(tmp_path: Path, line: str, said: str | None) -> None:
    logs = tmp_path / "session_latest" / "logs"
    logs.mkdir(parents=True)
    (logs / "gcs_server.out").write_text("Event stats:\n\n")
    (logs / "raylet.err").write_text(f"*** SIGABRT received ***\n{line}\n/lib/libc.so.6(+0x2724a)\n")
    assert _last_words(tmp_path) == said


def test_nothing_unused_is_started_inside_and_all_is_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private.node import Node

    started: list[str] = []
    monkeypatch.setattr(Node, "start_monitor", lambda _: started.append("monitor"))
    monkeypatch.setattr(Node, "start_api_server", lambda _, **options: started.append("api server"))
    node = object.__new__(Node)
    with _nothing_unused():
        node.start_monitor()
        node.start_api_server(include_dashboard=False, raise_on_failure=False)
    assert started == []
    node.start_monitor()
    node.start_api_server(include_dashboard=False, raise_on_failure=False)
    assert started == ["monitor", "api server"]


@pytest.mark.parametrize("name", ["start_monitor", "start_api_server"])
def test_a_ray_that_starts_in_another_way_starts_as_it_does(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from ray._private.node import Node

    monkeypatch.delattr(Node, name)
    with _nothing_unused():
        assert not hasattr(Node, name)
    assert not hasattr(Node, name)


def test_workers_are_forked_only_inside_and_by_rays_own_script_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ray._private import ray_constants

    for name in (fork_client.ADDRESS_VARIABLE, fork_client.INSTEAD_VARIABLE):
        monkeypatch.setenv(name, "")
    with _forked_workers(None):
        assert ray_constants.SETUP_WORKER_FILENAME == "setup_worker.py"
    with _forked_workers("word"):
        assert fork_client.__file__ == ray_constants.SETUP_WORKER_FILENAME
        assert os.environ[fork_client.ADDRESS_VARIABLE] == "word"
        assert Path(os.environ[fork_client.INSTEAD_VARIABLE]).name == "setup_worker.py"
    assert ray_constants.SETUP_WORKER_FILENAME == "setup_worker.py"
    monkeypatch.delattr(ray_constants, "SETUP_WORKER_FILENAME")
    with _forked_workers("word"):
        assert not hasattr(ray_constants, "SETUP_WORKER_FILENAME")
    assert "workers start as new interpreters" in capsys.readouterr().out


def test_a_worker_that_was_to_be_forked_and_is_not_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    OwnRay("folder", 1, "word").register(os.getpid(), "controller")
    OwnRay("folder", 1).register(os.getppid(), "cpu:0")
    assert capsys.readouterr().out == ""
    OwnRay("folder", 1, "word").register(os.getppid(), "cpu:0")
    assert capsys.readouterr().out == "the worker of cpu:0 was not forked: it has started as a new interpreter\n"
