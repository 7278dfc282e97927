"""The server itself: its answers on the wire, its secret, its end, and the page in a real browser."""

import asyncio
import json
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import uvicorn
from browser import BROWSER, looked_at
from click.testing import CliRunner
from growing_run import GrowingRun
from layouts import SPLIT, STANDARD
from serve_requests import TOKEN
from synthetic_run import SyntheticRun

from placebench.cli import main
from placebench.commands.page import page_beside
from placebench.errors import UsageError
from placebench.serve import server
from placebench.serve.guard import Door
from placebench.serve.server import read_token, server_config
from placebench.serve.site import Site

NASTY = '<img src=x onerror="alert(1)">'
RUN = "20260301T100000Z-demo"
# `placebench serve` that has all the time it needs for its last news.
PATIENT = """
import sys
from placebench.cli import main
from placebench.serve import app, server
app.END_GRACE_S = server.END_GRACE_S = 200
main(["serve", *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose names, log and metrics are markup."""
    runs = tmp_path_factory.mktemp("runs")
    layouts = {"standard": STANDARD, f"split/{NASTY}": replace(SPLIT, times={**SPLIT.times})}
    run = SyntheticRun(layouts, rounds=2, metrics={f"timing_s/{NASTY}": 1.0}).write(runs / RUN)
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(content | {"name": NASTY, "command": ["placebench", NASTY]}))
    for trial in run.glob("trials/*"):
        (trial / "train.log").write_text(f"{NASTY}\n\x1b[31mred\u202e\n")
    return runs


@contextmanager
def serving(runs: Path) -> Iterator[str]:
    """A server that shows the runs in a folder; gives its link."""
    command = [sys.executable, "-m", "placebench", "serve", str(runs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        yield served.stdout.readline().strip()
        served.send_signal(signal.SIGINT)
        assert served.wait() == 0


@pytest.fixture(scope="module")
def link(runs: Path) -> Iterator[str]:
    """The link of a server that shows the run."""
    with serving(runs) as link:
        yield link


def sent(link: str, request: bytes) -> bytes:
    """All that the server says to bytes on a connection of their own."""
    port = int(re.findall(r":(\d+)/", link)[0])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"401"),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 20_000, b"400"),
        (b"GET /" + b"x" * 20_000, b"400"),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"421"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n", b"405"),
    ],
)
def test_hostile_connections_are_answered_and_closed(link: str, request_: bytes, status: bytes) -> None:
    answer = sent(link, request_)
    assert answer.split(b" ", 2)[1] == status
    assert answer.lower().count(b"connection: close") == 1


