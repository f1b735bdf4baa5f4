"""The written form of methods."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from lamina.errors import UsageError
from lamina.spec import METHODS, Method

WORDS = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
OPTIONS = st.lists(
    st.tuples(WORDS, NUMBERS | WORDS.filter(lambda word: word.lower() not in ("nan", "inf", "infinity")))
)


@given(st.sampled_from([*METHODS]), OPTIONS, st.none() | st.sampled_from(["winograd", "gemm", "cudnn:fft"]))
def test_what_is_written_is_read(
    name: str, options: list[tuple[str, int | float | str]], algorithm: str | None
) -> None:
    method = Method(name, algorithm if name == "dense" else None, tuple(options))
    assert Method.parse(str(method)) == method


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("dense", Method()),
        (" dense:winograd ", Method("dense", "winograd")),
        ("circulant[block_size=64]", Method("circulant", None, (("block_size", 64),))),
        (
            "circulant[ block_size = 8 , optimization=KF ]",
            Method("circulant", None, (("block_size", 8), ("optimization", "KF"))),
        ),
        ("eliminated[keep=0.5]", Method("eliminated", None, (("keep", 0.5),))),
        ("sparse[]", Method("sparse")),
    ],
)
def test_forms(text: str, method: Method) -> None:
    assert Method.parse(text) == method
    assert method.dense is (method.name == "dense")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("circulent", "did you mean 'circulant'?"),
        ("", "expected name, name:algorithm or name"),
        ("circulant[block_size]", "expected option=value, got 'block_size'"),
        ("circulant[block_size=8", "expected name"),
        ("sparse:winograd", "only dense takes an algorithm"),
    ],
)
def test_faults(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Method.parse(text)
    assert message in str(caught.value)


@given(st.sampled_from([*METHODS]), st.text("dens:[]=,a1. ", max_size=12))
def test_any_text_is_read_and_written_back_or_refused(name: str, rest: str) -> None:
    with suppress(UsageError):
        method = Method.parse(name + rest)
        assert Method.parse(str(method)) == method


def test_models_hold_methods_by_their_written_form() -> None:
    class Model(BaseModel):
        method: Method

    model = Model.model_validate({"method": "circulant[block_size=8]"})
    assert model.method == Method("circulant", None, (("block_size", 8),))
    assert model.model_dump() == {"method": "circulant[block_size=8]"}
    with pytest.raises(ValidationError, match="did you mean 'sparse'"):
        Model.model_validate({"method": "spars"})
