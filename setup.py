"""Compiles the kernels, and notes with what they were built. All else is declared in pyproject.toml."""

import json
import os
import platform
import subprocess
import sysconfig
from importlib.metadata import version
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_py import build_py

# The kernels choose wider instructions at run time where the processor has them, so the base stays portable.
FLAGS = ["-O3", "-g0", "-fno-plt", "-fno-strict-aliasing", "-Wno-unused-function"]

PACKAGE = Path("src/elf")
SHARED = {"envelopes": (PACKAGE / "agent/files",)}
"""The folders whose headers the kernels of a folder include, besides its own and cbt's."""
KERNELS = sorted(path for room in PACKAGE.iterdir() if room.is_dir() for path in room.rglob("*.pyx"))


def kernel(path: Path) -> Extension:
    name = ".".join(path.relative_to("src").with_suffix("").parts)
    headers = [
        str(header)
        for folder in (path.parent, *SHARED.get(path.parent.name, ()))
        for header in folder.glob("*.h")
    ]
    return Extension(
        name,
        [str(path)],
        include_dirs=[numpy.get_include(), "src/elf/cbt", "src/elf/agent/files"],
        depends=headers,
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        extra_compile_args=[*FLAGS, *os.environ.get("CFLAGS", "").split()],  # the last ones count
    )


def first_line(command: list[str]) -> str:
    """The first line that `command` prints, or "unknown"."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n", 1)[0]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


class BuildWithFacts(build_py):
    """Also writes build_facts.json beside the package, for `elf --version`. An editable install has none."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
        facts = {
            "commit": first_line(["git", "rev-parse", "--short=12", "HEAD"]),
            "compiler": first_line([compiler, "--version"]),
            "built with": f"python {platform.python_version()}, Cython {version('Cython')}, numpy {version('numpy')}",
        }
        path = Path(self.build_lib) / "elf" / "build_facts.json"
        path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


setup(
    cmdclass={"build_py": BuildWithFacts},
    ext_modules=cythonize(
        [kernel(path) for path in KERNELS],
        include_path=["src"],
        language_level=3,
        compiler_directives={"embedsignature": True, "freethreading_compatible": False},
    ),
)
