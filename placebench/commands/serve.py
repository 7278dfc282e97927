"""The live page of runs."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from placebench.commands.completion import complete_runs
from placebench.commands.options import WholeRange, option
from placebench.commands.outputs import OutputPath
from placebench.commands.page import check_modules
from placebench.errors import UsageError
from placebench.host.terminal import say
from placebench.record import RUNS

if TYPE_CHECKING:
    from placebench.serve.site import Site

_EXAMPLES = """\b
Examples:
  placebench serve
  placebench serve latest --port 8765
"""


@click.command(epilog=_EXAMPLES, short_help="Show runs on a live page in the browser.")
@click.argument("run", metavar="[RUN|FOLDER]", default=str(RUNS), shell_complete=complete_runs)
@option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@option("--port", type=WholeRange(0, 65535), default=0, metavar="PORT", help="The port.  [default: a free one]")
@option(
    "--token-file",
    type=OutputPath(),
    metavar="FILE",
    help="File with the link's secret, made if missing.  [default: a new secret each time]",
)
@option("--allow-host", multiple=True, metavar="NAME", help="A further name of this server, as behind a proxy.")
def serve(run: str, host: str, port: int, token_file: Path | None, allow_host: tuple[str, ...]) -> None:
    """Serve a page of the runs in a folder, or of one run, until Ctrl-C.

    It reads the files of runs, whoever started them, starts nothing and changes nothing. Only who has the link that it
    prints sees the page. /metrics has the same numbers for Prometheus.
    """
    check_modules()
    if "" in allow_host:
        raise UsageError("--allow-host '': it is empty: name a host, or check whether a variable is unset")
    site = _site(run)
    from placebench.serve.guard import is_local
    from placebench.serve.server import new_token, read_token
    from placebench.serve.server import serve as serve_page

    token = read_token(token_file) if token_file else new_token()

    def on_open(link: str) -> None:
        say(link)
        if not is_local(host):
            said = f"--host {host}: whoever reaches this host and knows the link sees your runs, names and logs,"
            say(f"placebench: {said} and nothing on the way is encrypted; ssh -L needs no --host", sys.stderr)

    with suppress(KeyboardInterrupt):  # by which it is to be ended
        serve_page(site, host=host, port=port, token=token, names=allow_host, on_open=on_open)


def _site(text: str) -> "Site":
    """What a word names: a run, or a folder of runs."""
    from placebench.record.folder import is_run
    from placebench.record.named_runs import find_run
    from placebench.serve.site import Site
    from placebench.spec.reading import exists

    if not text:
        raise UsageError("RUN is empty: name a run, or a folder of runs, or check whether a variable is unset")
    path = Path(text)
    if path == RUNS and not exists(path):
        raise UsageError(f"there is no run under {path}/ yet; start one with placebench run")
    if not path.is_dir() or is_run(path):
        path = find_run(text).resolve()
        if not is_run(path):
            raise UsageError(f"{text}: not the folder of a run: name a run, or a folder of runs")
        return Site(path.parent, path.name)
    return Site(path)
