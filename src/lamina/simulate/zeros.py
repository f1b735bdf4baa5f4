"""Zeros of a layer's input, as options of a unit: masks recorded in training, or a generated pattern.

A generated pattern can have the density of a recording, so that both are compared at equal density.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from lamina.errors import UsageError, nearest
from lamina.simulate.jobs import Options
from lamina.simulate.workloads import ConvolutionGemm, Mask, RecordedMask, pattern, read_masks, shipped_masks
from lamina.simulate.workloads.patterns import BLOB

LAST = -1


class Zeros(Options):
    """Zeros of the activation map; im2col adds those of padding.

    Units with sparse inputs derive their options from this class.
    """

    pattern: Literal["iid", "channel", "spatial", "recorded"] = "iid"
    density: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.5
    """Fraction of non-zeros of the map, for generated patterns without ``masks``."""
    blob: Annotated[float, Field(ge=0, le=1e4, allow_inf_nan=False)] = BLOB
    """Radius of a cluster in pixels of the map, for ``spatial``."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1, strict=True)] = 0
    masks: str = ""
    """Recorded masks: a file, or the name of shipped ones. Generated patterns have their density."""
    iteration: Annotated[int, Field(ge=LAST, strict=True)] = LAST
    """Iteration of the recording of a layer; -1 is the last."""
    masks_sha256: str = ""
    """Hash of the file, set automatically, so that results of other contents are not reused."""

    @model_validator(mode="before")
    @classmethod
    def _digest(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("masks", ""), str) or not values.get("masks"):
            return values
        try:
            found = hashlib.sha256(shipped_masks(values["masks"]).read_bytes()).hexdigest()
        except OSError as error:
            raise ValueError(f"masks = {values['masks']!r}: cannot be read: {error.strerror or error}") from None
        if values.get("masks_sha256", found) not in ("", found):
            raise ValueError(f"masks = {values['masks']!r}: expected the content {values['masks_sha256']}, got {found}")
        return values | {"masks_sha256": found}

    @model_validator(mode="after")
    def _recorded(self) -> Self:
        if self.pattern == "recorded" and not self.masks:
            raise ValueError("pattern = 'recorded': expected masks, a file or the name of shipped ones")
        return self

    def mask(self, gemm: ConvolutionGemm) -> Mask:
        """The mask of non-zeros of the map [N, C, H, W] that the product reads.

        Raises:
            UsageError: the file has no such layer or iteration, or its shape differs.
        """
        recording = self._recording(gemm.source) if self.masks else None
        if recording is None:
            return pattern(self.pattern, gemm.map, self.density, self.seed, self.blob)
        if self.pattern == "recorded":
            return recording.of(gemm.map)
        return pattern(self.pattern, gemm.map, recording.density, self.seed, self.blob)

    def _recording(self, layer: str) -> RecordedMask:
        masks = read_masks(shipped_masks(self.masks))
        own = {each.iteration: each for each in masks if each.name == layer}
        if not own:
            raise UsageError(f"{self.masks}: layer {layer!r}: {nearest(layer, [one.name for one in masks])}")
        wanted = max(own) if self.iteration == LAST else self.iteration
        if wanted not in own:
            raise UsageError(
                f"{self.masks}: layer {layer!r}: expected one of the iterations "
                f"{', '.join(map(str, sorted(own)[:20]))}, got {wanted}"
            )
        return own[wanted]
