"""What the report of a run on GPUs says of them."""

from pathlib import Path

import pytest
from layouts import SPLIT, STANDARD
from showing import printed, read_summary, write_report
from synthetic_run import GPU_WORKLOAD, SyntheticRun, gpu_run

from placebench.compare.comparison import compare_run
from placebench.record.folder import Status
from placebench.report.build import build_report
from placebench.report.summary import summarize
from placebench.report.time_tables import device_wait_grid


@pytest.fixture(scope="module")
def on_gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    times = {"span_s": 0.5, "kernel_s": 0.3, "collective_s": 0.1, "copy_s": 0.05, "no_kernel_s": 0.05}
    kernels = [{"step": 2, "phase": "update_actor", "device": device, **times} for device in ("cpu:0", "cpu:1")]
    path = gpu_run(kernels=kernels).write(tmp_path_factory.mktemp("on_gpus") / "run")
    build_report(path)
    return path


def test_a_report_of_gpus_has_what_they_did_with_its_formula(on_gpus: Path) -> None:
    markdown, html = ((on_gpus / name).read_text() for name in ("report.md", "report.html"))
    text = printed(on_gpus)
    for page in (markdown, html):
        assert "6·N + 12·layers·width·length FLOPs in training" in page
        assert "Attention is not counted as causal" in page
    for page in (markdown, html, " ".join(text.split())):
        assert "MFU update_actor" in page
        assert "MBU gen" in page
        assert "tokens/J" in page
    for page in (markdown, html):
        assert "15 % of them an embedding that is only looked up" in page
        assert "Phases on the devices of a pool" in page
        assert "No kernels were traced" not in page
    assert "| standard | global_pool (2) | update_actor | 50 % | 25 % | 12 % |" in markdown
    assert "| standard | update_actor | 500 ms | 60 % | 20 % | 10 % | 10 % |" in markdown
    assert "| round | placement | status | steps | warm-up | start-up | in steps | tracing | stopping |" in markdown
    assert "| 4.0 s | 0.5 s |\n| 1 | split | done |" in markdown
    assert (on_gpus / "plots" / "efficiency.svg").is_file()
    assert max(map(len, text.splitlines())) <= 80 or "/" in text


def test_the_summary_of_gpus_has_phases_by_pool_and_device(on_gpus: Path) -> None:
    summary = read_summary(on_gpus)
    critic = next(
        found
        for found in summary.placements[1].phases_in_pools
        if (found.pool, found.phase) == ("critic_pool", "update_critic")
    )
    assert (critic.devices, critic.allocated_bytes) == (1, 3 * 2**30)
    assert critic.sm_activity == pytest.approx(0.5)
    assert critic.energy_j == pytest.approx(400 * 0.4 * 1.008, rel=1e-3)
    assert critic.clock_sm_mhz == pytest.approx(1900)
    (traced,) = summary.placements[0].kernels
    assert traced.phase == "update_actor"
    assert traced.collective_s == pytest.approx(0.1)
    rows = {found.key: found for found in summary.placements[0].quantities}
    assert rows["weights_rate"].unit == "B/s"
    # The step that was traced took twice as much.
    assert rows["peak_memory"].value == pytest.approx(0.75 * 2**30)
    assert rows["mfu/update_actor"].value == pytest.approx(0.0535 / 1.008, rel=0.01)


def test_what_each_gpu_waits_for_has_its_parts_inside_phases(tmp_path: Path) -> None:
    """In `standard`, cpu:1 comes first to the collectives of update_actor; in `split`, it has no part in them."""
    phases = [phase for phase in STANDARD.times if phase not in ("adv", "gen")]
    shares = {"span_s": 1.0, "kernel_s": 0.6, "collective_s": 0.1, "copy_s": 0.05, "no_kernel_s": 0.25}
    kernels: list[dict[str, object]] = []
    for phase in phases:
        begin, end = STANDARD.times[phase]
        parts = dict(shares)
        for device in ("cpu:0", "cpu:1"):
            if (phase, device) == ("update_actor", "cpu:1"):
                parts |= {"collective_s": 0.3, "kernel_s": 0.4}
            kernels.append(
                {"phase": phase, "device": device} | {k: share * (end - begin) for k, share in parts.items()}
            )
    path = gpu_run(rounds=2, kernels=kernels, pace=lambda *_: 1.0).write(tmp_path / "run")
    write_report(path)
    summary = read_summary(path)
    waits = {found.key: found for found in summary.placements[0].devices[1].waits}
    # Of 1.26 s of phases gen has 0.50 s, which are not traced, and update_actor 0.24 s; idle are 0.04 s.
    expected = {
        "wait_nothing_to_do": 0.04,
        "wait_slower_ranks": 0.0,
        "wait_slower_ranks_inside": 0.24 * 0.2,
        "wait_collectives": 0.76 * 0.1,
        "wait_host": 0.76 * 0.25,
        "not_traced": 0.50,
    }
    assert {key: found.value for key, found in waits.items()} == pytest.approx(
        {f"{key}/cpu:1": value for key, value in expected.items()}
    )
    # The first round's trace stands for the other's, so that every row is of the same launches.
    assert {found.n for found in waits.values()} == {2}
    launches = {(launch.round, launch.placement): launch.values for launch in summary.launches}
    for key, value in expected.items():
        for number in (1, 2):
            assert launches[number, "standard"][f"{key}/cpu:1"] == pytest.approx(value)
    markdown, html = ((path / name).read_text() for name in ("report.md", "report.html"))
    assert "| sum | share of the step | not traced |\n" in markdown
    assert "| standard | gpu:1 | 40 ms | 48 ms | 76 ms | 190 ms | 354 ms | 27.2 % | 500 ms |" in markdown
    assert "| split | gpu:0 | 40 ms | 0 ms | " in markdown
    for page in (markdown, html):
        assert "host = Σ w · n" in page
        assert "Not traced: time of phases of which there is no trace" in page
        assert "no kernels of the device were traced" not in page


