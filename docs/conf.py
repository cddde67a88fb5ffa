"""Sphinx configuration."""

from condens import __version__

project = "condens"
author = "The condens authors"
copyright = "2026, the condens authors"
version = release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_use_ivar = True  # learned attributes also have annotations
html_theme = "furo"
html_static_path = ["_static"]
exclude_patterns = ["_build"]
