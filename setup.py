"""Build the native kernels if there is a compiler for them; everything works without."""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FLAGS = [
    "-std=gnu11",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",  # comparisons become blends, so that loops over samples vectorise
    "-ffp-contract=fast",
    "-Wno-psabi",
]


class BuildKernels(build_ext):
    """With OpenMP, else without it, else not at all."""

    def build_extension(self, ext: Extension) -> None:
        """Try the better build first."""
        ext.extra_compile_args = [*FLAGS, "-fopenmp"]
        ext.extra_link_args = ["-fopenmp"]
        try:
            super().build_extension(ext)
        except Exception:  # whatever a compiler may fail with
            ext.extra_compile_args = [*FLAGS, "-fopenmp-simd"]
            ext.extra_link_args = []
            super().build_extension(ext)


setup(
    ext_modules=[
        Extension(
            "condens.kernels._native",
            ["src/condens/kernels/_native.c"],
            depends=[
                f"src/condens/kernels/_{part}.h"
                for part in ("level", "nll", "partial", "problem", "sample", "scalar")
            ],
            libraries=["m"],
            py_limited_api=True,
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
