"""Who is let in, what else every answer says, and what those get who try to look further."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from serve_requests import BEARER, TOKEN, client
from starlette.datastructures import Headers
from synthetic_run import SyntheticRun

from placebench.serve.guard import Door, own_names
from placebench.serve.site import Site

RUN = "20260301T100000Z-demo"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, a file beside their folder, and links that lead to it."""
    above = tmp_path_factory.mktemp("page")
    run = SyntheticRun(rounds=1).write(above / "runs" / RUN)
    (run / "report.html").write_text("<p>the report</p>")
    SyntheticRun(rounds=1).write(above / "elsewhere" / "other")
    (above / "secret.txt").write_text("SECRET")
    (above / "runs" / "linked").symlink_to(above / "elsewhere" / "other")
    (run / "summary.json").symlink_to(above / "secret.txt")
    return above / "runs"


# What is asked, how, with which headers, and the status that answers it.
HOSTILE: list[tuple[str, str, Mapping[str, str], int]] = [
    ("GET", "/", {}, 401),
    ("GET", "/?token=", {}, 401),
    ("GET", f"/?token={TOKEN[:-1]}", {}, 401),
    ("GET", f"/?token={TOKEN}x", {}, 401),
    ("GET", "/?token=%F0%9F%92%A9", {}, 401),
    ("GET", "/?" + "&".join(f"a{number}=1" for number in range(50)) + f"&token={TOKEN}", {}, 401),
    ("GET", "/", {"authorization": f"Basic {TOKEN}"}, 401),
    ("GET", "/", {"authorization": "Bearer"}, 401),
    ("GET", "/", {"cookie": f"placebench-8001={TOKEN}"}, 401),
    ("GET", "/", {"cookie": "placebench-8000=; ===;,"}, 401),
    ("GET", "/events", {}, 401),
    ("GET", "/metrics", {}, 401),
    ("GET", "/static/page.js", {}, 401),
    ("GET", f"/runs/{RUN}/report.html", {}, 401),
    ("GET", "/", {"host": "evil.example"} | BEARER, 421),
    ("GET", "/", {"host": "127.0.0.1.evil.example:8000"} | BEARER, 421),
    ("GET", "/", {"host": "localhost@evil.example"} | BEARER, 421),
    ("GET", "/", {"host": "10.0.0.7:8000"} | BEARER, 421),
    ("GET", "/", {"host": ""} | BEARER, 421),
    ("GET", "/metrics", {"origin": "https://evil.example"} | BEARER, 403),
    ("GET", "/metrics", {"origin": "null"} | BEARER, 403),
    ("GET", "/metrics", {"origin": "http://127.0.0.1:9000"} | BEARER, 403),
    ("POST", "/", BEARER, 405),
    ("DELETE", f"/runs/{RUN}/report.html", BEARER, 405),
    ("OPTIONS", "/metrics", {"origin": "https://evil.example"} | BEARER, 405),
    ("GET", "/runs/../secret.txt", BEARER, 404),
    ("GET", "/runs/%2e%2e/secret.txt", BEARER, 404),
    ("GET", f"/runs/{RUN}/%2e%2e%2f%2e%2e%2fsecret.txt", BEARER, 404),
    ("GET", f"/runs/{RUN}/..%5c..%5csecret.txt", BEARER, 404),
    ("GET", "/runs/%2Fetc/passwd", BEARER, 404),
    ("GET", f"/runs/{RUN}/run.json", BEARER, 404),
    ("GET", f"/runs/{RUN}/summary.json", BEARER, 404),
    ("GET", "/runs/linked/events", BEARER, 404),
    ("GET", "/runs/none/events", BEARER, 404),
    ("GET", "/static/../app.py", BEARER, 404),
    ("GET", "/static/%2e%2e/guard.py", BEARER, 404),
    ("GET", "/static/%00", BEARER, 404),
    ("GET", "/docs", BEARER, 404),
]


@pytest.mark.parametrize(("method", "path", "headers", "status"), HOSTILE)
def test_hostile_requests_get_nothing(
    runs: Path, method: str, path: str, headers: Mapping[str, str], status: int
) -> None:
    answer = client(runs).request(method, path, headers=dict(headers))
    assert answer.status_code == status
    assert "SECRET" not in answer.text
    assert "set-cookie" not in answer.headers
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")


@pytest.mark.parametrize(
    "headers",
    [
        BEARER,
        {"authorization": f"bearer  {TOKEN}"},
        {"cookie": f"other=1; placebench-8000={TOKEN}"},
        BEARER | {"host": "localhost:9999"},
        BEARER | {"host": "[::1]:8000"},
        BEARER | {"origin": "http://127.0.0.1:8000"},
    ],
)
def test_who_has_the_token_sees_the_page(runs: Path, headers: dict[str, str]) -> None:
    answer = client(runs).get("/", headers=headers)
    assert answer.status_code == 200
    assert "<script" in answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_link_leaves_a_cookie_that_lets_in_and_that_no_script_sees(runs: Path) -> None:
    reader = client(runs)
    answer = reader.get(f"/?token={TOKEN}")
    assert answer.headers["set-cookie"] == f"placebench-8000={TOKEN}; HttpOnly; SameSite=Strict; Path=/"
    assert reader.get("/static/page.js").status_code == 200
    assert reader.head("/").status_code == 200


def test_a_report_is_shown_without_scripts(runs: Path) -> None:
    answer = client(runs).get(f"/runs/{RUN}/report.html", headers=BEARER)
    assert answer.text == "<p>the report</p>"
    policy = answer.headers["content-security-policy"]
    assert "sandbox" in policy
    assert "script-src" not in policy


def test_one_run_is_shown_alone(runs: Path) -> None:
    SyntheticRun(rounds=1).write(runs.parent / "more" / "one")
    SyntheticRun(rounds=1).write(runs.parent / "more" / "two")
    reader = client(runs.parent / "more", only="one")
    assert reader.get("/runs/two/report.html", headers=BEARER).status_code == 404
    assert list(Site(runs.parent / "more", "one").folders()) == ["one"]


def test_a_server_for_others_is_called_by_any_address_and_by_its_names() -> None:
    door = Door(TOKEN, 8000, is_local=False, names=own_names("0.0.0.0", ["Proxy.example"]))
    for host, is_own in (
        ("10.0.0.7:8000", True),
        ("proxy.example", True),
        ("PROXY.example:443", True),
        ("evil", False),
    ):
        assert (door.refusal("GET", f"token={TOKEN}".encode(), Headers({"host": host})) is None) == is_own
