"""Models by hub id: the hub's own client against a server here that answers as the hub does."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from jobs import save_model

COMMIT = "0" * 40
SHAPE: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 64,
    "tie_word_embeddings": False,
}


# By the hub's status and error code.
REFUSED = {"owner/gated": (403, "GatedRepo"), "owner/private": (401, "RepoNotFound")}


class Hub(ThreadingHTTPServer):
    """Serves folders `owner/name` as the hub serves its models.

    Attributes:
        models: folder of them.
        asked: method and path of every request for a file.
    """

    def __init__(self, models: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.models = models
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    """What the hub answers to `/owner/name/resolve/REVISION/FILE`; nothing else is there."""

    server: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self.wfile.write(self._answer())

    def log_message(self, *_: object) -> None:
        """Nothing: `asked` has them."""

    def _answer(self) -> bytes:
        owner, name, *rest = self.path.lstrip("/").split("?")[0].split("/")
        status, headers, content = self._file(f"{owner}/{name}", rest) if rest[:1] == ["resolve"] else (404, {}, b"")
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        return content

    def _file(self, model: str, rest: list[str]) -> tuple[int, dict[str, str], bytes]:
        self.server.asked.append(f"{self.command} {self.path}")
        folder = self.server.models / model
        file = folder.joinpath(*rest[2:])
        if model in REFUSED:
            return REFUSED[model][0], {"X-Error-Code": REFUSED[model][1]}, b""
        if not folder.is_dir():
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        if not file.is_file():
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, b""
        content = file.read_bytes()
        return 200, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}, content


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    served = Hub(tmp_path / "hub")
    yield served
    served.shutdown()
    served.server_close()


def config(tmp_path: Path, model: str, **changes: Any) -> None:
    folder = tmp_path / "hub" / model
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(SHAPE | changes))


def run(hub: Hub, folder: Path, model: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return placebench(hub, folder, "run", "--model", model, "--devices", "cpu:2", *words, **environment)


def placebench(hub: Hub, folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "placebench", *words],
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
        cwd=folder,
        env=os.environ | {"HF_ENDPOINT": hub.address, "HF_HOME": str(folder / "cache")} | environment,
    )


def test_a_plan_knows_the_shape_of_a_hub_model_and_then_has_it_without_the_hub(tmp_path: Path, hub: Hub) -> None:
    config(tmp_path, "owner/small")
    planned = run(hub, tmp_path, "owner/small", "--dry-run", "--set", "rollout.backend=torch")
    assert planned.returncode == 0, planned.stderr
    assert "owner/small, 1.1 M parameters" in planned.stdout
    assert " at most" in planned.stdout
    assert [line for line in hub.asked if line.startswith("GET")] == ["GET /owner/small/resolve/main/config.json"]
    again = run(hub, tmp_path, "owner/small", "--dry-run", "--set", "rollout.backend=torch", HF_HUB_OFFLINE="1")
    assert again.returncode == 0, again.stderr
    assert "owner/small, 1.1 M parameters" in again.stdout


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("owner/none", "neither a preset nor a folder, and {hub} has no such model that you may read: check the name"),
        ("owner/private", "neither a preset nor a folder, and {hub} has no such model that you may read: check the"),
        ("owner/gated", "{hub}/owner/gated gives access on request: ask for it there, and log in with `hf auth login`"),
        ("owner/data", "no config.json on the hub; choose a model that transformers loads"),
        ("owner/--", "not a hub id (owner/name), nor a preset or a folder that is there"),
    ],
)
def test_a_model_that_the_hub_does_not_give_is_refused_in_one_line(
    tmp_path: Path, hub: Hub, model: str, line: str
) -> None:
    (tmp_path / "hub" / "owner" / "data").mkdir(parents=True)
    refused = run(hub, tmp_path, model)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"placebench: model {model}: {line.format(hub=hub.address)}")
    assert refused.stderr.count("\n") == 1
    assert list(tmp_path.glob("runs/*")) == []


def test_a_model_that_is_nowhere_to_be_had_is_refused(tmp_path: Path, hub: Hub) -> None:
    refused = run(hub, tmp_path, "owner/small", HF_HUB_OFFLINE="1")
    assert refused.returncode == 2
    assert refused.stderr == (
        f"placebench: model owner/small: {hub.address} does not answer, and the model is not in the cache"
        f" {tmp_path / 'cache' / 'hub'}: download it where there is a connection (`hf download owner/small`), or name"
        " a folder or a preset\n"
    )
    assert hub.asked == []


def test_a_hub_that_swallows_what_it_is_asked_is_waited_for_once(tmp_path: Path, hub: Hub) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        there = {"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}", "HF_HUB_ETAG_TIMEOUT": "1"}
        refused = run(hub, tmp_path, "owner/small", "--set", "critic_model=owner/other", **there)
    assert refused.returncode == 2
    lines = refused.stderr.splitlines()
    assert [" ".join(line.split()[1:3]) for line in lines] == ["model owner/small:", "model owner/other:"]
    assert all("does not answer, and the model is not in the cache" in line for line in lines)


@pytest.mark.parametrize(
    "variables", [{"HTTP_PROXY": "nonsense://x", "http_proxy": "nonsense://x"}, {"HF_HUB_ETAG_TIMEOUT": "soon"}]
)
def test_variables_of_the_client_that_are_wrong_end_in_one_line(
    tmp_path: Path, hub: Hub, variables: dict[str, str]
) -> None:
    refused = run(hub, tmp_path, "owner/small", **variables)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert refused.stderr.startswith("placebench: model owner/small: ")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"num_experts": 8}, "a mixture of experts (num_experts 8)"),
        ({"max_position_embeddings": 8}, "more than the 8 that owner/other takes"),
        ({"hidden_size": 65_536, "num_hidden_layers": 90}, "no setting fits"),
    ],
)
def test_a_hub_model_that_cannot_be_trained_here_is_refused_before_it_is_downloaded(
    tmp_path: Path, hub: Hub, changes: dict[str, Any], word: str
) -> None:
    config(tmp_path, "owner/other", **changes)
    refused = run(hub, tmp_path, "owner/other", "--set", "rollout.backend=torch")
    assert refused.returncode == 2
    assert word in refused.stderr
    assert [line for line in hub.asked if line.startswith("GET")] == ["GET /owner/other/resolve/main/config.json"]


def test_a_reward_model_of_the_hub_must_give_one_score(tmp_path: Path, hub: Hub) -> None:
    config(tmp_path, "owner/judge", id2label={"0": "bad", "1": "fair", "2": "good"})
    refused = run(hub, tmp_path, "tiny", "--set", "reward_model=owner/judge")
    assert refused.returncode == 2
    assert "reward_model owner/judge: gives 3 scores; name a sequence classifier with a single one" in refused.stderr


def test_a_job_of_a_hub_model_is_checked_before_it_is_queued(tmp_path: Path, hub: Hub) -> None:
    config(tmp_path, "owner/small")
    submit = ("slurm", "submit", "--print", "--gpus-per-node", "4", "--", "run", "--placements", "split", "--model")
    printed = placebench(hub, tmp_path, *submit, "owner/small")
    assert (printed.returncode, printed.stderr) == (0, "")
    refused = placebench(hub, tmp_path, *submit, "owner/none")
    assert refused.returncode == 2
    assert "has no such model that you may read" in refused.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hub_model_trains_and_its_shape_stays_with_the_run(tmp_path: Path, hub: Hub) -> None:
    save_model(tmp_path / "hub" / "owner" / "small")
    done = run(
        hub,
        tmp_path,
        "owner/small",
        *("--placements", "split", "--rounds", "1", "--steps", "2", "--warmup-steps", "1"),
        *("--batch-size", "8", "--mini-batch-size", "8", "--set", "rollout.backend=torch"),
        *("--set", "precision=float32", "--set", "torch_compile=false", "--set", "data.fill_prompts=false"),
    )
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("runs/*")
    content = json.loads((folder / "run.json").read_text())
    assert content["launches"][0]["status"] == "done"
    assert content["models"]["actor"]["hidden_size"] == content["models"]["critic"]["hidden_size"] == 128
    assert content["models"]["reward"] is None
    assert content["hub_models"] == ["owner/small"]
    assert any("model.safetensors" in line for line in hub.asked)
