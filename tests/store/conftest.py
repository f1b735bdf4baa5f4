"""A store of each kind, a private PostgreSQL server, and records to put in."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from lamina.record import LayerRun, Run, Timing
from lamina.store import Store, open_store

POSTGRES = pytest.mark.postgres


@pytest.fixture(scope="session")
def a_run() -> Callable[..., Run]:
    """Makes a run, with what the test says instead of the usual."""

    def make(id: str = "20260102-abc", **changes: Any) -> Run:
        usual: dict[str, Any] = {
            "verb": "bench",
            "target": "alexnet",
            "command": "lamina bench alexnet",
            "started": "2026-01-02T03:04:05+00:00",
            "fingerprint": "f00d",
            "config": {"batch": [32], "clocks": ["cpu"]},
            "environment": {
                "date": "2026-01-02T03:04:05+00:00",
                "device": "a chip",
                "torch": "2.13.0",
                "commit": "c0ffee",
            },
        }
        return Run(id=id, **usual | changes)

    return make


@pytest.fixture(scope="session")
def a_layer_run() -> Callable[..., LayerRun]:
    """Makes a layer run, with what the test says instead of the usual."""

    def make(layer: str = "conv1", **changes: Any) -> LayerRun:
        usual: dict[str, Any] = {
            "kind": "convolution",
            "place": 0,
            "phase": "forward",
            "impl": "dense",
            "precision": "fp32",
            "layout": "nchw",
            "batch": 32,
            "device": "cpu",
            "inputs": ((32, 3, 224, 224),),
            "output": (32, 64, 55, 55),
            "parameters": 23_296,
            "flops": 4_497_715_200,
            "bytes": 44_126_208,
            "outcome": "ok",
            "timing": Timing("cpu", "-", 900.5, 899.0, 903.25, 21),
        }
        return LayerRun(layer=layer, **usual | changes)

    return make


@pytest.fixture(params=["file", pytest.param("postgres", marks=POSTGRES)])
def shared_address(request: pytest.FixtureRequest) -> str:
    """Where a new database of each kind that several processes can use will be."""
    return str(request.getfixturevalue("store_path" if request.param == "file" else "postgres_url"))


@pytest.fixture(params=["memory", "file", pytest.param("postgres", marks=POSTGRES)])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty store of each kind."""
    if request.param == "postgres":
        yield request.getfixturevalue("postgres_store")
        return
    with open_store(":memory:" if request.param == "memory" else request.getfixturevalue("store_path")) as store:
        yield store


@pytest.fixture
def process() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts Python code in a process of its own, with arguments and pipes; none outlives the test."""
    source = str(Path(__file__).parents[2] / "src")
    started = []

    def start(code: str, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", code, *arguments]
        environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


@pytest.fixture
def postgres_url(postgres_server: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new database on the server."""
    name = f"t{abs(hash(request.node.nodeid))}"
    admin = create_engine(postgres_server.format("postgres"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
        yield postgres_server.format(name)
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    admin.dispose()


@pytest.fixture
def postgres_store(postgres_database: tuple[Store, Engine]) -> Store:
    """The store of one database, emptied."""
    store, plain = postgres_database
    with plain.begin() as connection:
        connection.exec_driver_sql("TRUNCATE run, environment RESTART IDENTITY CASCADE")
    return store


@pytest.fixture(scope="session")
def postgres_database(postgres_server: str) -> Iterator[tuple[Store, Engine]]:
    """A database for all tests that do not mind its past, and a way to it past the store."""
    url = postgres_server.format("postgres")
    plain = create_engine(url)
    with open_store(url) as store:
        yield store, plain
    plain.dispose()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A PostgreSQL server in a folder of its own: its URL, with {} for the database."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")) or [Path(shutil.which("pg_ctl") or "")]
    if not programs[-1].is_file():
        pytest.skip("PostgreSQL is not installed")
    pytest.importorskip("psycopg")
    program = programs[-1]
    owner = _server_user()
    folder = Path(tempfile.mkdtemp(prefix="pg"))  # short, as the path of a socket must be
    try:
        if owner:
            shutil.chown(folder, owner.pw_uid, owner.pw_gid)

        def call(*command: str | Path) -> None:
            who: dict[str, Any] = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []} if owner else {}
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, **who)
            if done.returncode:
                pytest.skip(f"PostgreSQL does not start: {(done.stderr or done.stdout).strip()[-300:]}")

        data, log = folder / "data", folder / "log"
        call(program.with_name("initdb"), "-D", data, "-U", "lamina", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-k {folder} -c listen_addresses= -c fsync=off"
        call(program, "-D", data, "-w", "-l", log, "-o", options, "start")
        try:
            yield f"postgresql+psycopg://lamina@/{{}}?host={folder}"
        finally:
            call(program, "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _server_user() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root: then it runs as its own user."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
