"""Cached launches only with versions of PyTorch and Triton that were tested, and one warning otherwise."""

import warnings
from collections.abc import Iterator

import pytest
import torch
import triton

from lamina.accelerate.runtime import private_apis, triton_ops
from lamina.accelerate.runtime.private_apis import supported


@pytest.fixture(autouse=True)
def _checked_again() -> Iterator[None]:
    supported.cache_clear()
    yield
    supported.cache_clear()


def test_the_installed_versions_are_supported() -> None:
    assert private_apis.unsupported_reason() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert supported()


@pytest.mark.parametrize(
    ("torch_version", "triton_version", "expected"),
    [
        ("2.11.0", "3.6.0", True),
        ("2.13.1+cu130", "3.7.1", True),
        ("2.10.2", "3.6.0", False),
        ("2.14.0.dev20261101", "3.7.0", False),
        ("2.13.0", "3.8.0", False),
        ("2.13.0", "3.5.1", False),
        ("3.0.0", "3.6.0", False),
        ("unknown", "3.6.0", False),
    ],
)
def test_only_tested_versions_are_supported_and_others_warn_once(
    monkeypatch: pytest.MonkeyPatch, torch_version: str, triton_version: str, expected: bool
) -> None:
    monkeypatch.setattr(torch, "__version__", torch_version)
    monkeypatch.setattr(triton_ops, "TRITON_VERSION", triton_version)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [supported() for _ in range(3)] == [expected] * 3
    assert len(caught) == (not expected)
    for warning in caught:
        assert f"expected PyTorch 2.11 to 2.13 and Triton 3.6 to 3.7, got PyTorch {torch_version} and Triton" in str(
            warning.message
        )


@pytest.mark.parametrize(
    ("owner", "name", "expected"),
    [
        (torch._C, "_has_storage", "torch._C._has_storage"),
        (triton.runtime.jit.KernelInterface, "warmup", "JITFunction.warmup"),
        (triton.compiler.CompiledKernel, "run", "CompiledKernel.run"),
    ],
)
def test_a_missing_name_is_named(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, expected: str) -> None:
    monkeypatch.delattr(owner, name)
    assert f"lack {expected}" in str(private_apis.unsupported_reason())


def test_a_build_with_cuda_needs_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream", raising=False)
    assert "lack torch._C._cuda_getCurrentRawStream" in str(private_apis.unsupported_reason())


def test_the_raw_stream_is_pytorchs_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        cuda_stream = 7

    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 5 + index, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: Stream)
    for known, stream in ((True, 6), (False, 7)):
        monkeypatch.setattr(private_apis, "supported", lambda known=known: known)
        assert private_apis.raw_stream(1) == stream
