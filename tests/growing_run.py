"""A run folder that grows as a test lets it, and a reader of its page."""

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from layouts import SPLIT, step_spans
from synthetic_run import SyntheticRun

from placebench.record.folder import RunFolder, Status, Trial
from placebench.record.progress import PhaseTime, Progress
from placebench.record.writing import append_jsonl, write_json
from placebench.serve.run_files import RunFiles
from placebench.serve.sections import Cursor, Sections

AHEAD = dict.fromkeys([(2, "standard"), (3, "split"), (3, "standard")], Status.PLANNED)


class GrowingRun:
    """Three rounds, of which the first is done and the second has begun, with the launch of split that runs."""

    def __init__(self, path: Path) -> None:
        SyntheticRun(statuses={(2, "split"): Status.RUNNING, **AHEAD}).write(path)
        self.folder = RunFolder(path)
        self.trial: Trial = self.folder.trial(2, "split")
        self.trial.error.unlink()
        write_json(self.trial.launch_file, {})
        self.hold(os.getpid())
        self.steps = 0

    def hold(self, pid: int) -> None:
        """Let a process of this host work on the run."""
        write_json(self.folder.lock_file, {"pid": pid, "host": platform.node(), "since": "2999-01-01T00:00:00Z"})

    def be_at(self, step: int, *phases: tuple[str, float, float | None]) -> None:
        """Let the job be at a step, its phases at so many seconds of its clock; the last of them goes on."""
        running = tuple(phase for phase, _, end in phases if end is None)
        times = tuple(PhaseTime(phase=phase, start=start, end=end) for phase, start, end in phases)
        Progress(stage="step", step=step, steps=6, running=running, phases=times).write(self.trial)
        content = json.loads(self.trial.progress.read_text())
        write_json(self.trial.progress, content | {"mono": max(start for _, start, _ in phases) + 1.0})

    def add_step(self, seconds: float = 1.5, **metrics: float) -> None:
        """Let a step end."""
        start = 100.0 + 2.0 * self.steps
        self.steps += 1
        with self.trial.steps.open("a") as stream:
            append_jsonl(stream, {"step": self.steps, "metrics": {"timing_s/step": seconds, **metrics}})
        with self.trial.spans.open("a") as stream:
            for span in step_spans(SPLIT, self.steps, start):
                append_jsonl(stream, span)

    def sample(self, mono: float, **values: Any) -> None:
        """Let the sampler look at both devices."""
        with self.trial.device_samples.open("a") as stream:
            for device in ("cpu:0", "cpu:1"):
                line = {"kind": "sample", "wall": time.time(), "mono": mono, "device": device, "util": 0.5}
                append_jsonl(stream, line | {"memory_bytes": 2**30, "power_w": None, **values})

    def end(self, status: Status) -> None:
        """Let the launch end so."""
        self.trial.set_status(status)
        content = json.loads(self.folder.run_file.read_text())
        wall = {"total_s": 9.0, "cleanup_s": 0.0}
        entry = {"round": 2, "placement": "split", "trial": "trials/02-split", "status": status, "wall": wall}
        write_json(self.folder.run_file, content | {"launches": [*content["launches"], entry]})


class Reader:
    """What a page knows of a run: it is told what is new, as page.js keeps it."""

    def __init__(self, path: Path) -> None:
        self.sections, self.cursor = Sections(RunFiles(path)), Cursor()
        self.known: dict[str, Any] = {}
        self.series: dict[str, dict[str, dict[str, list[Any]]]] = {}
        self.log: list[str] = []

    def look(self) -> dict[str, Any]:
        """Look once, and again while there is more to read; what is new at the last look."""
        news = self._look()
        while self.sections.files.behind:
            news = self._look()
        return news

    def _look(self) -> dict[str, Any]:
        self.sections.update()
        news: dict[str, Any] = json.loads(json.dumps(self.sections.news(self.cursor), allow_nan=False))
        self.known |= {name: section for name, section in news.items() if name not in ("series", "log")}
        for group, several in news.get("series", {}).items():
            for name, told in several.items():
                known = self.series.setdefault(group, {}).setdefault(name, {})
                for column, values in told.items():
                    if column != "from":
                        known[column] = known.get(column, [])[: told["from"]] + values
        if "log" in news:
            self.log = [*([] if news["log"]["anew"] else self.log), *news["log"]["lines"]]
        return news
