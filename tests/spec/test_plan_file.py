"""plan.toml: written as it is read, and refused with the place of the fault."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import UsageError
from lamina.spec.plan import Alternative, Plan, PlannedLayer, Run, Step
from lamina.spec.plan_file import MOST_BYTES, parse_plan, plan_text, read_plan, write_plan

TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=15)
REAL = st.floats(allow_nan=False, allow_infinity=False)
STEP = st.builds(
    Step, time_us=st.none() | st.floats(1e-3, 1e9), accuracy=st.none() | REAL,
    peak_bytes=st.none() | st.integers(0, 2**40), energy_j=st.none() | REAL,
)  # fmt: skip
LAYER = st.builds(
    PlannedLayer, name=TEXT, type=TEXT, method=TEXT, with_=st.lists(TEXT, max_size=2).map(tuple),
    dense_us=st.none() | REAL, time_us=st.none() | REAL, predicted_us=st.none() | REAL, reason=TEXT,
)  # fmt: skip
FRONT = st.builds(Alternative, time_us=REAL, accuracy=REAL, methods=st.dictionaries(TEXT, TEXT, max_size=2))
RUN = st.builds(
    Run, precision=st.sampled_from(["fp32", "tf32", "bf16", "fp16"]), layout=st.sampled_from(["nchw", "nhwc"]),
    mode=st.sampled_from(["eager", "compiled", "reduce-overhead", "graph"]), method=TEXT,
)  # fmt: skip
PLAN = st.builds(
    Plan, network=TEXT, goal=st.sampled_from(["train", "infer"]), batch=st.integers(1, 4096), run=RUN, before=STEP,
    uniform=STEP, after=STEP, environment=st.dictionaries(TEXT, TEXT, max_size=3), weights=TEXT,
    layers=st.lists(LAYER, max_size=3).map(tuple), front=st.lists(FRONT, max_size=2).map(tuple),
)  # fmt: skip
SMALL = Plan(
    network="mlp", goal="infer", batch=4, layers=(PlannedLayer(name="fc", type="Linear(4, 4)", method="dense"),)
)


@given(PLAN)
def test_what_is_written_is_read(plan: Plan) -> None:
    assert parse_plan(plan_text(plan), "plan.toml") == plan


def test_a_file_says_how_to_apply_it() -> None:
    assert 'lamina.apply(model, "plan.toml")' in plan_text(SMALL)


def test_a_file_and_its_folder(tmp_path: Path) -> None:
    write_plan(SMALL, tmp_path / "deep" / "plan.toml")
    assert read_plan(tmp_path / "deep") == read_plan(tmp_path / "deep" / "plan.toml") == SMALL
    assert [one.name for one in (tmp_path / "deep").iterdir()] == ["plan.toml"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("version = 1", "version = 2", "expected a plan of version 1 as 'lamina study' writes it, got version 2"),
        ("version = 1", "", "got version None"),
        ('goal = "infer"', 'gaol = "infer"', "gaol is unknown: did you mean 'goal'?"),
        ('goal = "infer"', 'goal = "fly"', "goal: input should be 'train' or 'infer', got 'fly'"),
        ("batch = 4", "batch = 0", "batch: input should be greater than or equal to 1, got '0'"),
        ('type = "Linear(4, 4)"', "", "layers\\[0\\] \\(fc\\).type: field required"),
        ('mode = "eager"', 'mode = "fast"', "run.mode: input should be 'eager'"),
        ("batch = 4", "batch = ", "this is not TOML"),
        ("batch = 4", f"batch = {'[' * 5000}", "this is not TOML|nested too deeply"),
        ("batch = 4", f"batch = {'9' * 5000}", "this is not TOML"),
    ],
)
def test_a_fault_is_named_with_its_place(before: str, after: str, message: str) -> None:
    text = plan_text(SMALL)
    assert before in text
    with pytest.raises(UsageError, match=message) as caught:
        parse_plan(text.replace(before, after), "my.toml")
    assert str(caught.value).startswith("my.toml: ")


def test_what_is_no_file_of_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_plan(tmp_path / "none.toml")
    binary = tmp_path / "plan.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="expected UTF-8 text"):
        read_plan(binary)
    with binary.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(UsageError, match="at most 16 MiB"):
        read_plan(binary)


def test_a_plan_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        write_plan(SMALL, tmp_path / "file" / "plan.toml")
