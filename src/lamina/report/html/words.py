"""Findings and paragraphs, sorted by the setting they speak of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lamina.record import Finding


class Passage(Protocol):
    """A few sentences about a layer, or the network where ``layer`` is ``None``, in one ``setting``."""

    @property
    def setting(self) -> str: ...
    @property
    def layer(self) -> str | None: ...
    @property
    def text(self) -> str: ...
    @property
    def share(self) -> float: ...


@dataclass(frozen=True)
class Words:
    """The texts of one setting, by its index ``place``; those of the run as a whole where it is ``None``."""

    place: int | None
    passages: list[Passage] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    headlines: list[str] = field(default_factory=list)

    @property
    def only_headlines(self) -> bool:
        """Whether the headlines are all there is."""
        return not (self.passages or self.findings)


def words(
    findings: Sequence[Finding],
    passages: Sequence[Passage],
    places: Sequence[str],
    headlines: Sequence[Finding] = (),
) -> list[Words]:
    """The texts of each setting, in the order of ``places``, then those of none of them in particular."""
    known = {name: Words(place) for place, name in enumerate(places) if name}
    common = Words(None)
    for passage in passages:
        known.get(passage.setting, common).passages.append(passage)
    for top in headlines:
        setting = str(top.evidence.get("setting", ""))
        known.get(setting, common).headlines.append(_sentence(top.claim.removeprefix(f"{setting}: ")))
    for finding in findings:
        known.get(str(finding.evidence.get("setting", "")), common).findings.append(finding)
    return [it for it in (*known.values(), common) if it.passages or it.findings or it.headlines]


def _sentence(claim: str) -> str:
    """A claim on its own line; one that begins with an article is capitalized, a layer's name stays."""
    return claim.replace("the ", "The ", 1) if claim.startswith("the ") else claim


def bare(passage: Passage) -> str:
    """A passage without the setting and the layer that it begins with, which are its headings in the page."""
    text = passage.text.removeprefix(f"{passage.setting}: ")
    return text.removeprefix(passage.layer) if passage.layer else text
