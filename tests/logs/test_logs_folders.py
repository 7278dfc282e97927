"""Several files of one run, and folders of event files."""

from pathlib import Path

import log_samples
import pytest
from log_reading import flags, metrics, phases, write

from placebench.errors import UsageError
from placebench.logs.run import read_run


def test_files_of_one_run_complete_each_other(tmp_path: Path) -> None:
    console = write(tmp_path, "step:1 - timing_s/gen:1.0 - timing_s/step:4.0\n")
    other = write(tmp_path, '{"step": 1, "data": {"timing_s/adv": 2.0, "timing_s/gen": 3.0}}\n', "m.jsonl")
    run = read_run([console, other])
    assert metrics(run, 1) == {"timing_s/gen": 1.0, "timing_s/step": 4.0, "timing_s/adv": 2.0}
    assert "files-disagree" in flags(run)
    with pytest.raises(UsageError, match="of different frameworks"):
        read_run([console, write(tmp_path, log_samples.SAMPLES["skyrl"][1], "sky.log")])


def test_a_folder_stands_for_its_event_files(tmp_path: Path) -> None:
    write(tmp_path, log_samples.NEMO_EVENTS, "events.out.tfevents.17.host")
    assert read_run([tmp_path]).dialect.framework == "NeMo-RL"


def verl_events(steps: range, seconds: float) -> bytes:
    """As TensorBoard's writer puts them: an event a metric."""
    return log_samples.FILE_VERSION + b"".join(
        log_samples.event(step, {f"timing_s/{name}": share * seconds})
        for step in steps
        for name, share in (("gen", 0.5), ("update_actor", 0.5), ("step", 1.0))
    )


def test_a_folder_of_a_restarted_run_reads_as_one_file_would(tmp_path: Path) -> None:
    """Also where the last event before the restart is cut off, and a start wrote nothing."""
    before, after = verl_events(range(1, 41), 10.0), verl_events(range(11, 41), 5.0)
    folder = tmp_path / "run"
    folder.mkdir()
    # In the order of names, the later one comes first.
    write(folder, after, "events.out.tfevents.1700009999.host.2.0")
    write(folder, before + before[-40:][:9], "events.out.tfevents.999999999.host.1.0")
    write(folder, log_samples.FILE_VERSION, "events.out.tfevents.1700001000.host.1.0")
    write(folder, "not an event", "notes.txt")
    run = read_run([folder])
    whole = read_run([write(tmp_path, before + after[len(log_samples.FILE_VERSION) :])], name="run")
    assert run.metrics.equals(whole.metrics)
    assert {step: phases(run, step)["step"][0] for step in (10, 11, 40)} == {10: 10.0, 11: 5.0, 40: 5.0}
    assert flags(run) == {"restart", "cut-off", "no-tokens"}
    assert flags(whole) == {"restart", "no-tokens"}
    assert next(flag.text for flag in whole.flags).startswith("the run was restarted at step 11; ")


def test_a_folder_without_steps_is_refused(tmp_path: Path) -> None:
    write(tmp_path, log_samples.FILE_VERSION, "events.out.tfevents.17.host")
    with pytest.raises(UsageError, match=r"no training steps in its 1 TensorBoard event file$"):
        read_run([tmp_path])
    with pytest.raises(UsageError, match="is a directory"):
        read_run([tmp_path], log_format="verl")
