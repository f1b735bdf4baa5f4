"""The packed transform against NumPy's, and the eigenvalues of written-out circulant matrices."""

import numpy as np
import pytest
import torch

from lamina.accelerate.methods.circulant.basis import basis, slot_count

SIZES = [2, 3, 4, 5, 16, 63, 64, 256]


@pytest.mark.parametrize("k", SIZES)
def test_rows_are_orthonormal(k: int) -> None:
    d = basis(k, dtype=torch.float64)
    assert d.shape == (2 * slot_count(k), k)
    torch.testing.assert_close(d.T @ d, torch.eye(k, dtype=torch.float64), rtol=0, atol=1e-13)


@pytest.mark.parametrize("k", SIZES)
def test_packs_numpy_s_spectrum(k: int) -> None:
    x = np.random.default_rng(0).standard_normal(k)
    real, imaginary = (basis(k, eigenvalues=True, dtype=torch.float64) @ torch.from_numpy(x)).numpy().reshape(2, -1)
    spectrum = np.fft.rfft(x)
    np.testing.assert_allclose(real, spectrum.real[: slot_count(k)], atol=1e-12)
    np.testing.assert_allclose(imaginary[1:], spectrum.imag[1 : slot_count(k)], atol=1e-12)
    np.testing.assert_allclose(imaginary[0], spectrum.real[k // 2] if k % 2 == 0 else 0, atol=1e-12)


def test_eigenvalues_are_those_of_the_circulant_matrix() -> None:
    column = np.array([3.0, -1.0, 0.5, 2.0])
    matrix = np.array([[column[(r - c) % 4] for c in range(4)] for r in range(4)])
    packed = basis(4, eigenvalues=True, dtype=torch.float64) @ torch.from_numpy(column)
    dc, one, nyquist, one_imaginary = packed.numpy()
    expected = [dc, nyquist, complex(one, one_imaginary), complex(one, -one_imaginary)]
    found = np.linalg.eigvals(matrix)
    assert all(np.abs(found - value).min() < 1e-12 for value in expected)
