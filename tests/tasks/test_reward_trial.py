"""A reward function of the user's is called once in the plan, which outlives whatever it does."""

from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

from placebench.cli import main
from placebench.tasks import reward_trial

SOURCE = """import os, subprocess, sys, time
def two(a, b): return 1.0
def fails(p, r, a):
    return 1 / 0
def hangs(p, r, a):
    subprocess.Popen(["sleep", "997"], start_new_session=True)
    time.sleep(997)
def crashes(p, r, a):
    __import__("ctypes").string_at(0)
def ends(p, r, a): os._exit(0)
def text(p, r, a): return "1"
def nothing(p, r, a): print({"error": None})
def far(p, r, a): return float("inf")
async def later(p, r, a): return 1
def asks(p, r, a): return float(input())
class Judge:
    def __call__(self, prompt, response, answer): return response == answer
judge = Judge()
lone = lambda p, r, a: print(p, r, a) or int(p == "what" and a == "42")
NO = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("scores.py").write_text(SOURCE)
    monkeypatch.setattr(reward_trial, "CALL_S", 1)
    return tmp_path


def plan(reward: str, *more: str) -> Result:
    asked = ["run", "--dry-run", "--devices", "cpu:2", "--set", f"data.reward={reward}", *more]
    return CliRunner().invoke(main, asked)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("two", " (scores.py, line 2): cannot be called with prompt, response and answer: too many positional"),
        ("fails", " (scores.py, line 3): raises ZeroDivisionError: division by zero at scores.py, line 4, when called"),
        ("hangs", " (scores.py, line 5): a call of it takes more than 1 s at scores.py, line 7; make that quicker"),
        (
            "crashes",
            " (scores.py, line 8): a call of it ends the process (SIGSEGV) at scores.py, line 9; remove what ends it",
        ),
        (
            "ends",
            " (scores.py, line 10): a call of it ends the process (0); remove what ends it from scores, or",
        ),
        ("text", " (scores.py, line 11): returns '1' (str); a score is a finite number, such as 0.5"),
        ("nothing", " (scores.py, line 12): returns None (NoneType); a score is a finite number"),
        ("far", " (scores.py, line 13): returns inf (float); a score is a finite number"),
        ("later", " (scores.py, line 14): is asynchronous, but must return its score itself; let it call asyncio.run"),
        ("asks", " (scores.py, line 15): raises EOFError: EOF when reading a line at scores.py, line 15, when called"),
        ("NO", ": NO is not a function"),
        ("jugde", ": cannot import it: AttributeError: module 'scores' has no attribute 'jugde'; did you mean 'judge'"),
    ],
)
def test_what_gives_no_score_is_told_in_a_line(here: Path, function: str, reason: str) -> None:
    refused = plan(f"scores:{function}")
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert refused.stderr.startswith(f"placebench: data.reward 'scores:{function}'{reason}")
    left = [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", "997"]]
    assert not left


def test_it_is_called_with_a_prompt_of_the_workload(here: Path) -> None:
    Path("mine.jsonl").write_text('{"prompt": "what", "answer": 42}\n')
    assert reward_trial.try_reward("scores:lone", ("what", "42", "42")) == reward_trial.TriedReward(None, str(here))
    Path("scores.py").write_text('def only(p, r, a):\n    assert (p, r, a) == ("what", "42", "42")\n    return 1\n')
    shown = plan("scores:only", "--set", "data.source=mine.jsonl", "--set", "batch.max_prompt_length=16")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert plan("scores:only").stderr.startswith("placebench: data.reward 'scores:only' (scores.py, line 1): raises")


def test_a_module_of_the_current_folder_must_be_on_every_node(here: Path) -> None:
    for function in ("judge", "lone"):
        assert plan(f"scores:{function}").exit_code == 0
    note = f"can be imported only from the current folder: every node must have {here}, or the module installed"
    assert "current folder" not in plan("scores:judge").stdout
    assert note in plan("scores:judge", "--devices", "gpu:2x2").stdout


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("scores.py:judge", "write the module's name, scores:judge"),
        ("sub/scores.py:judge", "write the module's name, scores:judge, and start placebench in sub or install it"),
        ("mine.ipynb:judge", "workers cannot import a notebook; put the function into a file, such as rewards.py"),
        ("__main__:judge", "__main__ is another program in every worker; put the function into a file"),
        ("scores:<lambda>", "use exact_match, prefix_match, last_number, code_tests, or module:function"),
    ],
)
def test_what_workers_cannot_import_is_told_with_what_they_can(here: Path, name: str, reason: str) -> None:
    refused = plan(name)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert f"data.reward {name!r}: {reason}" in refused.stderr
