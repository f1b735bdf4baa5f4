"""Shipped rows are those of the results files."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from lamina.pipeline.reproduce.recorded import names, recorded

PATH = Path(__file__).parents[1] / "tools" / "make_recorded.py"
MOST = 125_000
"""Bytes of one extract."""


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_recorded", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["make_recorded"] = module
    spec.loader.exec_module(module)
    return module


MAKE = tool()


@pytest.mark.parametrize("name", MAKE.EXTRACTS)
def test_an_extract_is_its_results_file_s(name: str) -> None:
    path = MAKE.FOLDER / f"{name}.json"
    text = path.read_text(encoding="utf-8")
    assert text == MAKE.text(MAKE.EXTRACTS[name]), "run tools/make_recorded.py"
    assert len(text) < MOST
    found = recorded(name)
    assert found.rows and (PATH.parents[1] / found.source).is_file()
    assert {"device", "date", "commit", "command"} <= found.provenance.keys()


def test_nothing_else_is_shipped() -> None:
    assert {*names()} == {*MAKE.EXTRACTS}
