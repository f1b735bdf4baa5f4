"""lamina profile, as a person types it."""

import csv
import io
from dataclasses import replace

import pytest
from tests.cli.conftest import Lamina

from lamina.cli.again import Again
from lamina.pipeline import Options
from lamina.spec import Method, Point, Workload

QUICK = ("--repeat", "1", "--device", "cpu", "--no-check")


def test_every_batch_size_is_profiled(lamina: Lamina) -> None:
    result = lamina("profile", "lenet5", *QUICK, "--batch-size", "1,2", "--format", "csv")
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert {row["batch"] for row in rows} == {"1", "2"} and {row["verb"] for row in rows} == {"profile"}
    assert "no GPU" in result.stderr


def test_inference_has_no_backward_phases(lamina: Lamina) -> None:
    result = lamina("profile", "lenet5", *QUICK, "-b", "1", "--inference", "--format", "csv")
    assert {row["phase"] for row in csv.DictReader(io.StringIO(result.stdout))} == {"forward", "step"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected a SPEC"),
        (("lenet5", "--counters", "cores"), "unknown metric or set 'cores'"),
        (("lenet5", "--batch-size", "0"), "expected positive whole numbers"),
        (("lenet6",), "lenet5"),
    ],
)
def test_wrong_options_exit_two(lamina: Lamina, arguments: tuple[str, ...], message: str) -> None:
    result = lamina("profile", *arguments)
    assert result.exit_code == 2 and message in result.stderr.replace("\n", " ")


def test_the_commands_for_a_second_process_ask_for_the_same_work() -> None:
    workload = Workload(device="cuda:1", seed=7, repeat=3, check=False)
    again = Again("net.toml", workload, Options(training=False), ["N=64"], "3x32x32")
    point = Point(16, "tf32", "nhwc", Method())
    same = [
        *("-m", "lamina", "profile", "net.toml", "--batch-size", "16"),
        *("--precision", "tf32", "--layout", "nhwc", "--device", "cuda:1", "--data", "synthetic", "--seed", "7"),
    ]
    shaped = ["--input-size", "3x32x32", "--set", "N=64"]
    assert again.iterate(point)[1:] == [*same, "--inference", *shaped, "--iterate"]
    stored = ["--store", "x.db", "--format", "csv", "--repeat", "3", "--no-check"]
    assert again.profile(point, Options(autotune=True), "x.db")[1:] == [*same, "--autotune", *shaped, *stored]
    part = workload.model_copy(update={"layers": ("features.*", "fc")})
    other = Again("lenet5", part, Options(), [], "").iterate(replace(point, method=Method.parse("fused[pool=false]")))
    assert other[other.index("--impl") + 1] == "fused[pool=false]"
    assert other[other.index("--layer") + 1] == "features.*,fc"
