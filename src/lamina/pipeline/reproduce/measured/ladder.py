"""The paper's kernels against a dense matrix product and against the algorithm as written: table 7.4, figure 7.5."""

from __future__ import annotations

from lamina.pipeline.reproduce.live import live
from lamina.pipeline.reproduce.measured.judging import Measurement, Rows, fastest
from lamina.spec.published import PublishedValue


def fusion_over(base: str, rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """Speedup of kernel fusion in a whole training step, layer and block size as in ``A k=16``.

    Raises:
        ValueError: a row is missing.
    """
    layer, _, size = value.layer.partition(" k=")
    known = [row for row in rows if row["phase"] == "step" and row["block_size"] == int(size)]
    before = fastest(known, layer=layer, impl=base.format(k=size))
    after = fastest(known, layer=layer, impl=f"ladder[rung=fusion,block_size={size}]")
    return before / after, f"{before / after:.3g} x ({before:.4g} / {after:.4g} us)"


MEASUREMENT = Measurement(
    ("circulant_ladder",),
    values={
        "fusion over dense": lambda rows, value: fusion_over("dense", rows, value),
        "fusion over as_written": lambda rows, value: fusion_over(
            "ladder[rung=as_written,block_size={k}]", rows, value
        ),
    },
    run=live("ladder", "steps"),
    command="python -m benchmarks.ladder.circulant",
)
