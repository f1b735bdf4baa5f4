"""``serve``: stored runs as pages in a browser. Only reads, and only what a browser may ask a local server."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qs, unquote, urlsplit

from lamina import __version__
from lamina.errors import LaminaError, UsageError
from lamina.pipeline import reports
from lamina.record import Run
from lamina.report.html import PLOTLY_FILE
from lamina.report.html.runs import SIZE, Listing, list_page, message_page, run_page
from lamina.store import Store

KEPT = 16
"""Reports in memory: the last that were opened."""
LONGEST = 2048
"""Characters of an address that is answered."""
IDLE_S = 30.0
"""A browser's connection is closed after this long without a request."""
HEADERS = {
    # Reports hold their own scripts and styles; nothing is loaded from or sent to anywhere else.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src 'self' data: blob:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Page:
    """An answer."""

    body: bytes
    type: str = "text/html; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    cache: str = "no-store"


class Pages:
    """The pages of a store: ``/`` lists runs, ``/runs/ID`` is the report of one."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._reports: OrderedDict[tuple[str, str | None], bytes] = OrderedDict()
        self._library = b""
        self._lock = threading.Lock()  # one report is made at a time

    def page(self, address: str) -> Page:
        """What is at an address of this server; a message where there is nothing."""
        parts = urlsplit(address)
        query = {name: values[-1] for name, values in parse_qs(parts.query, max_num_fields=20).items()}
        try:
            match [unquote(part) for part in parts.path.split("/")[1:]]:
                case [""]:
                    return self._list(query)
                case ["runs", file] if file == PLOTLY_FILE:
                    return Page(self._library, "text/javascript; charset=utf-8", cache="max-age=86400")
                case ["favicon.ico"]:  # every browser asks
                    return Page(b"", "image/x-icon", cache="max-age=86400")
                case ["runs", run_id] if run_id:
                    return self._run(run_id)
        except UsageError as error:
            return _message("Not found", str(error), HTTPStatus.NOT_FOUND)
        except LaminaError as error:
            return _message("The database refused", str(error), HTTPStatus.SERVICE_UNAVAILABLE)
        return _message("Not found", "There is no such page.", HTTPStatus.NOT_FOUND)

    def _list(self, query: dict[str, str]) -> Page:
        verb, target = query.get("verb", ""), query.get("target", "")
        page = int(query["page"]) if query.get("page", "").isdecimal() and len(query["page"]) < 9 else 1
        total = self.store.count_runs(verb, target=target)
        page = max(1, min(page, -(-total // SIZE)))
        runs = self.store.runs(SIZE, verb, offset=SIZE * (page - 1), target=target)
        listing = Listing(runs, total, page, verb, target, self.store.verbs(), self.store.place)
        return Page(list_page(listing).encode())

    def _run(self, run_id: str) -> Page:
        run = self.store.run(run_id)
        with self._lock:
            body = self._reports.get((run.id, run.finished))
            if body is None:
                body = self._made(run)
                if run.finished:
                    self._reports[run.id, run.finished] = body
            if len(self._reports) > KEPT:
                self._reports.popitem(last=False)
        return Page(body)

    def _made(self, run: Run) -> bytes:
        with TemporaryDirectory(prefix="lamina-") as folder:
            path = Path(folder) / "report.html"
            try:
                reports.write(self.store, run.id, path, assets="dir")
            except UsageError as error:
                return run_page(run, str(error)).encode()
            if (library := path.with_name(PLOTLY_FILE)).exists():
                self._library = library.read_bytes()
            return path.read_bytes()


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = f"lamina/{__version__}", ""
    timeout = IDLE_S

    def do_GET(self) -> None:
        self._send(self._page())

    do_HEAD = do_GET

    def _refused(self) -> None:
        self.close_connection = True  # a body that nobody reads may follow
        self._send(_message("Not allowed", "This server only shows.", HTTPStatus.METHOD_NOT_ALLOWED), Allow="GET, HEAD")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refused

    def _page(self) -> Page:
        if not self.server.serves(self.headers.get("Host", "")):
            # A page of another site whose name was pointed at this address must not read what is here.
            return _message("Another host", "Open this server by its own address.", HTTPStatus.MISDIRECTED_REQUEST)
        if len(self.path) > LONGEST:
            return _message("Too long", "The address is too long.", HTTPStatus.REQUEST_URI_TOO_LONG)
        try:
            return self.server.pages.page(self.path)
        except Exception as error:  # the server goes on
            log.exception("GET %s", self.path)
            return _message("Internal error", type(error).__name__, HTTPStatus.INTERNAL_SERVER_ERROR)

    def _send(self, page: Page, **headers: str) -> None:
        self.send_response(page.status)
        for name, value in {**HEADERS, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", page.type)
        self.send_header("Cache-Control", page.cache)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    def log_message(self, format: str, *args: object) -> None:
        log.info(format, *args)


class Server(ThreadingHTTPServer):
    """A server of the pages of a store.

    Args:
        store: opened to read.
        host: address to listen on. On a loopback address only requests to this machine's own names are answered.
        port: 0 for any that is free.

    Raises:
        UsageError: the address cannot be had.
    """

    daemon_threads = True

    def __init__(self, store: Store, host: str, port: int) -> None:
        self.pages = Pages(store)
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"{host}:{port} cannot be had ({reason}): name another --port, or 0 for any") from error
        self.address = str(self.server_address[0])
        self.local = ip_address(self.address).is_loopback

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.server_port}/"

    def serves(self, host: str) -> bool:
        """Whether a request's host is this server."""
        name = host.rpartition(":")[0] or host
        return not self.local or name in ("localhost", self.address)

    def handle_error(self, request: object, client_address: object) -> None:
        log.debug("a connection ended early", exc_info=True)


def _message(title: str, text: str, status: HTTPStatus) -> Page:
    return Page(message_page(title, text).encode(), status=status)
