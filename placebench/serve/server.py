"""The server of the page: its socket, its secret, and its end."""

import asyncio
import errno
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import quote

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from placebench.errors import UsageError
from placebench.serve.app import END_GRACE_S, make_app
from placebench.serve.guard import TOKEN, Door, is_local, own_names
from placebench.serve.site import Site
from placebench.spec.reading import read_text

# Of a request line with all its headers.
_HEAD_BYTES = 16 << 10
_HEAD_PATIENCE_S = 10.0
_MOST_CONNECTIONS = 100
_LEAST_TOKEN, _MOST_TOKEN = 16, 256
_TOKEN = re.compile(f"[A-Za-z0-9_-]{{{_LEAST_TOKEN},{_MOST_TOKEN}}}")


class PromptProtocol(H11Protocol):
    """Lets go of who connects and does not say what it wants in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self.loop.call_later(_HEAD_PATIENCE_S, self._end_unless_asked)

    def _end_unless_asked(self) -> None:
        if vars(self)["cycle"] is None:  # there was no whole request
            self.transport.close()


def serve(
    site: Site,
    *,
    host: str,
    port: int,
    token: str,
    names: Iterable[str] = (),
    on_open: Callable[[str], None],
) -> None:
    """Serve the page until SIGINT or SIGTERM, which ends it in order.

    Args:
        site: what to show.
        host: the address, or its name, to listen at.
        port: the port; 0 for a free one.
        token: the secret of the link.
        names: further host names by which the server may be called.
        on_open: called with the link as soon as it can be opened.

    Raises:
        UsageError: the address is none of this host, or the port is taken.
    """
    listening = _listen(host, port)
    with listening:
        port = listening.getsockname()[1]
        door = Door(token, port, is_local(host), own_names(host, names))
        # Before anybody knows of it, who may end it at once: a signal in the middle of this would be no end in order.
        server = uvicorn.Server(server_config(site, door))
        on_open(f"http://{_in_url(host)}:{port}/?{TOKEN}={quote(token)}")
        server.run(sockets=[listening])


def server_config(site: Site, door: Door) -> uvicorn.Config:
    """How the server behaves: patient with nobody, silent about everybody."""
    return uvicorn.Config(
        make_app(site, door),
        http=PromptProtocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=int(END_GRACE_S) + 1,
    )


def new_token() -> str:
    """A secret that nobody guesses."""
    return secrets.token_urlsafe(32)


def read_token(path: Path) -> str:
    """The secret in a file; one that is not there yet is made, for nobody but its owner to read.

    Raises:
        UsageError: it cannot be read or written, or what it holds is no secret.
    """
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
            stream.write(f"{new_token()}\n")
    except FileExistsError:
        pass
    except OSError as error:
        raise UsageError(f"{path}: cannot write a token there: {error.strerror}") from None
    token = read_text(path, at_most=_MOST_TOKEN + 2).strip()
    if not _TOKEN.fullmatch(token):
        raise UsageError(
            f"{path}: not a token of {_LEAST_TOKEN} to {_MOST_TOKEN} letters, digits, - and _; remove the file, and a"
            " new one is made"
        )
    return token


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=_MOST_CONNECTIONS)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES):
            why = "the port is taken" if error.errno == errno.EADDRINUSE else "this user may not have the port"
            raise UsageError(f"--host {host} --port {port}: {why}: choose another, or 0 for a free one") from None
        said = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--host {host} --port {port}: cannot listen there: {said}") from None


def _in_url(host: str) -> str:
    """A host as it stands in a link; for all addresses of this host its name."""
    if host in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
