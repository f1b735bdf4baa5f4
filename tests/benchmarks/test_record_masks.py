"""Masks of trainings: their commands are valid, quick ones run, and files that are there are kept."""

from pathlib import Path

import pytest

from benchmarks import record_masks
from benchmarks.record_masks import RECORDINGS, SAMPLES, command, main
from lamina.build.data import train_test
from lamina.pipeline.targets import find
from lamina.simulate.workloads import (
    convolutions,
    mask_names,
    provenance_of,
    read_masks,
    shipped_masks,
)


def test_layers_are_convolutions_and_epochs_are_those_of_the_data() -> None:
    assert len(train_test("fashion-mnist")[0].y) == SAMPLES
    for network, one in RECORDINGS.items():
        assert {*one.layers} <= {each.layer for each in convolutions(find(network)[0].resolve(1))}
        assert one.iterations * one.batch >= SAMPLES > (one.iterations - 1) * one.batch and one.epochs >= 3


@pytest.mark.parametrize("network", mask_names())
def test_shipped_masks_are_of_these_recordings(network: str) -> None:
    one, masks = RECORDINGS[network], read_masks(shipped_masks(network))
    assert {each.name for each in masks} == {*one.layers}
    assert {each.iteration for each in masks} == {one.iterations * (epoch + 1) - 1 for epoch in range(one.epochs)}
    last = SAMPLES - (one.iterations - 1) * one.batch  # samples of an epoch's last batch
    assert {len(each.mask) for each in masks} == {min(one.images, last)}
    words = provenance_of(shipped_masks(network))["command"].split()
    asked = command(network, Path("x"), Path("y"), quick=False)
    for option in ("--data", "--iterations", "--lr", "--optimizer"):
        assert words[words.index(option) + 1] == asked[asked.index(option) + 1]


def test_what_is_there_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(record_masks.subprocess, "run", lambda words, check: ran.append(words))
    (tmp_path / "alexnet.npz").touch()
    main(["alexnet", "vgg16", "--quick", "--folder", str(tmp_path)])
    assert "alexnet.npz is there" in capsys.readouterr().out
    assert [words[4] for words in ran] == ["vgg16"]
    assert ran[0][ran[0].index("--iterations") + 1] == "2"
