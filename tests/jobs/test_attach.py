"""The hooks in a job's own Python: stand-ins with the shape of the frameworks' timers, run by a Python of the job."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from attach_stand_ins import JOB, STAND_INS

from placebench.jobs.attach.environment import ON_PATH, SPANS, attached


@dataclass
class Watched:
    """A process of a job, as its file tells of it."""

    process: Mapping[str, Any]
    spans: list[tuple[str, str]] = field(default_factory=list)
    """Name and source of each."""
    notes: list[str] = field(default_factory=list)


def read(folder: Path) -> list[Watched]:
    found = []
    for path in folder.iterdir():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert lines[0]["kind"] == "process"
        assert path.name == f"{lines[0]['host']}-{lines[0]['pid']}.jsonl"
        spans = [line for line in lines if line["kind"] == "span"]
        assert all(0 < line["start"] <= line["end"] for line in spans)
        notes = [line["text"] for line in lines if line["kind"] == "note"]
        found.append(Watched(lines[0], [(line["name"], line["source"]) for line in spans], notes))
    return sorted(found, key=lambda one: -len(one.spans))


def run_python(
    program: str, folder: Path, environment: Mapping[str, str] | None = None, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run a program with the hooks; its modules lie in the folder, its spans in `spans` there."""
    (folder / "spans").mkdir()
    (folder / "job.py").write_text(program)
    base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    full = attached({**base, "PYTHONPATH": str(folder), **(environment or {})}, folder / "spans")
    return subprocess.run(
        [python, "-W", "error", "job.py"], cwd=folder, env=full, capture_output=True, text=True, timeout=60, check=False
    )


def write_stand_ins(folder: Path) -> None:
    for name, source in STAND_INS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        (folder / name.split("/")[0] / "__init__.py").touch()  # or a framework that is installed comes before it


