"""Jobs whose scripts replace `PYTHONPATH`: what of placebench's they lose, and what the user is told."""

import shlex
from pathlib import Path

import pytest
from fake_jobs import write
from told_settings import job, launch

from placebench.jobs.python_path import replaced_path
from placebench.jobs.scripts import read_command
from placebench.jobs.usable import unusable


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("export PYTHONPATH=/mine  # as ever", "'PYTHONPATH=/mine'"),
        ("PYTHONPATH='/my own' python x.py", "\"PYTHONPATH='/my own'\""),
        ("cd .; PYTHONPATH=$PWD python x.py", "'PYTHONPATH=$PWD'"),
        ("env -u A PYTHONPATH= python x.py", "'PYTHONPATH='"),
        ("unset  PYTHONPATH", "'unset PYTHONPATH'"),
        ("export PYTHONPATH=/mine:$PYTHONPATH", None),
        ('export PYTHONPATH="/mine${PYTHONPATH:+:$PYTHONPATH}"', None),
        ("PATHS=/mine:${PYTHONPATH}; export PYTHONPATH=$PATHS", None),
        ("PYTHONPATH+=:/mine", None),
        ("# PYTHONPATH=/mine", None),
        ("python x.py env.PYTHONPATH=/mine", None),
        ("MY_PYTHONPATH=/mine", None),
    ],
)
def test_a_script_that_replaces_the_path_is_seen(tmp_path: Path, line: str, said: str | None) -> None:
    write(tmp_path, "run.sh", f'echo begin\n{line}\npython x.py "$@"\n')
    where = f"run.sh, line 2: {said}" if said else None
    assert replaced_path(read_command(("bash", "run.sh"), tmp_path)) == where


def test_a_command_that_replaces_the_path_is_seen(tmp_path: Path) -> None:
    write(tmp_path, "x.py", "PYTHONPATH=3\n")
    command = "bash -c 'export PYTHONPATH=/mine; python x.py {args}'"
    assert replaced_path(read_command(shlex.split(command), tmp_path)) == "the command: 'PYTHONPATH=/mine'"
    assert replaced_path(read_command(("python", "x.py"), tmp_path)) is None


def test_what_is_lost_with_the_path_is_told_or_refused(tmp_path: Path) -> None:
    write(tmp_path, "run.sh", 'export PYTHONPATH=/mine\npython x.py "$@"\n')
    lost = "run.sh, line 1: 'PYTHONPATH=/mine' drops what PYTHONPATH had before, "
    watched = job("command", "bash run.sh", tmp_path)
    assert list(unusable(watched)) == []
    assert watched.remarks == watched.record.notes
    assert watched.remarks[0].startswith(f"{lost}so placebench's hooks write no spans")
    assert job("command", "bash run.sh", tmp_path, attach=False).remarks == ()
    (reason,) = unusable(job("verl", "bash run.sh", tmp_path))
    assert reason.startswith(f"command: {lost}and with it placebench's module for verl")
    (reason,) = unusable(job("command", "bash run.sh", tmp_path, ray="10.0.0.1:6379"))
    assert "and with it the hooks that Ray loads for the cluster's workers" in reason


@pytest.mark.parametrize(
    ("ray", "address", "is_there"),
    [("own", None, False), ("own", "h:1", False), ("none", None, False), ("none", "h:1", True), ("h:1", None, True)],
)
def test_ray_is_told_to_load_the_hooks_only_on_a_cluster_that_is_there(
    monkeypatch: pytest.MonkeyPatch, ray: str, address: str | None, is_there: bool
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    env = {"RAY_ADDRESS": address} if address else {}
    asked = job("command", "python x.py", ray=ray, env=env, placements={"all": {}})
    assert ("RAY_RUNTIME_ENV_HOOK" in launch(asked, "all", 1).env) == is_there
