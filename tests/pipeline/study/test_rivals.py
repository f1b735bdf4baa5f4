"""Methods of other packages: what they need, and what they make of a network."""

import logging
import warnings
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from lamina.errors import MissingError, UnsupportedError, UsageError
from lamina.pipeline.study import rivals
from lamina.pipeline.study.rivals import RIVALS, Rival, apply_rival
from lamina.spec.whole_method import FOLD

CPU = torch.device("cpu")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'torchao:int8-weight-only'"):
        apply_rival("torchao:int8-weights-only", net())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "find_spec", lambda name: None)
    with pytest.raises(MissingError, match="pip install torchao"):
        apply_rival("torchao:int8-weight-only", net())
    assert all("pip install torchao" in str(one.refusal(CPU)) for one in RIVALS.values() if one.package)


def test_what_needs_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "find_spec", lambda name: object())
    refusals = {name: one.refusal(CPU) for name, one in RIVALS.items()}
    assert refusals["torchao:float8-dynamic"] == "needs a CUDA device, this is cpu"
    assert refusals["torchao:int8-weight-only"] is None


@pytest.mark.skipif(find_spec("torchao") is None, reason="torchao is not installed: pip install lamina[rivals]")
def test_a_method_that_changes_no_layer_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="torchao:int8-dynamic: it supports no layer of the network"):
        apply_rival("torchao:int8-dynamic", nn.Sequential(nn.Linear(16, 10)).eval())


def test_what_leaves_the_network_as_it_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "find_spec", lambda name: object())
    monkeypatch.setitem(RIVALS, "none", Rival("none", "infer", None, lambda model: model))
    with pytest.raises(UnsupportedError, match="none: it supports no layer of the network"):
        apply_rival("none", net())


def test_folding_needs_torch_alone_and_a_normalization(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "find_spec", lambda name: None)
    assert RIVALS[FOLD].refusal(CPU) is None
    folded = apply_rival(FOLD, nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval())
    assert not any(isinstance(one, nn.BatchNorm1d) for one in folded.modules())
    with pytest.raises(UnsupportedError, match="torch:fold-batchnorm: the network has no BatchNorm to fold"):
        apply_rival(FOLD, net())


def test_methods_are_applied_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        append = partial(lambda name, model: (applied.append(name), model.append(nn.Identity()))[1], name)
        monkeypatch.setitem(RIVALS, name, Rival(name, "infer", None, append, package=""))
    applied: list[str] = []
    assert len(apply_rival("first+second", net())) == 5 and applied == ["first", "second"]  # type: ignore[arg-type]
    model = net()
    assert apply_rival("dense", model) is model


def test_whatever_a_package_raises_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: nn.Module) -> nn.Module:
        raise AssertionError("no kernel\nand a long story")

    monkeypatch.setattr(rivals, "find_spec", lambda name: object())
    monkeypatch.setitem(RIVALS, "torchao:broken", Rival("torchao:broken", "infer", None, broken))
    with pytest.raises(UnsupportedError, match="torchao:broken: AssertionError: no kernel$"):
        apply_rival("torchao:broken", net())


@pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao")
def test_the_compiler_keeps_its_options_for_other_networks() -> None:
    from torch._inductor import config

    before = config.coordinate_descent_tuning
    apply_rival("torchao:int8-weight-only", net())
    assert config.coordinate_descent_tuning is before is False


@pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao")
@pytest.mark.parametrize("name", ["torchao:int8-weight-only", "torchao:int8-dynamic"])
def test_quantized_networks_compute_nearly_the_same(name: str) -> None:
    x = torch.randn(4, 64)
    expected = net()(x)
    found = apply_rival(name, net())(x)
    assert (found - expected).norm() < 0.05 * expected.norm()


def test_the_log_of_another_package_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def noisy(model: nn.Module) -> nn.Module:
        logging.getLogger("other").warning("could not load a library")
        warnings.warn("deprecated", stacklevel=1)
        return nn.Sequential(model)

    monkeypatch.setitem(RIVALS, "noisy", Rival("noisy", "infer", None, noisy))
    monkeypatch.setattr(rivals, "find_spec", lambda name: object())
    apply_rival("noisy", nn.Linear(2, 2))
    assert not caplog.records
    logging.getLogger("other").warning("later")
    assert [one.message for one in caplog.records] == ["later"]
