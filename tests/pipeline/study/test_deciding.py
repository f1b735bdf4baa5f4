"""The last stage: which plan is compared with which settings, and how often."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.study.quick import QUICK, run

from lamina import measure
from lamina.errors import DeviceLostError
from lamina.pipeline.study import deciding
from lamina.pipeline.study.whole import Compared
from lamina.record import Timing
from lamina.record.study import Measured, Settings
from lamina.store import Store


def test_what_was_faster_than_the_best_on_a_second_look_is_looked_at_again(
    tmp_path: Path, data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def busy(*args: Any) -> Any:
        found = compare(*args)
        looked.append(len(found.uniforms))
        if len(looked) > 1:
            return found
        return replace(found, uniforms=tuple(replace(one, timing=slower(one.timing)) for one in found.uniforms))

    def slower(timing: Any) -> Any:
        return replace(timing, median_us=5 * timing.median_us, q3_us=5 * timing.q3_us)

    compare = deciding.compare
    monkeypatch.setattr(deciding, "compare", busy)
    monkeypatch.setattr(deciding, "NEAR", 0.5)  # only the best is timed beside the plan
    found = run(tmp_path, data, store, replace(QUICK, precisions=("fp32", "bf16"))).study
    assert looked[0] < looked[1]
    assert found.uniform.timing is not None and found.whole("before").timing is not None


def test_a_plan_that_made_the_gpu_unusable_is_left_out_of_the_next_process(
    tmp_path: Path, data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Any] = []

    def failing(*args: Any) -> Any:
        compared.append([choice for row in args[1].values() for choice, _ in row])
        if len(compared) == 1:
            monkeypatch.setattr(measure, "lost", lambda _: "CUDA error: unspecified launch failure")
            raise RuntimeError("CUDA error: unspecified launch failure")
        return compare(*args)

    compare, works = deciding.compare, measure.lost
    monkeypatch.setattr(deciding, "compare", failing)
    with pytest.raises(DeviceLostError, match="unspecified launch failure") as error:
        run(tmp_path, data, store)
    assert error.value.layer.startswith("the plan")
    monkeypatch.setattr(measure, "lost", works)
    done = run(tmp_path, data, store)  # as a new process does
    assert compared[0] and compared[0] not in compared[1:]
    assert any("unspecified launch failure" in remark for remark in store.run(done.run_id).remarks)
    assert store.run(done.run_id).status == "done"


class Plans:
    """Makes no networks, but names them."""

    def trained(self, choice: Any) -> Any:
        return f"network of {sorted(choice)}"


FASTER = {"conv": {"fused": 2.0, "sparse": 1.0}, "fc": {"circulant": 3.0}, "head": {"fused": 1.0}}
BOTH = {"conv": "fused", "fc": "circulant", "head": "fused"}


@pytest.mark.parametrize(
    ("choice", "modes", "expected"),
    [
        (BOTH, ["eager"], {"eager": [BOTH]}),
        (
            BOTH,
            ["compiled", "graph"],
            {"compiled": [{"conv": "sparse", "fc": "circulant"}, BOTH], "graph": [BOTH]},
        ),
        ({"head": "fused"}, ["compiled"], {"compiled": [{"head": "fused"}]}),
        ({"fc": "circulant"}, ["compiled"], {"compiled": [{"fc": "circulant"}]}),
    ],
)
def test_networks_without_fused_units_are_made_for_the_compiler_alone(
    monkeypatch: pytest.MonkeyPatch, choice: dict[str, str], modes: list[str], expected: dict[str, Any]
) -> None:
    made: list[str] = []
    trained = Plans.trained

    def recorded(self: Plans, choice: Any) -> Any:
        made.append(trained(self, choice))
        return made[-1]

    monkeypatch.setattr(Plans, "trained", recorded)
    plans: Any = Plans()
    found = deciding._variants(plans, choice, modes, FASTER)
    assert {mode: [one for one, _ in row] for mode, row in found.items()} == expected
    assert len(made) == max(len(row) for row in expected.values()), "each is made once"


def test_a_plan_that_needs_too_much_memory_is_not_faster() -> None:
    timing = Timing("wall", "warm", 1.0, 1.0, 1.0, 9)
    plan = Measured("plan", Settings("fp32", "nchw", "eager"), timing, peak_bytes=9 << 20)
    compared = Compared(plan, (), True, "1 us < 2 us", {"fc": "circulant"})
    assert deciding._within(compared, None) is compared and compared.selected == {"fc": "circulant"}
    refused = deciding._within(compared, 8 << 20)
    assert (refused.faster, refused.selected, refused.reason) == (False, {}, "needs 9.00 MiB of 8.00 MiB")


def measured(time_us: float) -> Measured:
    timing = Timing("wall", "warm", time_us, time_us, time_us, 9)
    return Measured("uniform", Settings("fp32", "nchw", f"{time_us:g}"), timing, 90.0)


def test_few_settings_are_timed_again_the_fastest_first() -> None:
    rows = [measured(time) for time in (1.1, 3.0, 1.0, 1.05, 1.12, 1.15)]
    assert [one.time_us for one in deciding._near(rows, measured(1.0))] == [1.0, 1.05, 1.1]
    best = measured(0.5)
    assert deciding._near(rows, best) == [best]
