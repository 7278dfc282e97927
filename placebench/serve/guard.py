"""Who may see the page: whoever has the token, at an address that is this server's, and no page of anybody else."""

import hmac
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN = "token"
_METHODS = ("GET", "HEAD")
# Nothing but this server's own files, no script or style in the page's text, no frame around it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Of reports, which have their styles and figures inside, and no script.
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'; sandbox"
)
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True)
class Door:
    """What a request must bring.

    Attributes:
        token: the secret of the link.
        port: where the server listens.
        is_local: whether it listens on the loopback interface alone.
        names: host names by which it may be called besides.
    """

    token: str
    port: int
    is_local: bool = True
    names: frozenset[str] = field(default_factory=frozenset)

    @property
    def cookie(self) -> str:
        """The cookie's name; cookies are of a host, whatever the port."""
        return f"placebench-{self.port}"

    def refusal(self, method: str, query: bytes, headers: Headers) -> tuple[HTTPStatus, str] | None:
        """Why a request is not answered, as a status and a line; None where it is."""
        if method not in _METHODS:
            return HTTPStatus.METHOD_NOT_ALLOWED, "this server is read-only: it takes GET and HEAD"
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            return (
                HTTPStatus.MISDIRECTED_REQUEST,
                "this server is not reached by that name: --allow-host NAME allows one",
            )
        if any(origin.partition("://")[2].lower() != hosts[0].lower() for origin in origins):
            return HTTPStatus.FORBIDDEN, "requests from other pages are not answered"
        if not any(self._is_token(given) for given in self._given(query, headers)):
            return HTTPStatus.UNAUTHORIZED, "open the link that placebench printed: it has the token"
        return None

    def brings_token(self, query: bytes) -> bool:
        """Whether a query has the token."""
        return any(map(self._is_token, _queried(query)))

    def _is_own(self, host: str) -> bool:
        """Whether a Host header names this server; a name that others may point here (DNS rebinding) does not."""
        name = _host_name(host)
        if name is None:
            return False
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name == "localhost" or name in self.names
        return address.is_loopback or not self.is_local

    def _given(self, query: bytes, headers: Headers) -> Iterable[str]:
        yield from _queried(query)
        for value in headers.getlist("authorization"):
            scheme, _, given = value.partition(" ")
            if scheme.lower() == "bearer":
                yield given.strip()
        for value in headers.getlist("cookie"):
            try:
                found = SimpleCookie(value).get(self.cookie)
            except CookieError:
                continue
            if found is not None:
                yield found.value

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


class Guard:
    """Lets requests through that the door lets through, and gives every answer its headers."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it and end its connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        query = scope["query_string"]
        refusal = self._door.refusal(scope["method"], query, Headers(scope=scope))
        sets_cookie = refusal is None and self._door.brings_token(query)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if sets_cookie:
                    kept = f"{self._door.cookie}={self._door.token}; HttpOnly; SameSite=Strict; Path=/"
                    headers.append("set-cookie", kept)
            await send(message)

        if refusal is None:
            await self._app(scope, receive, with_headers)
            return
        status, text = refusal
        headers = {"connection": "close"}
        if status is HTTPStatus.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers["allow"] = ", ".join(_METHODS)
        await PlainTextResponse(f"{text}\n", status, headers)(scope, receive, with_headers)


def own_names(host: str, allowed: Iterable[str] = ()) -> frozenset[str]:
    """The host names by which a server that listens at an address may be called, besides those that are allowed."""
    names = {host, *allowed}
    if not is_local(host):
        names |= {socket.gethostname(), socket.getfqdn()}
    return frozenset(name.lower() for name in names)


def is_local(host: str) -> bool:
    """Whether an address is of the loopback interface."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _host_name(host: str) -> str | None:
    """The name in a Host header, without the port; None where it is none."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        port = port.removeprefix(":") if bracket else "-"
    else:
        name, _, port = host.partition(":")
    return name.lower() if name and (not port or port.isdecimal()) else None


def _queried(query: bytes) -> list[str]:
    try:
        return parse_qs(query.decode("ascii"), max_num_fields=10).get(TOKEN, [])
    except ValueError:
        return []
