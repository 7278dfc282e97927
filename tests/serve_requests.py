"""Requests to the live page in this process, by somebody who has the token."""

from pathlib import Path

from starlette.testclient import TestClient

from placebench.serve.app import make_app
from placebench.serve.guard import Door
from placebench.serve.site import Site

TOKEN = "a-secret-that-nobody-guesses"
BEARER = {"authorization": f"Bearer {TOKEN}"}


def client(runs: Path, only: str | None = None) -> TestClient:
    """A client of the page of a folder of runs, or of one run in it."""
    app = make_app(Site(runs, only), Door(TOKEN, 8000))
    return TestClient(app, base_url="http://127.0.0.1:8000", follow_redirects=False)
