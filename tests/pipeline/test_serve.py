"""serve: runs and reports over HTTP, and nothing that a hostile page or name could use."""

import http.client
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lamina.errors import UsageError
from lamina.pipeline.serve import KEPT, Server
from lamina.record import Run
from lamina.report.html.runs import SIZE
from lamina.store import Store, open_store

from ..report import records
from ..report.records import bench

HOSTILE = "<script>alert(1)</script>"

Get = Callable[..., tuple[int, str]]


def run(**changes: Any) -> Run:
    return replace(records.run(), **changes)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "runs.db") as store:
        yield store


@pytest.fixture
def get(database: Store, tmp_path: Path) -> Iterator[Get]:
    """Sends a request to a server of the database, and returns status and text."""
    with open_store(tmp_path / "runs.db", read_only=True) as reader, Server(reader, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        def request(path: str, method: str = "GET", body: str | None = None, **headers: str) -> tuple[int, str]:
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            assert "default-src 'none'" in (answer.getheader("Content-Security-Policy") or "")
            text = answer.read().decode()
            connection.close()
            return answer.status, text

        yield request
        server.shutdown()
        thread.join()


def test_an_empty_database_says_how_to_fill_it(get: Get) -> None:
    status, text = get("/")
    assert status == 200 and "lamina bench lenet5" in text


def test_runs_are_listed_filtered_and_paged(database: Store, get: Get) -> None:
    for number in range(SIZE + 1):
        database.begin(run(id=f"r{number:03}", target="alexnet" if number else "vgg16", verb="bench"))
    database.begin(run(id="other", verb="train", target="100%"))
    status, text = get("/")
    assert status == 200 and f"{SIZE + 2} runs" in text and text.count('href="/runs/') == SIZE
    assert get("/?page=2")[1].count('href="/runs/') == 2
    assert get("/?page=999999999999")[0] == get("/?page=-1")[0] == 200
    assert 'href="/runs/r000"' in get("/?target=vgg")[1] and "1 run<" in get("/?target=vgg&verb=bench")[1]
    assert "1 run<" in get("/?target=%25")[1]  # no wildcard
    assert "No run matches." in get("/?verb=nothing")[1]


def test_a_run_is_its_report_with_the_plotting_library_beside_it(database: Store, get: Get) -> None:
    database.begin(run(id="abc"))
    for row in bench():
        database.add("abc", row)
    status, text = get("/runs/abc")
    assert status == 200 and "plotly.min.js" in text and len(text) < 500_000
    status, library = get("/runs/plotly.min.js")
    assert status == 200 and "plotly" in library
    assert get("/runs/ab")[0] == 200  # the beginning of an id, as everywhere


def test_a_run_without_layers_shows_what_is_known_of_it(database: Store, get: Get) -> None:
    database.begin(run(id="abc", verb="sweep"))
    status, text = get("/runs/abc")
    assert status == 200 and "has no layers" in text and "Machine and software" in text


def test_a_running_run_is_made_anew_and_ended_ones_are_kept(database: Store, get: Get) -> None:
    database.begin(run(id="abc", verb="sweep", status="running", finished=None))
    assert "a late remark" not in get("/runs/abc")[1]
    database.finish("abc", "done", "2026-01-02T03:04:05+00:00", ["a late remark"])
    assert "a late remark" in get("/runs/abc")[1]
    for number in range(KEPT + 1):
        database.begin(run(id=f"r{number}", verb="sweep"))
        assert get(f"/runs/r{number}")[0] == 200


def test_names_are_text(database: Store, get: Get) -> None:
    database.begin(run(id=HOSTILE, target=HOSTILE, verb=HOSTILE, command=HOSTILE))
    for path in ("/", f"/?target={quote(HOSTILE)}&verb={quote(HOSTILE)}", f"/runs/{quote(HOSTILE, safe='')}",
                 f"/runs/{quote('<script>alert(2)')}"):  # fmt: skip
        status, text = get(path)
        assert status in (200, 404) and "<script>alert" not in text and "&lt;script&gt;" in text, path


@pytest.mark.parametrize(
    "path", ["/runs/", "/runs/../../etc/passwd", "/etc/passwd", "//evil.example/", "/runs/%00", "/a/b", "/%2e%2e/x"]
)
def test_other_addresses_are_not_found(get: Get, path: str) -> None:
    status, text = get(path)
    assert status in (200, 404) and "root:" not in text
    assert status == 404 or path.startswith("//")


def test_only_reading_requests_to_this_host_are_answered(get: Get) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert get("/", method, body="x=1")[0] == 405
    assert get("/", "HEAD") == (200, "")
    assert get("/", Host="evil.example")[0] == get("/", Host="")[0] == 421
    assert get("/", Host="localhost:80")[0] == 200
    assert get("/" + "a" * 5000)[0] == 414


def test_an_unexpected_error_is_an_answer(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("lamina.pipeline.serve.list_page", fail)
    status, text = get("/")
    assert status == 500 and "ZeroDivisionError" in text and "secret" not in text


def test_many_browsers_at_once(database: Store, get: Get) -> None:
    database.begin(run(id="abc", verb="sweep"))
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda path=path: found.append(get(path)[0])) for path in ("/", "/runs/abc") * 8
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 16


def test_an_address_that_cannot_be_had_is_refused(database: Store) -> None:
    with Server(database, "127.0.0.1", 0) as server:
        for host, port in (("127.0.0.1", server.server_port), ("no.such.host.invalid", 0)):
            with pytest.raises(UsageError, match="name another --port"):
                Server(database, host, port)
