"""What all pages are made by: templates of this folder, and one spelling of times."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from lamina.report import units


def environment() -> Environment:
    """The templates of pages, which escape what they show."""
    return Environment(
        loader=PackageLoader("lamina.report", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )


def _shown(value: Any) -> Any:
    return units.sentence(value) if type(value) is str else value
