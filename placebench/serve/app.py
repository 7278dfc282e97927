"""The page's addresses: the shell and its static files, what is new as server-sent events, reports, `/metrics`."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from prometheus_client.exposition import choose_encoder
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from placebench.errors import UsageError
from placebench.report.palette import COLORS
from placebench.serve.files import is_plain
from placebench.serve.guard import REPORT_POLICY, Door, Guard
from placebench.serve.metrics import registry_of
from placebench.serve.run_files import RunFiles
from placebench.serve.sections import REPORT_FILES, Cursor
from placebench.serve.site import POLL_S, Following, Site

STATIC = Path(__file__).parent / "static"
# A reader that takes nothing for so long has gone.
_SEND_TIMEOUT_S = 30.0
# For the last news of a server that ends.
END_GRACE_S = 2.0


def make_app(site: Site, door: Door) -> Starlette:
    """The page of some runs, for those whom the door lets in."""

    async def page(request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def colors(request: Request) -> Response:
        return FileResponse(COLORS)

    async def runs(request: Request) -> Response:
        return _stream(partial(run_lists, site))

    async def run(request: Request) -> Response:
        return _stream(partial(run_news, _followed(site, request)))

    async def file(request: Request) -> Response:
        _followed(site, request)
        name = request.path_params["file"]
        path = site.root / request.path_params["run"] / name
        if name not in REPORT_FILES or not is_plain(path):
            raise HTTPException(404, "there is no such file")
        headers = {"content-security-policy": REPORT_POLICY}
        return FileResponse(path, media_type=REPORT_FILES[name], headers=headers)

    async def metrics(request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(await to_thread.run_sync(lambda: encode(registry_of(_measured(site)))), media_type=kind)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/static/colors.css", colors),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/events", runs),
            Route("/runs/{run}/events", run),
            Route("/runs/{run}/{file}", file),
            Route("/metrics", metrics),
        ],
        middleware=[Middleware(Guard, door=door)],
    )


def _followed(site: Site, request: Request) -> Following:
    try:
        return site.follow(request.path_params["run"])
    except UsageError as error:
        raise HTTPException(404, str(error)) from None


def _measured(site: Site) -> Iterator[RunFiles]:
    for one in site.measured():
        one.catch_up()
        yield one.sections.files


def _stream(events: Callable[[anyio.Event], AsyncIterator[dict[str, Any]]]) -> EventSourceResponse:
    """Events until the reader goes, or the server ends, which they say."""
    ends = anyio.Event()

    async def sent() -> AsyncIterator[ServerSentEvent]:
        async for content in events(ends):
            yield ServerSentEvent(json.dumps(content, allow_nan=False, separators=(",", ":")))
        yield ServerSentEvent("", event="end")

    return EventSourceResponse(
        sent(), send_timeout=_SEND_TIMEOUT_S, shutdown_event=ends, shutdown_grace_period=END_GRACE_S
    )


async def run_lists(site: Site, ends: anyio.Event) -> AsyncIterator[dict[str, Any]]:
    """The list of runs, whenever it has changed, until an event."""
    told = None
    while not ends.is_set():
        runs = await to_thread.run_sync(site.runs)
        if runs != told:
            told = runs
            yield {"runs": runs, "only": site.only}
        await _pause(2 * POLL_S, ends)


async def run_news(followed: Following, ends: anyio.Event) -> AsyncIterator[dict[str, Any]]:
    """What is new of a run, from its beginning on, until an event; and what it was by then."""
    cursor = Cursor()
    while not ends.is_set():
        if news := await followed.news(cursor):
            yield news
        await _pause(followed.pause_s, ends)
    yield await followed.news(cursor, at_once=True)


async def _pause(seconds: float, ends: anyio.Event) -> None:
    with anyio.move_on_after(seconds):
        await ends.wait()
