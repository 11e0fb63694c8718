"""Keeps the start of a process short and small: leaves out parts of libraries that no command uses."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

_NUMPY_DOCUMENTATION = ("numpy._core._add_newdocs", "numpy._core._add_newdocs_scalars")


class _ArrayType(ModuleType):
    """In place of numpy.typing: `NDArray` is for annotations, which nobody evaluates. Another name loads the real module."""

    NDArray = list

    def __getattr__(self, name: str) -> Any:
        return _real(self, name)


class _NoMasks(ModuleType):
    """In place of numpy.ma, for `np.unique`, which asks it whether an array is masked. Another name loads the real module."""

    @staticmethod
    def is_masked(array: object) -> bool:
        """No array is: the real module is not loaded, and only it makes them."""
        return False

    def __getattr__(self, name: str) -> Any:
        return _real(self, name)


def _real(module: ModuleType, name: str) -> Any:
    """That name of the module which `module` stands for."""
    if name.startswith("__"):
        raise AttributeError(name)
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]
    return getattr(import_module(module.__name__), name)


def light_imports() -> None:
    """Import what every process that counts lines or shows windows needs. Call before anything else imports hashlib, msgspec or
    numpy."""
    light_messages()
    light_numpy()


def light_messages() -> None:
    """Import what every command needs that talks to an agent. Call before anything else imports hashlib or msgspec.

    - OpenSSL: hashlib has the same hashes from Python itself, 4 MB smaller and 5 ms sooner.
    - typing_extensions: msgspec takes the same from typing where it is not installed, 3 ms sooner.
    """
    sys.modules.setdefault("_hashlib", None)  # type: ignore[arg-type]
    with _in_place({"typing_extensions": None}):
        import msgspec  # noqa: F401


def light_numpy() -> None:
    """Import numpy, 40 ms. Call before anything else imports it.

    - Threads for linear algebra: numpy's BLAS starts one per core as it loads, 30 ms and memory for each.
    - The documentation of numpy's compiled functions: 1 MB of text, attached line by line in 10 ms.
    - numpy's types for annotations: unions of all that is like an array, 12 ms.
    - Masked arrays, which `np.unique` loads to see that it was not given one: 1 MB.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    documentation = {name: ModuleType(name) for name in _NUMPY_DOCUMENTATION}
    with _in_place({**documentation, "numpy._typing": _ArrayType("numpy._typing")}):
        import numpy as np
    np.typing = sys.modules.setdefault("numpy.typing", _ArrayType("numpy.typing"))
    np.ma = sys.modules.setdefault("numpy.ma", _NoMasks("numpy.ma"))


class _NoTls(ModuleType):
    """In place of the module ssl, for uvloop, which takes exceptions, types and a few numbers from it as it loads."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0 if name.startswith("SSL_ERROR_") else type(name, (Exception,), {})


def light_event_loop(*, with_uvloop: bool = True) -> None:
    """Import asyncio and uvloop without OpenSSL, which takes 5 MB. No TLS in this process then; the mesh has CURVE. Call before
    anything else imports them. with_uvloop: an agent without neighbours does without, 1 MB smaller."""
    with _in_place({"ssl": None}):
        import asyncio  # noqa: F401
    if not with_uvloop:
        return
    with _in_place({"ssl": _NoTls("ssl")}):
        import uvloop  # noqa: F401


@contextmanager
def _in_place(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Within the context, replace modules that are not imported yet (None: not installed)."""
    new = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(new)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in new:
            del sys.modules[name]
