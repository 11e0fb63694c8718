"""Compiles the kernels. All else is declared in pyproject.toml."""

from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

# The kernels choose wider instructions at run time where the processor has them, so the base stays portable.
FLAGS = ["-O3", "-fno-plt", "-fno-strict-aliasing", "-Wno-unused-function"]

KERNELS = sorted(Path("src/elf").glob("*/*.pyx"))


def kernel(path: Path) -> Extension:
    name = ".".join(path.relative_to("src").with_suffix("").parts)
    headers = [str(header) for header in path.parent.glob("*.h")]
    return Extension(
        name,
        [str(path)],
        include_dirs=[numpy.get_include(), "src/elf/cbt"],
        depends=headers,
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        extra_compile_args=FLAGS,
    )


setup(
    ext_modules=cythonize(
        [kernel(path) for path in KERNELS],
        include_path=["src"],
        language_level=3,
        compiler_directives={"embedsignature": True, "freethreading_compatible": False},
    )
)
