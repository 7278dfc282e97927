"""What a shared run says in place of what is secret: of texts in every form, of errors, and of a workload."""

import json
import signal
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invoking import invoke
from synthetic_run import SyntheticRun, read_json

from placebench.compare.read.run import Run
from placebench.compare.read.run_reading import load_run
from placebench.out.masks import Masks
from placebench.plan.limits import LIMITS
from placebench.record.folder import Status
from placebench.record.job_record import JobRecord, LogFlag
from placebench.run.asked import TIME_LIMIT
from placebench.run.failures import judge
from placebench.spec.shapes import hub_models
from placebench.spec.text import format_seconds
from placebench.spec.workload import Workload

FORMS = (
    "https://{0}:{1}@models.{2}.corp/{0}/{1}?token={2}",
    "cannot read {0}/runs/{1}/trials/02-standard/spans.jsonl, line 165",
    "nfs1:/export/home/{0}/{1}",
    "DATA:/home/{0}/{1}",
    "$HOME/{0}/{1}",
    "${{HOME}}/{0}",
    "~{0}/{1}",
    "s3://{0}/{1}",
    "'/home/{0}/My {1} Project/{2}.json'",
    '"{0} {1}/{2} {0}"',
    "'/home/{0}/My {1} Pro",
    "/home/{0}/My {1} Project: no such file",
    r"C:\Users\{0}\My {1}",
    "gpu-17.{0}.corp",
    "{0}.{1}.internal:6379",
    "HF_TOKEN=hf_{0}",
    "ACME={0}",
    "password: {0}",
    "Authorization: Bearer {0}",
    "the token sk-{0}xyz is not known",
    "ghp_{0}abcd",
    "{0}@{1}",
    "log<-/data/{0}",
    "the field '{0} {1}'",
    'no "{0}" among them',
    "{0}/{1}\n{0}/{2} {1}",
    "head-{0}:6379",
    "--hub-token {0}",
    "user={0}",
    "git@{0}.com:{1}/{2}.git",
    r"\\{0}\{1}",
    "<{0}/{1} {2}>",
    "{{'path':'/data/{0}/b'}}",
    '"[/data/{0}/b]"',
)
secrets = st.tuples(*[st.from_regex(r"zq[a-z]{3,8}", fullmatch=True)] * 3)
between = st.sampled_from(("", "error at ", "node node0 (cpu:0): ", "it's in ", "(", "no route from x to "))
behind = st.sampled_from(("", " was lost", ", line 3", "; try again", ")", "."))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(SyntheticRun(rounds=1).write(tmp_path_factory.mktemp("runs") / "run"))


@given(form=st.sampled_from(FORMS), words=secrets, before=between, after=behind)
def test_nothing_of_a_secret_stays_in_a_text(
    run: Run, form: str, words: tuple[str, str, str], before: str, after: str
) -> None:
    told = Masks(run, keep_host=False).text(f"{before}{form.format(*words)}{after}")
    assert [word for word in words if word in told] == [], told


@given(
    address=st.ip_addresses(v=6), form=st.sampled_from(("{}", "[{}]:6379", "node [{}]:6379 was lost", "at {}, port 1"))
)
def test_no_address_stays_in_a_text(run: Run, address: object, form: str) -> None:
    assert str(address) not in Masks(run, keep_host=False).text(form.format(address))


@pytest.mark.parametrize(
    "text",
    [
        "no progress for 1:02:03 (step 2/8), 900 tokens/s",
        "batch.size=12 is less than rollout.tensor_parallel_size=16 of qwen2.5-7b",
        "spans.jsonl, line 165: Invalid JSON: key must be a string at line 1 column 2",
        "gpu:10 of node0 and cpu:12: 'batch.size' must be 4:05 min, the runs' files' at 12:30",
        "it's perf/throughput of timing_s/gen, e.g. 1.5 of it",
    ],
)
def test_words_of_placebench_itself_stay(run: Run, text: str) -> None:
    assert Masks(run, keep_host=False).text(text) == text


