"""Records as a run of AlexNet would leave them: its shapes and counts, and times that follow a roofline."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from lamina.record import Counter, Epoch, KernelRun, LayerRun, Roofs, Run, Timing
from lamina.spec import ITEM_BYTES, KINDS, Input, Network

ROOFS = Roofs(
    device="Example GPU 80GB",
    date="2026-01-15T08:59:12+00:00",
    threads=8,
    versions={"torch": "2.13.0", "cuda": "13.0", "driver": "580.65"},
    copy_gbs=3_350.0,
    read_gbs=3_610.0,
    gemm_gflops={"fp64": 58_400.0, "fp32": 51_200.0, "tf32": 402_000.0, "bf16": 781_000.0},
    launch_us=2.1,
    enqueue_us=4.3,
)


def alexnet() -> Network:
    """AlexNet of one tower."""
    layers: list[tuple[str, str, dict[str, object]]] = []
    for place, (channels, kernel, stride, padding) in enumerate(
        ((96, 11, 4, 0), (256, 5, 1, 2), (384, 3, 1, 1), (384, 3, 1, 1), (256, 3, 1, 1)), start=1
    ):
        settings = {
            "out_channels": channels,
            "kernel": kernel,
            "stride": stride,
            "padding": padding,
            "bias": True,
        }
        layers.append(("convolution", f"conv{place}", settings))
        layers.append(("activation", f"relu{place}", {}))
        if place in (1, 2, 5):
            layers.append(("pooling", f"pool{place}", {"kernel": 3, "stride": 2}))
    layers.append(("flatten", "flatten", {}))
    for place, features in ((6, 4096), (7, 4096), (8, 1000)):
        layers.append(("linear", f"fc{place}", {"out_features": features, "bias": True}))
        if place < 8:
            layers.append(("activation", f"relu{place}", {}))
    built, previous = [], "input"
    for kind, name, settings in layers:
        built.append(KINDS[kind].model_validate({"name": name, "inputs": (previous,), **settings}))
        previous = name
    return Network(name="AlexNet", inputs=(Input(shape=(3, 227, 227)),), layers=tuple(built))


def bench(
    precision: str = "fp32", layout: str = "nchw", impl: str = "dense", batch: int = 128, clock: str = "cupti"
) -> list[LayerRun]:
    """Rows of one setting, in order of execution: each phase at 35 to 80 % of its roof."""
    random = Random(f"{precision} {layout} {impl} {batch}")
    rows = []
    for place, layer in enumerate(alexnet().resolve(batch)):
        for phase in layer.phases:
            cost = layer.cost(phase, ITEM_BYTES[precision])
            best_us = max(cost.flops / ROOFS.gemm_gflops[precision], cost.bytes / ROOFS.copy_gbs) / 1e3
            row = LayerRun(
                layer=layer.name,
                kind=layer.layer.kind,
                place=place,
                phase=phase.value,
                impl=impl,
                precision=precision,
                layout=layout,
                batch=batch,
                device=ROOFS.device,
                inputs=layer.inputs,
                output=layer.output,
                parameters=layer.parameters,
                flops=cost.flops,
                bytes=cost.bytes,
                outcome="ok",
                rel_error=random.uniform(1, 6) * (2e-7 if precision == "fp32" else 2e-3),
                sm_mhz=1755,
            )
            rows.append(timed(row, 2.1 + best_us / random.uniform(0.35, 0.8), clock=clock))
    return rows


def timed(row: LayerRun, us: float, spread: float = 0.03, n: int = 40, clock: str | None = None) -> LayerRun:
    """The row with another time; ``spread`` is its interquartile range over its median."""
    clock = clock or (row.timing.clock if row.timing else "cupti")
    timing = Timing(clock, "cold", us, us * (1 - 0.4 * spread), us * (1 + 0.6 * spread), n, kernels=1)
    return replace(row, timing=timing, outcome="ok", reason="")


def failed(row: LayerRun, reason: str = "CUDA out of memory: tried to allocate 2.3 GiB") -> LayerRun:
    """The row as a failure leaves it."""
    return replace(row, timing=None, outcome="failed", reason=reason, rel_error=None)


def whole_step(rows: Sequence[LayerRun], us: float) -> LayerRun:
    """The row of the whole step timed at once."""
    row = replace(rows[0], layer="AlexNet", kind="network", phase="step", place=len(rows), flops=None, bytes=None)
    return timed(row, us)


def pick(rows: Sequence[LayerRun], layer: str, phase: str = "forward") -> LayerRun:
    """The one row of a layer's phase."""
    (row,) = (row for row in rows if (row.layer, row.phase) == (layer, phase))
    return row


