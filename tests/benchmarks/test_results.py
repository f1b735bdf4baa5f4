"""Results are written whatever they are."""

import argparse
import json
from math import inf, nan
from pathlib import Path

import pytest

from benchmarks import results


def test_numbers_that_are_not_finite_are_written_by_name_and_told(tmp_path: Path) -> None:
    asked = argparse.Namespace(output=tmp_path, commit="c0ffee0")
    with pytest.warns(UserWarning, match="does not fit the schema"):
        path = results.write("wrong", "cpu", [{"rel_error": inf, "all": (1.5, nan)}], {"worst": -inf}, asked)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["rows"] == [{"rel_error": "inf", "all": [1.5, "nan"]}]
    assert written["summary"] == {"worst": "-inf"}
