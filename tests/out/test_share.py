"""`placebench share`: what is in the zip, and that nothing in it says where, by whom and in what environment it ran."""

import gzip
import io
import json
import zipfile
from pathlib import Path

import pandas as pd
import pytest
from invoking import invoke
from layouts import SPLIT, STANDARD, Layout
from pages import ROOT
from synthetic_run import SyntheticRun, gpu_run, read_json

import placebench
from placebench.out.to_files import csv_text
from placebench.record.folder import Status

SECRETS = (
    "trainhost",
    "login-17",
    "alice",
    "s3cr3t",
    "10.1.2.3",
    "/data",
    "/home",
    "/scratch",
    "GPU-0a0a",
    "6.1.0-site",
)
IDS = {"cpu:0": "GPU-0a0a-0", "cpu:1": "GPU-0a0a-1"}


def renamed(layout: Layout) -> Layout:
    pools = {pool: tuple(IDS[device] for device in devices) for pool, devices in layout.pools.items()}
    return Layout(pools, layout.roles, layout.times, layout.step_s)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of GPUs whose every file names hosts, users, paths and what the environment had."""
    run = gpu_run(
        layouts={"standard": renamed(STANDARD), "split": renamed(SPLIT)},
        statuses={(3, "split"): Status.FAILED},
        workload={"model": "/data/alice/models/qwen", "critic_model": "Qwen/Qwen2.5-1.5B", "precision": "bfloat16"},
        header={"gpm": True, "gpm_absent": {"GPU-0a0a-0": "no GPM on trainhost"}, "node": "trainhost.example.org"},
    )
    folder = run.write(tmp_path_factory.mktemp("runs") / "20260301T100000Z-of-alice")
    record = read_json(folder / "run.json")
    record |= {
        "name": "of-alice",
        "command": ["/home/alice/.venv/bin/placebench", "run", "--ray-address", "10.1.2.3:6379", "--", "KEY=s3cr3t"],
        "resumptions": [{"started": record["started"], "command": ["/home/alice/placebench"]}],
        "host": record["host"] | {"hostname": "trainhost.example.org", "kernel": "6.1.0-site"},
        "cluster": {"address": "10.1.2.3:6379", "nodes": [{"name": "login-17"}]},
        "devices": [one | {"node": "trainhost.example.org"} for one in record["devices"]],
        "hub_models": ["Qwen/Qwen2.5-1.5B"],
    }
    (folder / "run.json").write_text(json.dumps(record))
    for trial in (folder / "trials").iterdir():
        (trial / "train.log").write_text("trainhost /home/alice s3cr3t")
        (trial / "launch.json").write_text('{"env": {"KEY": "s3cr3t"}}')
        with (trial / "devices.jsonl").open("a") as stream:
            stream.write('{"kind": "device_error", "device": "GPU-0a0a-0", "message": "lost at /scratch/alice/x"}\n')
    error = "failed: RuntimeError: /home/alice/train.py, line 3: no route to trainhost (10.1.2.3:1) from login-17\n"
    (folder / "trials" / "03-split" / "error.txt").write_text(error)
    return folder


def members(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as found:
        return {name: found.read(name) for name in found.namelist()}


def texts(archive: Path) -> dict[str, str]:
    """The text of every member, names of members included."""
    found = members(archive).items()
    plain = {name: gzip.decompress(content) if name.endswith(".gz") else content for name, content in found}
    return {name: f"{name}\n{content.decode()}" for name, content in plain.items()}


@pytest.fixture(scope="module")
def archive(path: Path) -> Path:
    out = path.parent / "run.zip"
    done = invoke("share", path, out)
    assert (done.exit_code, done.output) == (0, f"{out}\n")
    return out


def test_the_zip_says_nothing_of_hosts_people_paths_and_environment(path: Path, archive: Path) -> None:
    there = "".join(file.read_text() for file in path.rglob("*.*") if file.is_file())
    assert [secret for secret in SECRETS if secret not in there] == []
    told = texts(archive)
    found = [(name, secret) for name, text in told.items() for secret in SECRETS if secret in text]
    assert found == []


def test_the_zip_has_report_figures_trace_and_tables(archive: Path) -> None:
    names = {name.partition("/")[2] for name in members(archive)}
    assert {"summary.json", "report.md", "report.html", "trace.json.gz", "phases.json"} <= names
    assert {
        "tables/launches.csv",
        "tables/steps.csv",
        "tables/spans.csv",
        "tables/devices.csv",
        "tables/comparison.csv",
    } <= names
    assert "plots/timeline.svg" in names
    assert all(name.startswith("20260301T100000Z-of-user/") for name in members(archive))


def test_unpacked_it_is_a_shared_run_with_the_numbers_of_the_whole_one(
    path: Path, archive: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(archive) as found:
        found.extractall(tmp_path)
    (folder,) = tmp_path.iterdir()
    whole, shared = placebench.load(path).compare(), placebench.load(folder).compare()
    assert shared.verdicts == whole.verdicts
    pd.testing.assert_frame_equal(shared.table, whole.table)
    for command in ("show", "report"):
        assert invoke(command, folder).exit_code == 0
    steps = pd.read_csv(folder / "tables" / "steps.csv")
    assert steps["step_s"].tolist() == pytest.approx(placebench.load(path).steps["step_s"].tolist())
    workload = shared.summary.workload
    assert (workload["model"], workload["critic_model"]) == ("model", "Qwen/Qwen2.5-1.5B")
    assert next(launch.error for launch in shared.summary.launches if launch.error) == "RuntimeError"


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their drawing takes most of the time."""
    monkeypatch.setattr("placebench.report.plots.draw_plots", lambda *_: iter(()))


