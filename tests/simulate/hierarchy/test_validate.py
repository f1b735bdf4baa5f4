import csv
import importlib.util
import io
import json
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import SpecError, UsageError
from lamina.simulate.hierarchy import parse_reference, read_reference, shipped_reference, validate
from lamina.simulate.hierarchy.validate import HOLD_OUT, NUMBERS, ROLES

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "simulator-validation.md"
COLUMNS = ["tag", "dram", *NUMBERS]
MEASURED = {  # MGPUSim runs of the shipped kernel on 36 compute units with 2 MB of L2
    (32, 32, 32): (16.358, 1247, 129, 64, 6, 160),
    (32, 32, 64): (24.702, 2340, 257, 64, 8, 288),
    (32, 256, 256): (103.003, 71184, 8200, 512, 83, 4640),
}


def row(m: int, n: int, k: int, **changed: object) -> dict[str, object]:
    """One line of such a file."""
    us, instructions, reads, writes, walks, lines = MEASURED[m, n, k]
    return {
        **dict.fromkeys(NUMBERS, 0),
        "tag": "cal", "dram": "ideal100", "cus": 36, "l2_kb": 2048, "M": m, "N": n, "K": k, "kt_us": us,
        "inst": instructions, "L1V.read-miss": reads, "L1V.write-miss": writes, "L2TLB.miss": walks,
        "L2.read-miss": lines, **changed,
    }  # fmt: skip


def text(*rows: dict[str, object], columns: list[str] = COLUMNS) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def test_measured_runs_are_met() -> None:
    told: list[float] = []
    result = validate(parse_reference(text(*(row(*shape) for shape in MEASURED))), progress=told.append)
    assert told == pytest.approx([1 / 3, 2 / 3, 1])
    assert result.held
    assert result.mean_error < 0.02 and result.worst_error < 0.03
    assert [run.simulated_us for run in result.rows] == pytest.approx([16.4, 24.7, 103.0], rel=0.03)
    names = {identity.name for identity in result.rows[0].identities}
    assert names == {"instructions", "l1_reads", "l1_writes", "page_walks", "dram_lines", "l2_reads"}
    document = json.loads(json.dumps(result.to_dict()))
    assert document["identities_held"] and len(document["rows"]) == 3


def test_a_broken_identity_is_reported() -> None:
    result = validate(parse_reference(text(row(32, 32, 32, inst=1248, kt_us=32.716))))
    (run,) = result.rows
    assert not result.held
    assert [identity.name for identity in run.identities if not identity.held] == ["instructions"]
    assert run.error == pytest.approx(-0.5, abs=0.02)


def test_lines_beyond_l2_have_a_lower_bound_only() -> None:
    (reference,) = parse_reference(text(row(32, 256, 256, l2_kb=256)))
    assert not reference.fits_l2
    (run,) = validate([reference]).rows
    (lines,) = [identity for identity in run.identities if identity.name == "dram_lines"]
    assert not lines.exact and lines.held and lines.reference == 4640


def test_both_implementations_say_the_same() -> None:
    rows = parse_reference(text(row(32, 32, 32), row(32, 32, 32, dram="hbm_model", cus=4)))
    core, reference = validate(rows), validate(rows, impl="reference")
    assert [r.simulated_us for r in core.rows] == [r.simulated_us for r in reference.rows]
    assert core.rows[0].simulated_us > core.rows[1].simulated_us  # HBM answers sooner


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kt_us": "nan"}, "line 2: kt_us = 'nan': expected a number"),
        ({"kt_us": 0}, "line 2: kt_us = 0: expected more than 0"),
        ({"inst": "many"}, "line 2: inst = 'many': expected an integer"),
        ({"inst": -1}, "line 2: inst = '-1': expected"),
        ({"M": 33}, "line 2: M = 33: expected a multiple of 32"),
        ({"cus": 0}, "line 2: cus = 0: expected 1 to"),
        ({"l2_kb": 1000}, "line 2: l2.bytes = 1024000: expected"),
        ({"dram": "fast"}, "line 2: dram = 'fast': expected 'hbm_model' or 'ideal' with its cycles"),
        ({"dram": "ideal-1"}, "line 2: dram = 'ideal-1'"),
        ({"M": 2**20, "N": 2**20}, "line 2: M, N, K = .*: expected matrices that fit"),
    ],
)
def test_a_wrong_cell_is_rejected(changed: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_reference(text(row(32, 32, 32, **changed)))


def test_all_faults_are_told_with_their_lines() -> None:
    bad = text(row(32, 32, 32, M=33, kt_us="x"), row(32, 32, 32), row(32, 32, 32, dram="?"))
    with pytest.raises(SpecError) as caught:
        parse_reference(bad, "runs.csv")
    assert [fault.line for fault in caught.value.faults] == [2, 2, 4]
    assert str(caught.value).startswith("runs.csv: line 2: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "column 'cus' is missing"),
        (text(columns=[name for name in COLUMNS if name != "inst"]), "line 1: column 'inst' is missing"),
        (text(columns=[*COLUMNS, "K"]), "column 'K' is duplicated"),
        (text(), "expected at least one run"),
        (text() + "1,2,3\n", f"line 2: expected {len(COLUMNS)} cells, got 3"),
        ("\0", "missing|comma-separated"),
    ],
)
def test_a_wrong_file_is_rejected(content: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_reference(content)


@given(st.text(st.characters(codec="utf-8"), max_size=200))
def test_any_text_is_read_or_refused_in_words(noise: str) -> None:
    for content in (noise, text() + noise):
        with pytest.raises(SpecError):
            parse_reference(content)


def test_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("\ufeff" + text(row(32, 32, 32)), encoding="utf-8")
    assert [run.tag for run in read_reference(path)] == ["cal"]
    path.write_bytes(b"\xff\xff")
    with pytest.raises(SpecError, match="expected UTF-8"):
        read_reference(path)
    with pytest.raises(UsageError, match="there is no such file"):
        read_reference(tmp_path / "none.csv")
    with pytest.raises(UsageError, match="at least one run"):
        validate([])


def make_validation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_validation", ROOT / "tools" / "make_validation.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_shipped_runs_are_met_and_only_hold_outs_count() -> None:
    rows = shipped_reference()
    assert len(rows) == 19
    roles = {role: sum(row.role == role for row in rows) for role in ROLES}
    assert roles == {"hold-out": 9, "fitted": 8, "repeat": 2}
    done = validate(rows)
    assert done.held
    document = done.to_dict()
    assert document["hold_out"] == 9
    assert document["hold_out_worst_error"] == max(
        abs(row.error) for row in done.rows if row.reference.role == HOLD_OUT
    )
    assert document["hold_out_mean_error"] < 0.025 and document["worst_error"] > document["hold_out_worst_error"]
    assert PAGE.read_text(encoding="utf-8") == make_validation().page(done), "run tools/make_validation.py"


def test_a_file_without_roles_has_hold_outs_only() -> None:
    (one,) = parse_reference(text(row(32, 32, 32)))
    assert one.role == HOLD_OUT
    with pytest.raises(SpecError, match="role = 'lucky': expected one of hold-out, fitted, repeat"):
        parse_reference(text(row(32, 32, 32, role="lucky"), columns=[*COLUMNS, "role"]))
    fitted = validate(parse_reference(text(row(32, 32, 32, role="fitted"), columns=[*COLUMNS, "role"])))
    assert fitted.hold_out == () and fitted.to_dict()["hold_out_worst_error"] is None
