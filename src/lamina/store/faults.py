"""What a database says when it refuses, in words that help."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from lamina.errors import LaminaError, MissingError, StoreError

_SAFE = "what was written before is safe"
_SQLITE = {
    "SQLITE_NOTADB": "is not a database; name another file",
    "SQLITE_CORRUPT": "is damaged; restore a copy, or save what can be read with sqlite3 FILE .recover",
    "SQLITE_CANTOPEN": "cannot be opened; check that its folder exists and may be written to",
    "SQLITE_READONLY": "may not be written to; change its and its folder's permissions, or name another file",
    "SQLITE_PERM": "may not be read; change its permissions or name another file",
    "SQLITE_BUSY": f"is locked by another process; {_SAFE}: try again when that one is done",
    "SQLITE_LOCKED": f"is locked by another connection; {_SAFE}: try again when that one is done",
    "SQLITE_FULL": f"cannot grow: the disk is full; {_SAFE}: free some space and resume",
    "SQLITE_IOERR": f"cannot be read or written: the disk failed; {_SAFE}: check the disk and resume",
}
_POSTGRESQL = {  # by SQLSTATE, or its first two letters
    "53100": f"cannot grow: the server's disk is full; {_SAFE}: free some space and resume",
    "53": f"has too many connections or too little memory; {_SAFE}: try again later",
    "25006": "may not be written to: the server is read-only; name another database",
    "42501": "may not be used as asked: this user lacks the right; ask its owner",
    "55P03": f"is locked by another process; {_SAFE}: try again when that one is done",
    "40": f"could not finish beside another process; {_SAFE}: try again",
}


@contextmanager
def explained(place: str) -> Iterator[None]:
    """Turn what a database driver raises within into a lamina error about ``place``."""
    try:
        yield
    except DBAPIError as error:
        raise _explanation(place, error.orig) from error
    except sqlite3.Error as error:
        raise _explanation(place, error) from error
    except UnicodeDecodeError as error:  # of a message that quotes what is damaged
        raise StoreError(f"{place} {_SQLITE['SQLITE_CORRUPT']} ({error})") from error


def _explanation(place: str, error: BaseException | None) -> LaminaError:
    said = " ".join(str(error).split())
    if isinstance(error, sqlite3.Error):
        name = getattr(error, "sqlite_errorname", "")
        meaning = _SQLITE.get("_".join(name.split("_")[:2]))
    else:
        state = getattr(error, "sqlstate", None) or ""
        meaning = _POSTGRESQL.get(state) or _POSTGRESQL.get(state[:2])
        # Without a state the server never answered; 08 and 57 are a broken line and a server going down,
        # 28 and 3D an unknown user, password or database.
        if not meaning and state[:2] in ("", "08", "57", "28", "3D"):
            return MissingError(f"{place} cannot be reached; check the server and the URL ({said})")
    return StoreError(f"{place} {meaning} ({said})" if meaning else f"{place}: the database refused: {said}")
