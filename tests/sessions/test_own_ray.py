from pathlib import Path

import pytest

from placebench.sessions.own_ray import _last_words


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "[2026-11-24 20:57:24,085 E 1 1] (gcs_server) logging.cc:118: Unhandled exception: N5boost6systemE."
            " what(): signal_set_service pipe: Too many open files [system:24] /opt/ray/gcs_server(+0x14c3daa) [0x55]",
            "signal_set_service pipe: Too many open files [system:24]",
        ),
        (
            "[2026-11-24 20:59:48,286 C 2 2] (raylet) node_manager.cc:3576:  An unexpected system state has occurred."
            " Check failed: status.has_value() Timed out waiting for file /tmp/r/metrics_agent_port",
            "Timed out waiting for file /tmp/r/metrics_agent_port",
        ),
        (
            'Traceback (most recent call last):\n  File "agent.py", line 72, in <module>\n    warnings.warn(\n'
            "pydantic.warnings.PydanticDeprecated: it is deprecated",
            "pydantic.warnings.PydanticDeprecated: it is deprecated",
        ),
        ("[2026-11-24 20:57:24,060 I 1 1] (gcs_server) gcs_server_main.cc:98: Ray cluster metadata", None),
    ],
)
def test_why_ray_did_not_start_is_found_in_its_logs(tmp_path: Path, line: str, said: str | None) -> None:
    logs = tmp_path / "session_latest" / "logs"
    logs.mkdir(parents=True)
    (logs / "gcs_server.out").write_text("Event stats:\n\n")
    (logs / "raylet.err").write_text(f"*** SIGABRT received ***\n{line}\n/lib/libc.so.6(+0x2724a)\n")
    assert _last_words(tmp_path) == said
