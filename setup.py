"""Build the native kernels if there is a compiler for them; everything works without."""

import os

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# For `make test-sanitised`: stops at the first byte out of place.
SANITISED = bool(os.environ.get("CONDENS_SANITISED"))
SANITISE = ["-fsanitize=address,undefined"] if SANITISED else []
FLAGS = [
    *SANITISE,
    *(["-fno-sanitize-recover=all", "-g1"] if SANITISED else []),
    "-std=gnu11",
    "-O1" if SANITISED else "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",  # comparisons become blends, so that loops over samples vectorise
    "-ffp-contract=fast",
    "-Wno-psabi",
    "-Werror=implicit-function-declaration",  # it would link, and fail when it is loaded
]


class BuildKernels(build_ext):
    """With OpenMP, else without it, else not at all."""

    def build_extension(self, ext: Extension) -> None:
        """Try the better build first."""
        ext.extra_compile_args = [*FLAGS, "-fopenmp"]
        ext.extra_link_args = [*SANITISE, "-fopenmp"]
        try:
            super().build_extension(ext)
        except Exception:  # whatever a compiler may fail with
            ext.extra_compile_args = [*FLAGS, "-fopenmp-simd"]
            ext.extra_link_args = SANITISE
            super().build_extension(ext)


setup(
    ext_modules=[
        Extension(
            "condens.kernels._native",
            ["src/condens/kernels/_native.c"],
            depends=[
                f"src/condens/kernels/_{part}.h"
                for part in (
                    "adamw",
                    "checks",
                    "dropout",
                    "level",
                    "mlp",
                    "nll",
                    "partial",
                    "problem",
                    "sample",
                    "scalar",
                    "scratch",
                )
            ],
            libraries=["m"],
            py_limited_api=True,
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
