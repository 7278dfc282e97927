"""The Chromium of this machine, for tests that look at a page."""

import asyncio
import itertools
import shutil
from pathlib import Path
from typing import Any

import aiohttp

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def looked_at(url: str, profile: Path, ready: str, found: str) -> Any:
    """What an expression of JavaScript gives on a page as soon as another one is true there."""
    return asyncio.run(_look(url, profile, f"new Promise(done => {{ const look = () => ({ready}) ? done({found})"
                                           " : setTimeout(look, 50); look(); })"))  # fmt: skip


async def _look(url: str, profile: Path, expression: str) -> Any:
    """Drive a browser of its own by the DevTools protocol."""
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        while b"DevTools listening on " not in (line := await process.stderr.readline()):
            assert line, "the browser does not start"
        address = line.split()[-1].decode()
        async with aiohttp.ClientSession() as session, session.ws_connect(address) as socket:
            numbers = itertools.count(1)

            async def call(method: str, session_id: str | None = None, **params: Any) -> dict[str, Any]:
                number = next(numbers)
                more = {"sessionId": session_id} if session_id else {}
                await socket.send_json({"id": number, "method": method, "params": params} | more)
                while (answer := await socket.receive_json()).get("id") != number:
                    pass
                result: dict[str, Any] = answer.get("result", {})
                return result

            target = await call("Target.createTarget", url=url)
            attached = await call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
            asked = {"expression": expression, "awaitPromise": True, "returnByValue": True}
            # The empty page that was there first takes the question with it.
            while not (answer := await call("Runtime.evaluate", attached["sessionId"], **asked)):
                await asyncio.sleep(0.05)
            await call("Browser.close")
            return answer["result"]["value"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
