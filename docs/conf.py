"""Sphinx: Markdown pages by MyST, the API from the docstrings. `make docs` builds into docs/_build."""

from lamina import __version__ as release

project = "lamina"
author = "the lamina authors"
version = release
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
nitpicky = False

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["cuda", "cudnn", "pynvml", "ray"]

html_theme = "furo"
html_title = f"lamina {release}"