def python_3_8() -> str | None:
    """The oldest Python that the hooks are for, where this machine has it, also among those of pyenv."""
    found = (shutil.which("python3.8"), *map(str, Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8")))
    works = (one for one in found if one and subprocess.run([one, "-c", ""], capture_output=True).returncode == 0)
    return next(works, None)


@pytest.fixture(
    params=[
        pytest.param(lambda: sys.executable, id="this Python"),
        pytest.param(python_3_8, id="Python 3.8"),
    ]
)
def python(request: pytest.FixtureRequest) -> str:
    found: Callable[[], str | None] = request.param
    return found() or pytest.skip("no Python 3.8 on this machine")


def test_what_each_framework_times_is_a_span(tmp_path: Path, python: str) -> None:
    write_stand_ins(tmp_path)
    done = run_python(JOB, tmp_path, {"RANK": "3"}, python)
    assert (done.returncode, done.stderr) == (0, "")
    parent, child = read(tmp_path / "spans")
    assert parent.spans == [
        ("step", "timer"),
        ("update_actor", "worker"),
        ("update_weights", "worker"),
        ("update_critic", "worker"),
        ("vLLM.generate", "timer"),
        ("vLLM.generate", "timer"),
        ("training_step", "timer"),
        ("trainer_step", "timer"),
        ("logged", "timer"),
        ("optimizer_step", "timer"),
        ("update_critic", "worker"),
        ("convert_to_training_input", "timer"),
        ("generate", "timer"),
        ("policy_training", "timer"),
        ("rollout", "timer"),
        ("gen", "engine"),
        ("gen", "timer"),
        ("parent", "timer"),
        ("gen", "engine"),
    ]
    assert child.spans == [("child", "timer")]
    assert child.process["ppid"] == parent.process["pid"]
    assert parent.process["environment"]["RANK"] == "3"
    assert parent.process["cores"]
    one_by_one, unknown = parent.notes
    assert one_by_one.startswith("verl computes log-probabilities one token at a time")
    assert "slime.utils.timer is not as this version of placebench knows it" in unknown


def test_a_worker_of_an_engine_says_that_it_is_one_s_child_and_its_gpu(tmp_path: Path) -> None:
    write_stand_ins(tmp_path)
    (tmp_path / "torch.py").write_text(
        "from types import SimpleNamespace\n"
        "cuda = SimpleNamespace(is_initialized=lambda: True, current_device=lambda: 0,"
        " get_device_properties=lambda _: SimpleNamespace(uuid='1234'))\n"
        "_C = SimpleNamespace(_cuda_hasPrimaryContext=lambda _: True)\n"
    )
    program = """
import os, torch
from vllm.v1.worker.gpu_worker import Worker
if os.fork() == 0:
    assert Worker().init_device() == 5
else:
    assert os.wait()[1] == 0
"""
    done = run_python(program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (file,) = (tmp_path / "spans").iterdir()
    process, device = map(json.loads, file.read_text().splitlines())
    assert process["ppid"] != os.getpid()
    assert device == {"kind": "device", "device": "GPU-1234"}


def test_the_sitecustomize_of_the_user_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.theirs = __name__")
    program = "import sys, sitecustomize; print(sys.theirs, sitecustomize.__file__)"
    done = run_python(program, tmp_path)
    assert done.stdout.split() == ["sitecustomize", str(tmp_path / "sitecustomize.py")]


def test_a_sitecustomize_that_looks_for_the_next_one_too_finds_no_circle(tmp_path: Path) -> None:
    source = (ON_PATH / "sitecustomize.py").read_text().replace("_placebench_site", "_their_site")
    (tmp_path / "sitecustomize.py").write_text(f"{source}\nprint('theirs')\n")
    assert run_python("print('on')", tmp_path).stdout == "theirs\non\n"


def test_a_sitecustomize_that_fails_is_told_as_python_tells_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('theirs')")
    done = run_python("print('on')", tmp_path)
    assert done.stdout == "on\n"
    assert "RuntimeError: theirs" in done.stderr


def test_nothing_is_written_where_nothing_is_asked_for(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ON_PATH)}
    environment.pop(SPANS, None)
    program = "import sys, placebench_attach\nwith placebench_attach.span('gen'): print(len(sys.meta_path))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    plain = subprocess.run(
        [sys.executable, "-c", "import sys; print(len(sys.meta_path))"], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == (plain.stdout, "")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_ends_the_spans_and_not_the_job(tmp_path: Path) -> None:
    program = """
import os, shutil
shutil.rmtree(os.environ["PLACEBENCH_SPANS"])
from placebench_attach import span
for _ in range(3):
    with span("gen"):
        print("on")
"""
    done = run_python(program, tmp_path)
    assert done.stdout == "on\non\non\n"
    assert done.stderr.count("placebench: no more spans from process") == 1


def test_the_gpu_of_torch_is_named_once_there_is_a_context_on_it(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("""
class cuda:
    is_there = False
    is_initialized = staticmethod(lambda: cuda.is_there)
    current_device = staticmethod(lambda: 1)
    get_device_properties = staticmethod(lambda index: type("Properties", (), {"uuid": f"uuid-of-{index}"}))

class _C:
    contexts = ()
    _cuda_hasPrimaryContext = staticmethod(lambda index: index in _C.contexts)
""")
    program = """
import torch
from placebench_attach import span
for torch.cuda.is_there, torch._C.contexts in ((False, ()), (True, ()), (True, (0,)), (True, (0, 1)), (True, (0, 1))):
    with span("gen"):
        pass
"""
    done = run_python(program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = (tmp_path / "spans").iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["process", "span", "span", "span", "device", "span", "span"]
    assert lines[4]["device"] == "GPU-uuid-of-1"


def test_an_engine_that_pauses_or_works_long_has_several_spans(tmp_path: Path) -> None:
    program = """
import time
from placebench_attach.wrapping import BusyEngine
# Time passes by sleeping alone: how long this host takes to get on breaks no span.
now = [1000.0]
time.monotonic = lambda: now[0]
def sleep(seconds):
    now[0] += seconds
class Engine:
    def step(self, seconds):
        sleep(seconds)
BusyEngine(gap_s=0.05, longest_s=0.02).watch(Engine, "step", lambda engine: engine.has_no_such_thing)
engine = Engine()
engine.step(0.0)
engine.step(0.0)
sleep(0.1)
engine.step(0.03)
engine.step(0.0)
"""
    assert run_python(program, tmp_path).returncode == 0
    (watched,) = read(tmp_path / "spans")
    assert watched.spans == [("gen", "engine")] * 3
    (note,) = watched.notes
    assert "Engine is not as this version of placebench knows it" in note


def test_what_is_on_the_path_stays_there(tmp_path: Path) -> None:
    own = {"PYTHONPATH": "/theirs", "RAY_RUNTIME_ENV_HOOK": "theirs.hook"}
    assert attached(own, tmp_path) == {
        "PYTHONPATH": f"{ON_PATH}:/theirs", SPANS: str(tmp_path), "RAY_RUNTIME_ENV_HOOK": "theirs.hook",
    }  # fmt: skip
    assert attached(own, tmp_path, is_on_cluster=True)["RAY_RUNTIME_ENV_HOOK"] == "theirs.hook"
    assert attached({}, tmp_path) == {"PYTHONPATH": str(ON_PATH), SPANS: str(tmp_path)}


def test_a_job_on_a_ray_cluster_takes_the_hooks_to_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ON_PATH))
    from placebench_attach.ray_workers import runtime_environment

    monkeypatch.setenv("PYTHONPATH", f"{ON_PATH}{os.pathsep}/theirs")
    monkeypatch.setenv(SPANS, str(tmp_path))
    monkeypatch.setenv("PLACEBENCH_LAUNCH", "token")
    ours = {SPANS: str(tmp_path), "PLACEBENCH_LAUNCH": "token"}
    assert runtime_environment(None) == {"env_vars": {**ours, "PYTHONPATH": f"{ON_PATH}:/theirs"}}
    asked = {"working_dir": "/there", "env_vars": {"PYTHONPATH": "/own", "SEED": "1"}}
    assert runtime_environment(asked) == {
        "working_dir": "/there", "env_vars": {**ours, "SEED": "1", "PYTHONPATH": f"{ON_PATH}:/own"},
    }  # fmt: skip
    assert asked["env_vars"] == {"PYTHONPATH": "/own", "SEED": "1"}
    monkeypatch.setenv("PLACEBENCH_PASSED_ON", "ADAPTERS,MISSING,SEED")
    monkeypatch.setenv("ADAPTERS", "module")
    monkeypatch.setenv("SEED", "2")
    variables = runtime_environment(asked)["env_vars"]
    assert (variables["ADAPTERS"], variables["SEED"]) == ("module", "1")  # what the job itself asks for stays
    assert "MISSING" not in variables
