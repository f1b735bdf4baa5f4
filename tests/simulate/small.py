"""A small product on a small device, as a job."""

from typing import Any

from tests.simulate.hierarchy.conftest import TINY

from lamina.simulate.dense import Dense
from lamina.simulate.hierarchy import preset
from lamina.simulate.jobs import Job
from lamina.simulate.workloads import ConvolutionGemm
from lamina.spec.geometry import Conv2dGeometry


def product(
    layer: str = "conv1", images: int = 2, channels: int = 3, made: int = 8, groups: int = 1
) -> ConvolutionGemm:
    """A 3 x 3 convolution of maps of 8 x 8, padded."""
    window = Conv2dGeometry.of((3, 3), padding=(1, 1))
    each = channels // groups
    return ConvolutionGemm(layer, made // groups, images * 64, each * 9, groups, (images, channels, 8, 8), window)


def job(gemm: ConvolutionGemm | None = None, device: dict[str, Any] | None = None, **options: Any) -> Job:
    changed = preset("mi6").changed({**TINY, **(device or {})})
    return Job("dense", "net", 2, gemm or product(), changed, Dense(**options))