def test_who_never_says_what_it_wants_is_let_go(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEAD_PATIENCE_S", 0.0)

    async def connect() -> bytes:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            served = uvicorn.Server(server_config(Site(runs), Door(TOKEN, 0)))
            task = asyncio.create_task(served.serve(sockets=[listening]))
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            writer.write(b"GET / HTTP/1.1\r\nHost:")
            answer = b""
            with suppress(ConnectionResetError):  # where it closes on what it has not read yet
                answer = await reader.read()
            writer.close()
            served.should_exit = True
            await task
        return answer

    assert asyncio.run(connect()) == b""


def test_events_tell_of_a_run_and_that_the_server_ends(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "runs" / RUN)
    command = [sys.executable, "-c", PATIENT, str(run.folder.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        port, token = re.findall(r":(\d+)/\?token=(.*)", served.stdout.readline().strip())[0]
        with socket.create_connection(("127.0.0.1", int(port))) as connection:
            head = f"GET /runs/{RUN}/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
            connection.sendall(head.encode())
            lines = connection.makefile("rb")
            data = next(line for line in lines if line.startswith(b"data: "))
            assert json.loads(data[6:])["run"]["name"] == "demo"
            run.add_step(7.0)
            served.send_signal(signal.SIGTERM)
            rest = lines.read()
    assert b'"seconds":[7.0]' in rest
    assert b"event: end" in rest
    assert served.returncode == -signal.SIGTERM


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_shows_the_run_and_takes_nothing_for_markup(link: str, tmp_path: Path) -> None:
    page = f"{link}#/{quote(RUN)}"
    ready = "document.querySelectorAll('canvas').length >= 3 && document.querySelector('pre')?.textContent"
    found = "[document.title, document.querySelectorAll('img').length, document.body.innerText, location.search]"
    title, images, text, search = looked_at(page, tmp_path, ready, found)
    assert title == f"done – {NASTY}"
    assert (images, search) == (0, "")
    assert f"split/{NASTY} against standard: 1.41" in text
    assert "\\x1b[31mred\\u202e" in text
    assert "4 of 4 launches done" in text


# A table that is scrolled and focused and a line of the log, when both have been renewed; and a style that was.
RENEWED = """import('./static/dom.js').then(async ({ element, renew, share }) => {
  document.styleSheets[2].insertRule('.scroll { max-height: 3rem !important; }');
  const table = [...document.querySelectorAll('.scroll')].find((one) => one.textContent.startsWith('deviceload'));
  const log = document.querySelector('pre'), line = log.firstChild;
  table.focus();
  table.scrollTop = 9;
  const [load, lines] = [table.textContent, log.childElementCount];
  const anew = () => table.textContent !== load && log.childElementCount > lines;
  while (table.isConnected && line.isConnected && !anew()) await new Promise((done) => setTimeout(done, 20));
  const painted = (color) => {
    const made = element('p');
    made.style.color = color;
    return made;
  };
  const shown = element('div', {}, painted('red'));
  renew(shown, painted('blue'), element('b'));
  const shares = [0, 0.002, 0.006].map(share);
  return [document.activeElement === table, table.scrollTop, line.isConnected, shown.firstChild.style.color, shares];
})"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_the_page_keeps_its_place_while_it_is_renewed(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "runs" / RUN)
    ended = threading.Event()

    def grow() -> None:
        for number in count(1):
            run.sample(100.0 + number, util=number % 90 / 100)
            with run.trial.log.open("a") as log:
                log.write(f"line {number}\n")
            if ended.wait(0.05):
                return

    growing = threading.Thread(target=grow)
    growing.start()
    try:
        with serving(tmp_path / "runs") as link:
            ready = "document.querySelector('pre')?.firstChild && document.querySelector('td progress')"
            found = looked_at(f"{link}#/{quote(RUN)}", tmp_path, ready, RENEWED)
    finally:
        ended.set()
        growing.join()
    assert found == [True, 9, True, "blue", ["0\u00a0%", "<1\u00a0%", "1\u00a0%"]]


# Charts of their own beside the page's, and what they draw, however often: words with where they begin and end, and
# where arrowheads have their points.
CHARTS = """import('./static/charts.js').then(async ({ Chart, showDevices, showRatio, showSteps }) => {
  let drawn = null;
  const context = CanvasRenderingContext2D.prototype;
  const { fillText, fill, moveTo } = context;
  context.fillText = function (text, x, y, ...more) {
    const half = this.measureText(text).width / 2;
    if (drawn?.element.contains(this.canvas)) drawn.words.add(JSON.stringify([text, x - half, x + half, y]));
    return fillText.call(this, text, x, y, ...more);
  };
  context.moveTo = function (x, y) {
    this.from = [x, y];
    return moveTo.call(this, x, y);
  };
  context.fill = function (...path) {
    if (!path.length && drawn?.element.contains(this.canvas)) drawn.heads.add(JSON.stringify(this.from));
    return fill.call(this, ...path);
  };
  const chart = async (show) => {
    const made = new Chart('of a test');
    drawn = { element: made.element, words: new Set(), heads: new Set() };
    made.element.style.width = '340px';
    document.body.append(made.element);
    show(made);
    await new Promise((done) => setTimeout(done));  // uPlot draws in a microtask
    const boxes = [...made.element.querySelectorAll('.u-marker')].map((one) => one.style.border);
    return { words: [...drawn.words].map((one) => JSON.parse(one)), heads: drawn.heads.size, boxes };
  };
  const row = (values, at) => [at + 1, ...values, 'undecided'];
  const rounds = (...rows) => ({ first: 'standard', of: { split: rows.map(row) } });
  const names = ['standard', 'split'];
  const launches = [1, 2, 3].flatMap((round) => names.map((placement) => ({ round, placement, warmup: 0 })));
  const step = { at: [1, 2, 3], seconds: [1, 1, 1] };
  const series = Object.fromEntries(launches.map((one) => [`${one.round}/${one.placement}`, step]));
  const devices = [0, 1, 2, 3, 4, 5, 6, 7].map((place) => ({ id: `gpu:${place}`, label: `gpu:${place}` }));
  const samples = Object.fromEntries(devices.map(({ id }) => [`one/${id}`, { at: [0, 1], load: [0.5, 0.6] }]));
  return [
    await chart((made) => showRatio(made, rounds([1.3, null, null], [0.9, 0.02, 35.46], [0.95, 0.9, 1.02]))),
    await chart((made) => showRatio(made, rounds([1.3, null, null], [0.9, 0.02, 35.46]))),
    await chart((made) => showSteps(made, { placements: names.map((name) => ({ name })), launches }, series)),
    await chart((made) => showDevices(made, devices, samples, 'one', 'load')),
  ];
})"""


def ratio_ticks(chart: dict[str, Any]) -> list[float]:
    """The numbers beside a chart's axis; those of rounds stand below it."""
    numbers = [(float(word), y) for word, _, _, y in chart["words"] if word.replace(".", "").isdecimal()]
    return [number for number, y in numbers if y < max(y for _, y in numbers)]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_charts_show_the_last_interval_no_word_over_another_and_no_line_twice(link: str, tmp_path: Path) -> None:
    ready = "window.uPlot && document.querySelectorAll('canvas').length >= 3"
    narrow, wide, steps, devices = looked_at(f"{link}#/{quote(RUN)}", tmp_path, ready, CHARTS)
    assert (min(ratio_ticks(narrow)), max(ratio_ticks(narrow))) == (0.9, 1.2)
    assert (min(ratio_ticks(wide)), max(ratio_ticks(wide))) == (0.25, 4.0)
    assert (narrow["heads"], wide["heads"]) == (2, 2)
    places = sorted((low, high) for word, low, high, _ in steps["words"] if word.endswith(("standard", "split")))
    assert len(places) > 1
    assert all(end < begin for (_, end), (begin, _) in pairwise(places))
    # Of eight devices no two have the same line.
    assert len(set(devices["boxes"][1:])) == 8


def test_the_link_is_told_when_all_is_made_so_that_a_signal_finds_nothing_half_done(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def configure(config: uvicorn.Config) -> None:
        told.append("logging")

    def stop(link: str) -> None:
        told.append("link")
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Config, "configure_logging", configure)
    with pytest.raises(KeyboardInterrupt):
        server.serve(Site(runs), host="127.0.0.1", port=0, token=TOKEN, on_open=stop)
    assert told == ["logging", "link"]


def test_a_token_file_is_made_once_and_nobody_else_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = read_token(path)
    assert len(token) == 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_token(path) == token
    for wrong in ("", "short", "x" * 300, "with spaces in it, and long enough"):
        path.write_text(wrong)
        with pytest.raises(UsageError, match="token"):
            read_token(path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none"], "none: there is no such folder, and no run of this name under runs/"),
        ([""], "RUN is empty: name a run, or a folder of runs"),
        ([], "there is no run under runs/ yet; start one with placebench run"),
        ([".", "--host", "192.0.2.1"], "--host 192.0.2.1 --port 0: cannot listen there: "),
        ([".", "--host", "no such host"], "--host no such host --port 0: cannot listen there: "),
        ([".", "--token-file", "none/token"], "none/token: cannot write a token there: No such file or directory"),
        ([".", "--token-file", ""], "Invalid value for '--token-file': it is empty: name a file"),
        ([".", "--port", "70000"], "Invalid value for '--port'"),
    ],
)
def test_what_cannot_be_served_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["serve", *arguments], prog_name="placebench")
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(main, ["serve", ".", "--port", str(port)], prog_name="placebench")
        told = f"{port}: the port is taken: choose another, or 0 for a free one"
        assert (result.exit_code, result.stderr) == (2, f"placebench: --host 127.0.0.1 --port {told}\n")
        with pytest.raises(UsageError) as refused, page_beside(tmp_path / "runs" / "run", port):
            pass
        assert str(refused.value) == f"--serve {told}"


def test_the_page_says_which_package_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placebench.commands.page.find_spec", lambda name: None if name == "uvicorn" else name)
    result = CliRunner().invoke(main, ["serve", str(tmp_path)], prog_name="placebench")
    assert result.exit_code == 2
    assert result.stderr == "placebench: the live page needs uvicorn: pip install 'placebench[serve]'\n"