def test_a_report_of_gpus_says_that_no_kernels_were_traced(tmp_path: Path) -> None:
    path = gpu_run(rounds=1).write(tmp_path / "run")
    write_report(path)
    assert "No kernels were traced: time that a phase waits for collectives" in (path / "report.md").read_text()


def test_a_report_of_gpus_names_the_placements_whose_kernels_were_not_traced(tmp_path: Path) -> None:
    times = {"span_s": 0.5, "kernel_s": 0.3, "collective_s": 0.1, "copy_s": 0.05, "no_kernel_s": 0.05}
    path = gpu_run(rounds=1, kernels=[{"phase": "update_actor", "device": "cpu:0", **times}]).write(tmp_path / "run")
    next(path.glob("trials/01-split/kernels.jsonl")).unlink()
    write_report(path)
    assert "No kernels of split were traced: time that a phase waits" in (path / "report.md").read_text()


@pytest.mark.parametrize("traces", [True, False])
def test_what_is_waited_for_names_the_placements_whose_trace_is_lost(tmp_path: Path, traces: bool) -> None:
    times = {"span_s": 0.5, "kernel_s": 0.3, "collective_s": 0.1, "copy_s": 0.05, "no_kernel_s": 0.05}
    kernels = [{"phase": "update_actor", "device": device, **times} for device in ("cpu:0", "cpu:1")]
    run = gpu_run(
        statuses={(1, "split"): Status.OOM, (2, "standard"): Status.FAILED},
        kernels=kernels if traces else (),
        workload={**GPU_WORKLOAD, "trace_kernels": traces},
    )
    path = run.write(tmp_path / "run")
    write_report(path)
    lost = "The first round of split (out of memory) is missing, and with it the trace; --resume runs what is missing."
    for name in ("report.md", "report.html"):
        page = (path / name).read_text()
        assert "no kernels of the device were traced" in page
        assert (lost in page) is traces


def lost_traces(run: SyntheticRun, folder: Path) -> list[str]:
    notes = device_wait_grid(summarize(compare_run(run.write(folder)))).notes
    return [note for note in notes if "is missing, and with it the trace" in note]


def test_a_lost_trace_is_named_where_there_would_be_one(tmp_path: Path) -> None:
    traced = {"workload": {**GPU_WORKLOAD, "trace_kernels": True}}
    lost = gpu_run(statuses={(1, "split"): Status.DEVICE_LOST, (1, "standard"): Status.PLANNED}, **traced)
    assert lost_traces(lost, tmp_path / "lost") == [
        "The first round of standard (not started) and split (lost a device) is missing, and with it the trace;"
        " --resume runs what is missing."
    ]
    running = gpu_run(statuses={(1, "split"): Status.RUNNING}, **traced)
    assert lost_traces(running, tmp_path / "running") == []
    # A placement without a row has nothing that a trace would add to.
    layouts = {"standard": STANDARD, "split": SPLIT, "third": SPLIT}
    failed = {(round_, "split"): Status.FAILED for round_ in (1, 2, 3)} | {(1, "third"): Status.OOM}
    (told,) = lost_traces(gpu_run(layouts=layouts, statuses=failed, **traced), tmp_path / "failed")
    assert "third (out of memory) is missing, " in told
    on_cpus = SyntheticRun(statuses={(1, "split"): Status.OOM}, workload={"model": "tiny", "trace_kernels": True})
    assert lost_traces(on_cpus, tmp_path / "cpus") == []
