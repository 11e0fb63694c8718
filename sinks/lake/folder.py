"""Checks whether a lake's folder can be written, and leaves nothing there."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path


def try_folder(folder: Path) -> None:
    """Write a file without a name in `folder`, or, if `folder` does not exist yet, in its nearest parent that exists.

    Raises OSError, with `filename` set to the folder that cannot be written.
    """
    place = folder.absolute()
    while not (place.exists() or place.is_symlink()):
        place = place.parent
    if not place.is_dir():
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(place)) from error
