"""What is kept of a run for the repository."""

import json
import re
import subprocess
import sys
from pathlib import Path

from synthetic_run import SyntheticRun

ROOT = Path(__file__).resolve().parents[2]


def keep(run: Path, into: Path, **content: object) -> str:
    """Keep a run with other entries of `run.json`; returns the commands that were written."""
    manifest = json.loads((run / "run.json").read_text())
    manifest["host"]["driver"] = None
    (run / "run.json").write_text(json.dumps(manifest | content))
    script = str(ROOT / "benchmarks" / "reference.py")
    subprocess.run([sys.executable, script, str(run), "--into", str(into)], check=True, capture_output=True)
    (block,) = re.findall(r"```bash\n(.*?)```", (into / "commands.md").read_text(), re.DOTALL)
    assert isinstance(block, str)
    return block


def test_the_commands_that_went_on_with_a_run_are_printed_without_paths_of_the_host(tmp_path: Path) -> None:
    start = ["placebench", "run", "--name", "demo", "--out", "/host/out", "--time-limit", "500"]
    resumed = [
        ["placebench", "run", "--resume", "/host/out/20260301T100000Z-demo", "--time-limit", "545"],
        ["placebench", "run", "--resume=/host/out/20260301T100000Z-demo", "--out=/host/out", "--set", "a b"],
    ]
    entries = [{"started": "2026-03-01T11:00:00Z", "command": command} for command in resumed]
    into = tmp_path / "kept"
    run = SyntheticRun(rounds=1).write(tmp_path / "run")
    assert keep(run, into, command=start, resumptions=entries).splitlines() == [
        "placebench run --name demo --time-limit 500",
        "placebench run --resume runs/*-demo --time-limit 545",
        "placebench run --resume runs/*-demo --set 'a b'",
        f"python benchmarks/reference.py runs/*-demo --into {into}",
    ]
    assert "/host/out" not in (into / "report.md").read_text() + (into / "summary.json").read_text()


def test_a_run_that_was_not_gone_on_with_has_one_command(tmp_path: Path) -> None:
    commands = keep(SyntheticRun(rounds=1).write(tmp_path / "run"), tmp_path / "kept").splitlines()
    assert commands[0] == "placebench run --placements standard,split"
    assert len(commands) == 2


def test_no_kept_result_says_where_its_files_lay_on_a_host() -> None:
    kept = [path for path in (ROOT / "runs" / "reference").rglob("*") if path.suffix in (".json", ".md")]
    assert kept
    placed = re.compile(r'--(?:into|out)(?:[ =]|",\s*")/')
    assert [path for path in kept if placed.search(path.read_text())] == []