@pytest.mark.parametrize(
    ("status", "said", "own", "users"),
    [
        (Status.FAILED, "HTTPError: 401 of zq", "HTTPError", "HTTPError"),
        (Status.FAILED, "acme.zq.errors.HTTPError: zq", "HTTPError", "HTTPError"),
        (Status.OOM, "OutOfMemoryError: zq", "OutOfMemoryError", "OutOfMemoryError"),
        (Status.FAILED, "UsageError: model zq/zq: not there", "UsageError: model path: not there", "UsageError"),
        (Status.FAILED, "the job ended with exit code 3", *["the job ended with exit code 3"] * 2),
        (
            Status.FAILED,
            "the command ended with exit code 1 after 2 of 5 steps: zq zq",
            *["the command ended with exit code 1 after 2 of 5 steps"] * 2,
        ),
        (Status.TIMEOUT, "no progress for 4:05 min (step 2/3: zq)", *["no progress for 4:05 min"] * 2),
        (
            Status.FAILED,
            "the size of a file is limited to 10 MiB by ulimit -f: OSError: zq",
            *["the size of a file is limited to 10 MiB by ulimit -f: OSError"] * 2,
        ),
        (Status.INTERRUPTED, "stopped by SIGINT", *["stopped by SIGINT"] * 2),
        (Status.FAILED, "zq is what the job printed last", None, None),
        (
            Status.DAMAGED,
            "zq/z q/spans.jsonl, line 3: Invalid JSON: no zq/zq",
            "spans.jsonl, line 3: Invalid JSON: no path",
            "spans.jsonl, line 3",
        ),
    ],
)
def test_of_an_error_only_what_is_placebenchs_own_stays(
    run: Run, status: Status, said: str, own: str | None, users: str | None
) -> None:
    launch = replace(run.launches[0], status=status, error=said)
    job = run.record.model_copy(update={"job": JobRecord(framework="command", spec={})})
    assert Masks(run, keep_host=False).error(launch) == own
    assert Masks(replace(run, record=job), keep_host=False).error(launch) == users


CODES = (-signal.SIGKILL, -signal.SIGRTMIN, -35, 3)


@pytest.mark.parametrize(
    "said",
    [
        *(str(judge(code, finished, 5).reason) for code in CODES for finished in (0, 2)),
        str(judge(0, 2, 5).reason),
        *(
            f"{one.what} is limited to {one.show(size)} by ulimit {one.option}"
            for one in LIMITS
            for size in (64, 1 << 40)
        ),
        f"no progress for {format_seconds(7500)}",
        TIME_LIMIT,
    ],
)
def test_how_a_run_says_that_a_launch_ended_stays(run: Run, said: str) -> None:
    launch = replace(run.launches[0], status=Status.FAILED, error=said)
    assert Masks(run, keep_host=False).error(launch) == said


def test_a_model_is_named_where_everybody_knows_it(run: Run) -> None:
    def masked(workload: Mapping[str, Any], *of_the_hub: str) -> dict[str, Any]:
        record = run.record.model_copy(update={"workload": workload, "hub_models": of_the_hub})
        return Masks(replace(run, record=record), keep_host=False).workload()

    folder = {"model": "acme-secret/ckpt-7b", "critic_model": "qwen2.5-7b"}
    assert masked(folder) == {"model": "model", "critic_model": "qwen2.5-7b"}
    assert masked(folder, "acme-secret/ckpt-7b") == folder
    own = {
        "data": {"source": "zq.jsonl", "reward": "zq:f", "prompt_key": "zq", "answer_key": "answer"},
        "rollout": {"backend": "vllm"},
    }
    assert masked(own) == {
        "data": {"source": "source", "reward": "reward", "prompt_key": "prompt_key", "answer_key": "answer"},
        "rollout": {"backend": "vllm"},
    }


def test_the_hub_has_the_models_that_are_no_presets_nor_folders(tmp_path: Path) -> None:
    workload = Workload(model="owner/name", critic_model=str(tmp_path), reward_model="tiny")
    assert hub_models(workload) == ("owner/name",)


def test_what_the_hooks_in_a_job_say_is_not_shared(run: Run) -> None:
    masks = Masks(run, keep_host=False)
    assert "zq" not in masks.flag(LogFlag(name=LogFlag.SPANS, text="Trainer is not as known: zq")).text
    flag = LogFlag(name="open-end", text="the last line has no line end: its last number may be cut off")
    assert masks.flag(flag) == flag


def test_no_file_of_the_zip_has_words_of_a_failed_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placebench.report.plots.draw_plots", lambda *_: iter(()))
    folder = SyntheticRun(rounds=3, statuses={(3, "split"): Status.FAILED}).write(tmp_path / "zq x" / "run")
    record = read_json(folder / "run.json")
    (folder / "run.json").write_text(json.dumps(record | {"job": {"framework": "command", "spec": {}}}))
    said = "failed: HTTPError: 401 for https://zq:hf_zq@models.zq.corp/zq?token=zq and zq\n"
    (folder / "trials" / "03-split" / "error.txt").write_text(said)
    with (folder / "trials" / "02-split" / "spans.jsonl").open("a") as stream:
        stream.write("{zq\n")
    monkeypatch.chdir(tmp_path)
    done = invoke("share", "zq x/run", "run.zip")
    assert done.exit_code == 0, done.output
    with zipfile.ZipFile("run.zip") as archive:
        told = {name: archive.read(name) for name in archive.namelist() if not name.endswith(".gz")}
    assert [name for name, content in told.items() if b"zq" in content] == []
    launches = told["run/tables/launches.csv"].decode()
    assert "HTTPError" in launches
    assert "spans.jsonl, line" in launches
