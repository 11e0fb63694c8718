"""What must hold before an agent can start: its keys, the folders of its logs and its state. Changes nothing on disk."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from time import time

from elf.agent.config import config
from elf.agent.config.config import Config
from elf.agent.disk import state_dir
from elf.agent.host.identity import claimant
from elf.errors import ConfigError, StateError
from elf.srt.messages.ids import short
from elf.srt.security.certificates import Keys
from elf.srt.security.files import load_agent_keys


def check_start(settings: Config) -> None:
    """Raises ConfigError for the first of the `obstacles`."""
    for obstacle in obstacles(settings):
        raise ConfigError(obstacle)


def obstacles(settings: Config) -> Iterator[str]:
    """Why an agent with these settings could not start, or would have nothing to read: a line each."""
    yield from _of_logs(settings)
    keys = None
    if settings.mesh.bundle is not None and settings.mesh.security == "curve":
        try:
            keys = load_agent_keys(settings.mesh.bundle, int(time()))
        except ConfigError as error:
            yield str(error)
    yield from _of_state(settings, keys)


def _of_logs(settings: Config) -> Iterator[str]:
    try:
        config.check_logs(settings)
    except ConfigError as error:
        yield str(error)
    for source in settings.sources:
        for pattern in source.paths:
            folder = folder_of(pattern)
            try:
                os.scandir(folder).close()
            except OSError as error:
                yield (
                    f"{settings.path}: source {source.name}: {folder}: {error.strerror}; correct the path, or make a folder "
                    f"there that the agent's user can list (this is user {os.getuid()})"
                )


def folder_of(pattern: str) -> Path:
    """The folder that must exist for the pattern to match anything: the one before its first wildcard."""
    folder = Path(pattern).parent
    while glob.has_magic(str(folder)):
        folder = folder.parent
    return folder


def _of_state(settings: Config, keys: Keys | None) -> Iterator[str]:
    """Problems of state_dir, without making it."""
    from elf.sinks.lake.folder import try_folder

    folder = settings.agent.state_dir
    try:
        try_folder(folder)
    except OSError as error:
        yield (
            f"{settings.path}: state_dir {folder}: {error.filename}: {error.strerror}; make it writable for the user that runs "
            f"the agent (this is user {os.getuid()}), or name another one"
        )
        return
    try:
        state_dir.check(folder)
    except StateError as error:
        yield str(error)
    held = claimant(folder)
    if keys is not None and held and held != keys.id.hex():
        yield (
            f"{settings.path}: state_dir {folder} holds the state of agent {held[:6]}, but the keys are those of agent "
            f"{short(keys.id)}; name its own keys, or another state_dir"
        )
