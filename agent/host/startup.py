"""Keeps the start of a process short and small: leaves out parts of libraries that no command uses."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

_NUMPY_DOCUMENTATION = ("numpy._core._add_newdocs", "numpy._core._add_newdocs_scalars")


_CO_COROUTINE = 0x80
"""`inspect.CO_COROUTINE`: a flag of code."""


class _Later(ModuleType):
    """In place of a module: any name that it does not have itself is taken from the real one, which is loaded for it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


class _ArrayType(_Later):
    """In place of numpy.typing: `NDArray` is for annotations, which nobody evaluates."""

    NDArray = list


class _NoMasks(_Later):
    """In place of numpy.ma, for `np.unique`, which asks it whether an array is masked."""

    @staticmethod
    def is_masked(array: object) -> bool:
        """No array is: the real module is not loaded, and only it makes them."""
        return False


class _Inspect(_Later):
    """In place of inspect, for event loops, which ask it about each handler of a signal and keep both functions."""

    @staticmethod
    def isgenerator(value: object) -> bool:
        """As the real one."""
        return isinstance(value, GeneratorType)

    def iscoroutinefunction(self, function: object) -> bool:
        """As the real one, which is asked about what is neither a function nor a method, or is marked."""
        if isinstance(function, FunctionType | MethodType) and not function.__dict__:
            return bool(function.__code__.co_flags & _CO_COROUTINE)
        found: bool = self.__getattr__("iscoroutinefunction")(function)
        return found


class _NoSignatures(_Later):
    """In place of inspect while numpy loads, which writes the documentation of its functions with it."""

    @staticmethod
    def cleandoc(doc: str) -> str:
        """As it is: nobody reads it."""
        return doc

    @staticmethod
    def signature(function: object) -> None:
        """None: nobody asks numpy's functions for theirs."""


def light_imports() -> None:
    """Import what every process that counts lines or shows windows needs. Call before anything else imports hashlib, msgspec or
    numpy."""
    light_messages()
    light_numpy()


def light_messages() -> None:
    """Import what every command needs that talks to an agent. Call before anything else imports hashlib or msgspec.

    - OpenSSL: hashlib has the same hashes from Python itself, 4 MB smaller and 5 ms sooner.
    - typing_extensions: msgspec takes the same from typing where it is not installed, 3 ms sooner.
    - Modules that others import and hardly use, 2.3 MB with what they import themselves.
    """
    for name in ("ast", "ipaddress", "locale", "msgspec.inspect", "pickle", "tokenize"):
        sys.modules.setdefault(name, _Later(name))
    sys.modules.setdefault("inspect", _Inspect("inspect"))
    sys.modules.setdefault("_hashlib", None)  # type: ignore[arg-type]
    with _in_place({"typing_extensions": None}):
        import msgspec  # noqa: F401


def light_numpy() -> None:
    """Import numpy, 40 ms. Call before anything else imports it.

    - Threads for linear algebra: numpy's BLAS starts one per core as it loads, 30 ms and memory for each.
    - The documentation of numpy's compiled functions: 1 MB of text, attached line by line in 10 ms.
    - numpy's types for annotations: unions of all that is like an array, 12 ms.
    - Masked arrays, which `np.unique` loads to see that it was not given one: 1 MB.
    - Signatures and indentation of its documentation, 5 ms.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    documentation = {name: ModuleType(name) for name in _NUMPY_DOCUMENTATION}
    typing, inspect = _ArrayType("numpy._typing"), _NoSignatures("inspect")
    with _in_place({**documentation, "numpy._typing": typing, "inspect": inspect}):
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
    """Within the context, replace modules that are not loaded yet (None: not installed)."""
    before = {name: sys.modules.get(name) for name in modules}
    new = {name: modules[name] for name, old in before.items() if old is None or isinstance(old, _Later)}
    sys.modules.update(new)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, module in new.items():
            if sys.modules.get(name) is not module:
                continue  # the real one, which was needed
            del sys.modules[name]
            if (old := before[name]) is not None:
                sys.modules[name] = old
