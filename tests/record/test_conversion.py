"""The record of a conversion as text."""

from lamina.record import Conversion, ConvertedLayer, Selection


def test_a_record_reads_as_a_table() -> None:
    chosen = Selection(
        "circulant[block_size=8,impl=kernel]",
        "faster",
        {"dense": 6.0, "circulant[block_size=8,impl=kernel]": 4.0},
        "graph",
    )
    method = "circulant[block_size=8]"
    layers = (
        ConvertedLayer("features.0", "Conv2d", method, 1200, 150, selection=chosen),
        ConvertedLayer("features.1", "ReLU", method, 0, 0, "ReLU has no weights"),
        ConvertedLayer("head", "Linear", method, 80, 10),
        ConvertedLayer("last", "Linear", method, 20, 20, "block size 8 exceeds its 4 output features"),
    )
    assert str(Conversion(method, layers)).splitlines() == [
        "circulant[block_size=8]: 2 of 3 layers replaced, 180 of 1,300 parameters",
        "features.0  Conv2d  circulant[block_size=8,impl=kernel]: 1.50x",
        "head        Linear  circulant[block_size=8]",
        "last        Linear  unchanged: block size 8 exceeds its 4 output features",
    ]
    whole = Selection("converted", "converted: 2 us < dense 4 us", {"dense": 4.0, "converted": 2.0}, "graph")
    assert (
        str(Conversion(method, layers, whole)).splitlines()[0].endswith("; whole model: converted: 2 us < dense 4 us")
    )
    assert str(Conversion(method, ())) == "circulant[block_size=8]: 0 of 0 layers replaced, 0 of 0 parameters"
