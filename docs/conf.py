"""Sphinx configuration."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sphinx.application import Sphinx
from sphinx.util.typing import stringify_annotation

from condens import __version__
from condens.data import Data, TableLike
from condens.distributions.checks import Numbers
from condens.transforms.choice import TargetTransform, TransformLike

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

# Names for unions that autodoc would spell out, over several lines; the longest first.
ALIASES = {
    "TargetTransform": TargetTransform,
    "TransformLike": TransformLike,
    "Data": Data,
    "TableLike": TableLike,
    "Numbers": Numbers,
    "ArrayLike": ArrayLike,
    "NDArray[float64]": NDArray[np.float64],
}


def setup(app: Sphinx) -> None:
    """Shorten the types in signatures."""
    app.connect("autodoc-process-signature", shorten)


def shorten(*event: object) -> tuple[str | None, str | None]:
    """Return a signature and what it returns, with the aliases' names."""
    *_, arguments, result = event
    return _named(arguments), _named(result)


def _named(signature: object) -> str | None:
    if not isinstance(signature, str):
        return None
    for name, alias in ALIASES.items():
        signature = signature.replace(stringify_annotation(alias, "smart"), name)
    return signature