def changed(rows: Sequence[LayerRun], old: LayerRun, new: LayerRun) -> list[LayerRun]:
    """The rows with one of them replaced."""
    return [new if row == old else row for row in rows]


def epochs(count: int = 12) -> list[Epoch]:
    """A training run that learns and then overfits a little."""
    return [
        Epoch(
            epoch=e,
            step=391 * e,
            learning_rate=0.1 * 0.5 ** (e // 5),
            train_loss=2.2 * 0.78**e + 0.05,
            train_accuracy=1 - 0.82 * 0.8**e,
            test_loss=2.1 * 0.8**e + 0.22 + 0.004 * e,
            test_accuracy=0.93 - 0.76 * 0.77**e,
            seconds=31.4 + 0.3 * (e % 3),
        )
        for e in range(1, count + 1)
    ]


def run(status: str = "done", target: str = "AlexNet") -> Run:
    """A finished run of ``lamina bench``."""
    return Run(
        id="20260115-090210-3f2a",
        verb="bench",
        target=target,
        command="lamina bench alexnet --batch 128 --precision fp32,bf16 --device cuda",
        started="2026-01-15T09:02:10+00:00",
        finished="2026-01-15T09:03:41+00:00",
        fingerprint="9c1e",
        config={
            "batch": [128],
            "precision": ["fp32", "bf16"],
            "phases": {"forward": True, "backward": True},
            "seed": 0,
        },
        environment={
            "device": ROOFS.device,
            "driver": "580.65",
            "torch": "2.13.0",
            "cuda": "13.0",
            "cudnn": "9.15",
            "commit": "4be1c7d+dirty",
            "ncu": None,
        },
        status=status,  # type: ignore[arg-type]
        remarks=("key 'algo' of conv2 has no effect here",),
    )


METRICS = {
    "gpu__time_duration.sum": "ns",
    "sm__inst_executed.avg.per_cycle_active": "inst/cycle",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "%",
    "l1tex__t_sector_hit_rate.pct": "%",
    "lts__t_sector_hit_rate.pct": "%",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "%",
    "dram__sectors_read.sum": "sector",
    "dram__sectors_write.sum": "sector",
    "dram__bytes_read.sum.per_second": "byte/s",
    "dram__bytes_write.sum.per_second": "byte/s",
    "sm__ops_path_tensor_src_tf32_dst_fp32.sum": "",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": "inst",
    **{f"smsp__warp_issue_stalled_{reason}_per_warp_active.pct": "%" for reason in ("selected", "long_scoreboard")},
}
"""What the kernels of ``profile`` were counted for, and its units."""


def profile(batches: Sequence[int] = (16, 64)) -> tuple[list[LayerRun], list[KernelRun], list[Counter]]:
    """A small network's profile: a convolution of two kernels, an activation of one, and another without any.

    Every number is another one. The activation's L1 hit rate could not be told.
    """
    rows: list[LayerRun] = []
    kernels: list[KernelRun] = []
    counters: list[Counter] = []
    random = Random("profile")
    for batch in batches:
        for template in bench("tf32", batch=batch):
            if template.layer not in ("conv2", "relu2", "relu3"):
                continue
            count = {"conv2": 2, "relu2": 1, "relu3": 0}[template.layer]
            made = [
                KernelRun(template.key, place, f"{template.layer}_{template.phase}_{place}", (8, 1, 1), (128, 1, 1),
                          32, 0, random.uniform(1, 50))
                for place in range(count)
            ]  # fmt: skip
            row = timed(template, sum(it.duration_us for it in made) or 0.0)
            joules = 5e-4 * sum(it.duration_us for it in made) or None
            memory = random.randrange(10**6, 10**9), random.randrange(10**6)
            rows.append(replace(row, peak_bytes=memory[0], live_bytes=memory[1], energy_j=joules))
            kernels += made
            for it in made:
                for metric, unit in METRICS.items():
                    value = None if template.layer == "relu2" and "l1tex" in metric else random.uniform(1, 90)
                    counters.append(Counter(it.key, it.invocation, metric, value, unit))
    return rows, kernels, counters
