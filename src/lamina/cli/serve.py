"""``lamina serve``: the trace database in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.errors import INTERRUPTED, MissingError, UsageError

HOST, PORT = "127.0.0.1", 8765


@handled
def serve(
    store: options.StoreOption = "",
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on. Others than the default let other machines read.")
    ] = HOST,
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="Port; 0 for any that is free.")] = PORT,
    browser: Annotated[bool, typer.Option("--open", help="Open a browser.")] = False,
    tables: Annotated[
        bool, typer.Option("--tables", help="Browse the tables by Datasette instead: pip install 'lamina\\[server]'.")
    ] = False,
) -> None:
    """Show runs and their reports in a browser, until Ctrl-C.

    The database is only read. By default, only this machine can connect.

    Exit codes: 2 the address is taken or the database cannot be read, 3 Datasette is not installed, 130 Ctrl-C.

    Example:

        lamina serve --store postgresql://reports@host/lamina --open
    """
    from lamina.pipeline.serve import Server
    from lamina.store import open_store

    if tables:
        raise typer.Exit(_datasette(options.stored_url(store), host, port))
    with open_store(options.stored_url(store), read_only=True) as database, Server(database, host, port) as server:
        typer.echo(f"{database.place} is shown at {server.url} until Ctrl-C", err=True)
        if browser:
            typer.launch(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _datasette(store: str, host: str, port: int) -> int:
    """Run Datasette on a file, and return its exit code."""
    import subprocess
    import sys
    from importlib.util import find_spec
    from pathlib import Path

    if "://" in store:
        raise UsageError(f"--tables: Datasette reads SQLite files, got {store.partition('://')[0]}://")
    if not Path(store).is_file():
        raise UsageError(f"{store}: expected a trace database, got no file")
    if find_spec("datasette") is None:
        raise MissingError("--tables: Datasette is not installed: pip install 'lamina[server]'")
    words = ["serve", str(Path(store).absolute()), "--host", host, "--port", str(port)]
    try:
        return subprocess.run([sys.executable, "-m", "datasette", *words], check=False).returncode
    except KeyboardInterrupt:
        return INTERRUPTED
