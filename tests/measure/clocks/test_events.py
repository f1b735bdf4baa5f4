"""The event clock against the one that comes with Triton."""

import pytest
import torch

from lamina.measure.clocks.events import EventsClock

pytestmark = pytest.mark.gpu


@pytest.mark.alone
def test_a_product_of_a_millisecond_agrees_with_triton() -> None:
    testing = pytest.importorskip("triton.testing")
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    ours = EventsClock("cuda").time(lambda: torch.mm(a, b), l2="cold")
    theirs = testing.do_bench(lambda: torch.mm(a, b), return_mode="median") * 1e3
    assert ours.median_us == pytest.approx(theirs, rel=0.05)


def test_launch_latency_is_hidden() -> None:
    """A kernel of about a microsecond, which the host takes several to launch."""
    x = torch.randn(1, device="cuda")
    assert EventsClock("cuda").time(lambda: x.add_(1)).median_us < 6
