"""The fastest of several settings."""

from dataclasses import replace

import pytest
import torch

from lamina.errors import UnsupportedError, UsageError
from lamina.pipeline.study.config import StudyConfig
from lamina.pipeline.study.uniform import _modes_of, _slower, available, fastest
from lamina.record import Timing
from lamina.record.study import Measured, Settings
from lamina.spec.plan import MODES
from lamina.spec.whole_method import COMPRESSED, combined


def measured(mode: str, time_us: float | None) -> Measured:
    timing = None if time_us is None else Timing("wall", "warm", time_us, time_us, time_us, 9)
    return Measured("uniform", Settings("fp32", "nchw", mode), timing, reason="" if timing else "a wrong type")


def test_settings_without_a_time_are_passed_over() -> None:
    found = fastest([measured("eager", None), measured("compiled", 3.0), measured("graph", 2.0)])
    assert found.settings.mode == "graph"


def test_a_network_that_runs_at_no_settings_is_refused_with_the_reasons() -> None:
    with pytest.raises(UnsupportedError, match="fp32, eager: a wrong type"):
        fastest([measured("eager", None)])


@pytest.mark.parametrize(("tf32", "slower"), [(3.0, True), (1.0, False), (None, False)])
def test_strict_float32_is_not_tried_where_tf32_is_slower(tf32: float | None, slower: bool) -> None:
    found = {}
    for precision, time in (("bf16", 2.0), ("tf32", tf32)):
        row = measured("graph", time)
        settings = replace(row.settings, precision=precision)
        found[settings] = replace(row, settings=settings)
    assert _slower(found, "tf32", "graph", "dense") == slower
    assert not _slower(found, "tf32", "eager", "dense") and not _slower({}, "tf32", "graph", "dense")


def test_what_the_device_does_not_have_is_refused() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert available(StudyConfig(modes=("eager", "graph")), cpu) == (["fp32", "bf16"], ["eager"])
    assert available(StudyConfig(), gpu)[1] == [*MODES]
    with pytest.raises(UsageError, match=r"mode: expected one that can infer on cpu \(eager, compiled\), got graph"):
        available(StudyConfig(modes=("graph",)), cpu)
    with pytest.raises(UsageError, match=r"precision: .* train on cuda \(bf16, tf32, fp32\), got fp16"):
        available(StudyConfig(goal="train", epochs=1, precisions=("fp16",)), gpu)


@pytest.mark.parametrize(
    ("rival", "fastest_mode", "modes", "tried"),
    [
        ("int8-dynamic", "compiled-graph", MODES, ["reduce-overhead"]),
        ("int8-dynamic", "graph", MODES, ["reduce-overhead"]),
        ("int8-dynamic", "graph", ("graph", "compiled"), ["compiled"]),
        ("int8-dynamic", "graph", ("graph",), ["graph"]),
        ("int8-dynamic", "eager", MODES, ["eager", "compiled"]),
        ("int8-dynamic", "reduce-overhead", MODES, ["reduce-overhead"]),
        ("sparse-2:4", "compiled-graph", MODES, ["reduce-overhead"]),
        ("float8-training", "compiled-graph", MODES, ["compiled-graph"]),
        ("float8-training", "graph", MODES, ["graph", "compiled"]),
    ],
)
def test_methods_of_other_packages_run_in_a_mode_that_they_support(
    rival: str, fastest_mode: str, modes: tuple[str, ...], tried: list[str]
) -> None:
    assert _modes_of(Settings("bf16", "nchw", fastest_mode, f"torchao:{rival}"), modes) == tried


def test_methods_of_other_packages_beside_compressed_activations_run_in_eager_mode() -> None:
    both = combined(COMPRESSED, "torchao:float8-training")
    assert _modes_of(Settings("bf16", "nchw", "eager", both), MODES) == ["eager"]
