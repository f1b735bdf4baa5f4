"""--input, --input-fn and --input-size are checked before anything is imported."""

import pytest

from lamina.cli import options
from lamina.errors import UsageError


def test_one_text_stands_for_all_three() -> None:
    assert options.requested_inputs(options.inputs("3x8x8", [], "")) == (3, 8, 8)
    assert options.requested_inputs(options.inputs("", [], "nets.inputs:make")) == "nets.inputs:make"
    assert options.requested_inputs("") is None
    found = options.requested_inputs(options.inputs("", ["tokens=int64:128", "mask=bool:128", "x=bfloat16:3x4"], ""))
    assert [(one.name, one.shape, one.content, one.vocabulary) for one in found] == [
        ("tokens", (128,), "indices", None),
        ("mask", (128,), "indices", 2),
        ("x", (3, 4), "real", None),
    ]


@pytest.mark.parametrize(
    ("text", "content", "limits", "dtype"),
    [
        ("x=int64[0,1000]:8x128", "indices", (0, 1000), None),
        ("x=int32[5,7]:8x128", "indices", (5, 7), "int32"),
        ("x=uint8[0,256]:8x128", "indices", (0, 256), "uint8"),
        ("x=bool:8x128", "indices", (0, 2), "bool"),
        ("x=complex64:8x128", "real", (0, None), "complex64"),
        ("x=float16:8x128", "real", (0, None), None),
    ],
)
def test_types_and_ranges(text: str, content: str, limits: object, dtype: str | None) -> None:
    (one,) = options.requested_inputs(options.inputs("", [text], ""))
    assert (one.shape, one.content, (one.low, one.vocabulary), one.dtype) == ((8, 128), content, limits, dtype)


def test_without_sizes_an_input_has_one_value_per_sample() -> None:
    found = options.requested_inputs(options.inputs("", ["x=float32:3x8x8", "t=int64[0,1000]:", "s=float32:"], ""))
    assert [(one.name, one.shape, one.vocabulary) for one in found] == [
        ("x", (3, 8, 8), None),
        ("t", (), 1000),
        ("s", (), None),
    ]


@pytest.mark.parametrize(
    ("size", "named", "function", "message"),
    [
        ("3x8", ["x=float32:3"], "", "--input-size and --input: expected one of them"),
        ("", ["x=float32:3"], "a:b", "--input and --input-fn: expected one of them"),
        ("", ["x"], "", "--input: expected NAME=DTYPE:SHAPE"),
        ("", [], "nets", "--input-fn: expected MODULE:FUNCTION such as mymodels:inputs, got 'nets'"),
        ("", ["x=float32"], "", "expected NAME=DTYPE:SHAPE such as tokens=int64:128 or .*, got 'x=float32'"),
        ("", ["1x=float32:3"], "", "expected NAME=DTYPE:SHAPE"),
        ("", ["x=float:3"], "", "type 'float' is unknown: did you mean 'float16'|type 'float' is unknown"),
        ("", ["x=complex46:3"], "", "type 'complex46' is unknown: did you mean 'complex64'"),
        ("", ["x=float32[0,1]:3"], "", "a range is for integers, float32 values are normally distributed"),
        ("", ["x=int64[9,9]:3"], "", r"expected int64\[LOW,HIGH\] with 0 <= LOW < HIGH"),
        ("", ["x=int64[0,9:3"], "", r"expected int64\[LOW,HIGH\]"),
        ("", ["x=int64[9]:3"], "", r"expected int64\[LOW,HIGH\]"),
        ("", ["x=int64[-1,9]:3"], "", r"expected int64\[LOW,HIGH\]"),
        ("", ["x=int8[0,1000]:3"], "", "HIGH <= 128, values from LOW to HIGH - 1, got 'x=int8"),
        ("", ["x=int64:3y"], "", "expected sizes such as 3x224x224, got '3y'"),
    ],
)
def test_mistakes_are_named(size: str, named: list[str], function: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        options.inputs(size, named, function)
