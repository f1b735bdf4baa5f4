"""Networks of other packages, with small stand-ins for packages that need not be installed."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from torch import nn

from lamina.build.models import external
from lamina.errors import MissingError, UsageError

PACKAGE = """
import torch.nn as nn

class Net(nn.Linear):
    def __init__(self):
        super().__init__(2, 3)

class Holder:
    @staticmethod
    def build():
        return Net()

def number():
    return 7

def fails():
    raise ZeroDivisionError("one over zero")

built = Net()
constant = 5
"""

LAZY = """
def __dir__():
    return ["Net", "Helper"]

def __getattr__(name):
    if name == "Broken":
        raise ModuleNotFoundError("Could not import module 'Broken'. Are this object's requirements defined correctly?")
    if name == "Odd":
        raise RuntimeError("operator not found")
    if name == "Needs":
        import a_package_that_is_not_there
    raise AttributeError(name)
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable folder with one good module and three that do not import."""
    (tmp_path / "mynets").mkdir()
    files = {
        "__init__": "",
        "good": PACKAGE,
        "broken": "raise RuntimeError('half a file')",
        "quits": "raise SystemExit(3)",
        "needs": "import a_package_that_is_not_there",
        "lazy": LAZY,
        "bare": "",
    }
    for name, text in files.items():
        (tmp_path / "mynets" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mynets"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.mark.parametrize("name", ["Net", "Holder.build"])
def test_a_callable_is_called(name: str) -> None:
    loaded = external.load(f"mynets.good:{name}")
    assert isinstance(loaded.module, nn.Linear)
    assert (loaded.input, loaded.classes) == (None, None)


def test_a_file_is_imported_with_those_beside_it(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = package / "elsewhere"
    folder.mkdir()
    text = "from torch.nn import Linear\nfrom width_of_mine import W\nNet = lambda: Linear(W, 1)"
    (folder / "my-net.py").write_text(text)
    (folder / "width_of_mine.py").write_text("W = 7\n")
    (folder / "json.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(package)
    for source in ("elsewhere/my-net.py:Net", f"{folder}/my-net.py:Net"):
        module = external.load(source).module
        assert isinstance(module, nn.Linear) and module.in_features == 7
    with pytest.raises(UsageError, match="nowhere.py: there is no such file"):
        external.load("nowhere.py:Net")
    with pytest.raises(UsageError, match="'json' is the name of another module too: rename the file"):
        external.load("elsewhere/json.py:Net")
    with pytest.raises(UsageError, match="'my-net' has no 'Nett': did you mean 'Net'"):
        external.load("elsewhere/my-net.py:Nett")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("mynets.good", "expected a model as PACKAGE.MODULE:CALLABLE"),
        ("mynets.good:", "expected a model as PACKAGE.MODULE:CALLABLE"),
        ("mynets.good:Nett", "'mynets.good' has no 'Nett': did you mean 'Net'"),
        ("mynets.good:number", "expected an nn.Module from 'mynets.good:number', got a int"),
        ("mynets.good:constant", "is a int, expected a callable"),
        ("mynets.good:built", "is a built Net; name a function or class"),
        ("mynets.good:fails", "raised ZeroDivisionError: one over zero"),
        ("mynets.broken:Net", "importing 'mynets.broken' raised RuntimeError: half a file"),
        ("mynets.quits:Net", "importing 'mynets.quits' raised SystemExit: 3"),
        ("mynets.lazy:Nett", "'mynets.lazy' has no 'Nett': did you mean 'Net'"),
        ("mynets.lazy:Odd", "reading 'Odd' of 'mynets.lazy' raised RuntimeError: operator not found"),
        ("mynets.bare:Net", "'mynets.bare' has no 'Net': it defines no function or class"),
        ("mynets.god:Net", "package 'mynets' has no module 'mynets.god'"),
    ],
)
def test_a_wrong_source_is_explained(source: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        external.load(source)


def test_the_cause_is_kept() -> None:
    with pytest.raises(UsageError) as caught:
        external.load("mynets.good:fails")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("nosuchpackage.nets:Net", "pip install nosuchpackage"),
        ("mynets.needs:Net", "pip install a_package_that_is_not_there"),
        ("mynets.lazy:Needs", "pip install a_package_that_is_not_there"),
        ("mynets.lazy:Broken", "reading 'Broken' of 'mynets.lazy' raised ModuleNotFoundError: Could not import"),
    ],
)
def test_a_missing_package_is_named(source: str, hint: str) -> None:
    with pytest.raises(MissingError, match=hint):
        external.load(source)


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lamina uses of timm, without timm."""

    def create_model(name: str) -> nn.Module:
        model = nn.Identity()
        if name == "resnet18":
            model.default_cfg = {"input_size": (3, 224, 224), "num_classes": 1000}
        return model

    module = ModuleType("timm")
    module.is_model = {"resnet18", "bare"}.__contains__
    module.list_models = lambda: ["resnet18", "bare"]
    module.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", module)


@pytest.mark.usefixtures("timm")
def test_timm_models_have_their_input_shape() -> None:
    assert external.load("timm:resnet18").input == (3, 224, 224)
    assert external.load("timm:resnet18").classes == 1000
    assert external.load("timm:bare").input is None
    with pytest.raises(UsageError, match="timm has no model 'resnet81': did you mean 'resnet18'"):
        external.load("timm:resnet81")


def test_torchvision_is_short_for_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    package, models = ModuleType("torchvision"), ModuleType("torchvision.models")
    models.resnet50 = nn.Identity
    package.models = models
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    assert isinstance(external.load("torchvision:resnet50").module, nn.Identity)
    with pytest.raises(UsageError, match="did you mean 'resnet50'"):
        external.load("torchvision:resnet5")


def test_a_missing_or_incompatible_library_raises_missing_error(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingError, match="timm models need timm, which is not installed"):
        external.load("timm:resnet18")
    monkeypatch.delitem(sys.modules, "timm")
    (package / "timm.py").write_text("raise RuntimeError('undefined symbol')")
    with pytest.raises(MissingError, match="undefined symbol.*install the version of timm for torch"):
        external.load("timm:resnet18")


def test_backbones_of_torchvision_are_not_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def detector(*, weights_backbone: str | None = "IMAGENET1K_V1") -> nn.Module:
        assert weights_backbone is None
        return nn.Identity()

    package, models = ModuleType("torchvision"), ModuleType("torchvision.models")
    package.models, models.detector = models, detector
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    assert external.load("torchvision:detector").input is None


def test_torchvision_finds_networks_of_its_modules_by_their_plain_names(monkeypatch: pytest.MonkeyPatch) -> None:
    package, models, video = (ModuleType(f"torchvision{end}") for end in ("", ".models", ".models.video"))
    package.models, models.video, video.r3d_18 = models, video, nn.Identity
    models.list_models = lambda: ["r3d_18"]
    models.get_model_builder = {"r3d_18": nn.Identity}.__getitem__
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    for name in ("r3d_18", "video.r3d_18"):
        assert isinstance(external.load(f"torchvision:{name}").module, nn.Identity)
    with pytest.raises(UsageError, match="'torchvision.models' has no 'r3d18': did you mean 'r3d_18'"):
        external.load("torchvision:r3d18")