@pytest.mark.usefixtures("no_figures")
def test_the_host_is_kept_where_it_is_asked_for(path: Path, tmp_path: Path) -> None:
    done = invoke("share", path, tmp_path / "run.zip", "--keep-host")
    assert done.exit_code == 0, done.output
    told = "".join(texts(tmp_path / "run.zip").values())
    assert [secret for secret in ("trainhost.example.org", "GPU-0a0a", "6.1.0-site") if secret not in told] == []
    assert [secret for secret in ("alice", "s3cr3t", "/home", "/scratch", "/data") if secret in told] == []


def test_what_cannot_be_shared_is_refused_in_a_line(path: Path, tmp_path: Path) -> None:
    shared = ROOT / "runs" / "reference" / "4x-h200" / "ppo-7b"
    for words, reason in (
        ((shared, tmp_path / "a.zip"), "shared without its raw files"),
        ((path, tmp_path), "Is a directory"),
        ((path, tmp_path / "none" / "a.zip"), "No such file or directory"),
        ((tmp_path / "nowhere", tmp_path / "a.zip"), "there is no such folder"),
    ):
        done = invoke("share", *words)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output
        assert reason in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_cell_of_a_table_is_a_formula() -> None:
    table = pd.DataFrame({"placement": ["=cmd()", None], "@x": [1.5, float("nan")]})
    assert list(pd.read_csv(io.StringIO(csv_text(table)))) == ["placement", "'@x"]
    assert csv_text(table).splitlines()[1:] == ["'=cmd(),1.5", ","]


@pytest.mark.usefixtures("no_figures")
def test_a_run_on_cpus_is_shared_by_whoever_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", nameless)
    run, link = SyntheticRun(rounds=1).write(tmp_path / "run"), tmp_path / "link.zip"
    link.symlink_to("run.zip")
    done = invoke("share", run, link)
    assert (done.exit_code, done.output) == (0, f"{link}\n")
    assert link.is_symlink()
    assert not any("bench/" in text for text in texts(tmp_path / "run.zip").values() if "placebench/" not in text)


def test_a_file_that_is_no_zip_is_left_as_it_is(tmp_path: Path) -> None:
    run, notes = SyntheticRun(rounds=2).write(tmp_path / "run"), tmp_path / "notes.txt"
    notes.write_text("mine\n")
    done = invoke("share", str(run), str(notes))
    assert done.exit_code == 2
    assert f"{notes}: is there, but is no zip: name another file, or remove it" in " ".join(done.output.split())
    assert notes.read_text() == "mine\n"


def test_predictions_from_what_was_shared_are_those_from_the_run(tmp_path: Path) -> None:
    workload = {"model": "tiny", "batch": {"size": 64, "mini_batch_size": 32}}
    run = SyntheticRun(rounds=2, workload=workload, pace=lambda *_: 1.0).write(tmp_path / "run")
    assert invoke("share", str(run), str(tmp_path / "run.zip")).exit_code == 0
    with zipfile.ZipFile(tmp_path / "run.zip") as found:
        found.extractall(tmp_path / "there")
    (shared,) = (tmp_path / "there").iterdir()
    words = ("predict", "--placements", "standard,split,split/overlap=none", "--from")
    told, told_by_all = (invoke(*words, str(one)) for one in (shared, run))
    assert told.exit_code == 0, told.output
    assert told.output.split("Note:")[0] == told_by_all.output.split("Note:")[0]
