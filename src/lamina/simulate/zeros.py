"""Zeros of a layer's input, as options of a unit: a generated pattern, or masks recorded in training."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from lamina.errors import UsageError, nearest
from lamina.simulate.jobs import Options
from lamina.simulate.workloads import ConvolutionGemm, Mask, pattern, read_masks
from lamina.simulate.workloads.patterns import BLOB

LAST = -1


class Zeros(Options):
    """Zeros of the activation map; im2col adds those of padding.

    Units with sparse inputs derive their options from this class.
    """

    pattern: Literal["iid", "channel", "spatial", "recorded"] = "iid"
    density: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.5
    """Fraction of non-zeros of the map, for generated patterns."""
    blob: Annotated[float, Field(ge=0, le=1e4, allow_inf_nan=False)] = BLOB
    """Radius of a cluster in pixels of the map, for ``spatial``."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1, strict=True)] = 0
    masks: str = ""
    """File of recorded masks, for ``recorded``."""
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
            found = hashlib.sha256(Path(values["masks"]).read_bytes()).hexdigest()
        except OSError as error:
            raise ValueError(f"masks = {values['masks']!r}: cannot be read: {error.strerror or error}") from None
        if values.get("masks_sha256", found) not in ("", found):
            raise ValueError(f"masks = {values['masks']!r}: expected the content {values['masks_sha256']}, got {found}")
        return values | {"masks_sha256": found}

    @model_validator(mode="after")
    def _recorded(self) -> Self:
        if (self.pattern == "recorded") != bool(self.masks):
            raise ValueError(
                f"pattern = {self.pattern!r} and masks = {self.masks!r}: expected a file of masks with "
                "'recorded', and with no other pattern"
            )
        return self

    def mask(self, gemm: ConvolutionGemm) -> Mask:
        """The mask of non-zeros of the layer's map [N, C, H, W].

        Raises:
            UsageError: the file has no such layer or iteration, or its shape differs.
        """
        if self.pattern != "recorded":
            return pattern(self.pattern, gemm.map, self.density, self.seed, self.blob)
        masks = read_masks(Path(self.masks))
        own = {each.iteration: each for each in masks if each.name == gemm.layer}
        if not own:
            raise UsageError(f"{self.masks}: layer {gemm.layer!r}: {nearest(gemm.layer, [one.name for one in masks])}")
        wanted = max(own) if self.iteration == LAST else self.iteration
        if wanted not in own:
            raise UsageError(
                f"{self.masks}: layer {gemm.layer!r}: expected one of the iterations "
                f"{', '.join(map(str, sorted(own)[:20]))}, got {wanted}"
            )
        return own[wanted].of(gemm.map)
