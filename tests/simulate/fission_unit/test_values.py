import numpy as np
import pytest

from lamina.errors import MissingError, UsageError
from lamina.simulate.fission_unit import fuse, take_apart, values


def test_values_come_back_in_their_order() -> None:
    """1 + 2**-7 needs all seven bits of Deft-16; 1.5 and -0.25 need one of the 8-bit format's."""
    wanted = np.array([[1 + 2**-7, -2.0], [0.5, 4.0]], dtype=np.float32)
    lower = take_apart(fuse(wanted, "dfu_cvt_16"), "dfu_cvt_16")
    assert lower[[0, 2]].tolist() == [1 + 2**-7, 0.5]
    assert np.allclose(lower, wanted.ravel(), rtol=2**-7)
    eighths = [1.5, -0.25, 1.0, -1.75]
    assert take_apart(fuse(eighths, "dfu_cvt_8"), "dfu_cvt_8").tolist() == eighths


def test_what_has_no_meaning_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="3 values: expected a multiple of the 2"):
        fuse([1.0, 2.0, 3.0], "dfu_cvt_16")
    with pytest.raises(UsageError, match="exponent = 8: expected 1 to 7"):
        take_apart(np.zeros(1, dtype=np.uint32), "dfu_cvt_8", 8)
    with pytest.raises(UsageError, match="instruction = 'deft-16': expected 'dfu_cvt_16' or 'dfu_cvt_8'"):
        fuse([1.0, 2.0], "deft-16")  # type: ignore[arg-type]
    monkeypatch.setattr(values, "find_spec", lambda name: None)
    with pytest.raises(MissingError, match="needs numba"):
        fuse([1.0, 2.0], "dfu_cvt_16")
    assert fuse([1.0, 2.0], "dfu_cvt_16", impl="reference").tolist() == [0x40003F80]
