"""Module names of version 0.1 still import, with a warning, and give the very modules."""

import pickle
import sys
import warnings
from importlib import import_module

import pytest

from lamina.accelerate.deprecated import ATTRIBUTES, RENAMED
from lamina.accelerate.methods.circulant.config import Circulant


@pytest.mark.parametrize("old", RENAMED)
def test_old_names_give_the_modules_of_today(old: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = import_module(f"lamina.accelerate.{old}")
    assert found is import_module(f"lamina.accelerate.{RENAMED[old]}")
    assert found.__name__ == found.__spec__.name == f"lamina.accelerate.{RENAMED[old]}"  # type: ignore[union-attr]


def test_an_old_import_warns() -> None:
    for name in ("circulant", "circulant.parameter_groups"):
        sys.modules.pop(f"lamina.accelerate.{name}", None)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        import_module("lamina.accelerate.circulant.parameter_groups")
    assert [str(each.message).split()[-1] for each in found if each.category is DeprecationWarning] == [
        "lamina.accelerate.methods.circulant",
        "lamina.accelerate.methods.circulant.parameter_groups",
    ]


def test_what_was_pickled_under_an_old_name_is_read() -> None:
    old = pickle.dumps(Circulant(16), protocol=0).replace(b"accelerate.methods.circulant.", b"accelerate.circulant.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert pickle.loads(old) == Circulant(16)


def test_an_unknown_module_is_still_unknown() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_module("lamina.accelerate.nothing")


@pytest.mark.parametrize(("module", "names"), ATTRIBUTES.items(), ids=[*ATTRIBUTES])
def test_old_names_of_classes_are_found_through_old_modules(module: str, names: dict[str, str]) -> None:
    was, now = next(
        (was, now) for was, now in RENAMED.items() if module == now or (module.startswith(f"{now}.") and "." not in was)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = import_module(f"lamina.accelerate.{was}{module.removeprefix(now)}")
    for name, new in names.items():
        owner, _, last = new.rpartition(".")
        with pytest.warns(DeprecationWarning, match="is now"):
            assert getattr(found, name) is getattr(import_module(f"lamina.accelerate.{owner}"), last)
    with pytest.raises(AttributeError, match="nothing"):
        found.nothing
