"""`elf keys`: a mesh's authority and the keys it issues. Secrets go into files, and are never shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from time import time
from typing import TypeVar

from elf.agent.config.authority_folder import REVOKED, SECRET, AuthorityFolder, listing
from elf.agent.host.identity import read_secret
from elf.errors import ConfigError, ElfError, PeerError, UsageError
from elf.srt.messages.addresses import key_text, parse_address
from elf.srt.messages.messages import Item
from elf.srt.messages.patterns import PATTERNS_MAX
from elf.srt.security.certificates import JOB_PATTERN, Role, TrustError, check_term
from elf.srt.security.files import REVOCATIONS_FORMAT, keys_lines, load_keys, load_revocations, save_keys

T = TypeVar("T")


def init_command(folder: Path) -> list[str]:
    """Make an authority. Returns the lines to print. Raises ElfError, OSError."""
    made = AuthorityFolder.make(folder)
    return [
        f"authority: {key_text(made.authority.public)}",
        f"{folder / SECRET}: any reader of it can issue keys for the mesh; keep a copy, and keep it off the mesh's hosts",
        f"next: elf keys issue NAME --role agent --address HOST:PORT --dir {folder}",
    ]


def issue_command(
    folder: Path,
    name: str,
    role: Role,
    address: str,
    days: int,
    out: Path | None,
    force: bool,
    jobs: tuple[str, ...] = (),
    identity: Path | None = None,
) -> list[str]:
    """Make keys, and write the bundle. identity: the secret of an agent that ran without keys. Returns the lines to print. Raises
    ElfError, OSError."""
    path = out or Path(f"{name}.keys")
    _check_address(address, role)
    _check_jobs(jobs, role)
    if identity is not None and role != "agent":
        raise UsageError("--id: only agents have an id in a mesh; leave it out")
    secret = read_secret(identity) if identity is not None else b""
    if path.exists() and not force:
        raise UsageError(f"{path}: exists already; name another file with -o, or overwrite it with --force")
    keys = _read(AuthorityFolder, folder).issue(name, role, int(time()), days, address, jobs, secret)
    try:
        save_keys(keys, path, replace=force)
    except OSError as error:
        raise ElfError(
            f"{path}: the keys cannot be written ({error.strerror}) and are lost; elf keys revoke {name} before you try again"
        ) from error
    return [
        *keys_lines(keys),
        f"written to {path}: copy it to where {name} runs, mode 0600, and nowhere else",
    ]


def renew_command(folder: Path, bundle: Path, days: int) -> list[str]:
    """Give a bundle a new certificate of the same keys. Returns the lines to print. Raises ElfError, OSError."""
    keys = _read(AuthorityFolder, folder).renew(_read(load_keys, bundle), int(time()), days)
    save_keys(keys, bundle, replace=True)
    return [*keys_lines(keys), f"written to {bundle}; an agent reads it when it starts"]


def revoke_command(folder: Path, who: str, agent: Path | None) -> list[str]:
    """Revoke keys, or take a file of revocations, and send the revocations to the agent on this host. Returns the lines to print.

    agent: its control socket, None where none was named and there is none. Raises ElfError, OSError.
    """
    lines: list[str] = []
    path = Path(who)
    if path.is_file() and _is_revocations(path):
        items = _read(load_revocations, path)
    else:
        items = _read(AuthorityFolder, folder).revoke(who, int(time()))
        path = folder / REVOKED
        lines.append(f"{who} is revoked; written to {path}")
    if agent is None:
        lines.append(
            f"the mesh does not know of it yet; run on any of its hosts: elf keys revoke {path.name} --agent PATH"
        )
        return lines
    return [*lines, _send(items, agent)]


def show_command(path: Path) -> list[str]:
    """The public content of a bundle, of a file of revocations or of an authority's folder. Raises ElfError, OSError."""
    if path.is_dir():
        return list(listing(_read(AuthorityFolder, path), int(time())))
    if _is_revocations(path):
        return [f"revoked: {item.name.hex()}" for item in _read(load_revocations, path)]
    keys = _read(load_keys, path)
    try:
        check_term(keys.certificate, int(time()))
    except TrustError as error:
        return [*keys_lines(keys), f"not valid now: {error}"]
    return keys_lines(keys)


def _read(load: Callable[[Path], T], path: Path) -> T:
    """Load what an argument names. Raises UsageError."""
    try:
        return load(path)
    except ConfigError as error:
        raise UsageError(str(error)) from None


def _is_revocations(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(1_000)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; see its path and owner") from None
    return f'format = "{REVOCATIONS_FORMAT}"'.encode() in head


def _check_address(address: str, role: Role) -> None:
    if not address:
        return
    if role != "agent":
        raise UsageError(
            f"--address: no node connects to {'an' if role == 'operator' else 'a'} {role}; leave it out"
        )
    try:
        if parse_address(address).key is None and parse_address(address).port:
            return
    except PeerError:
        pass
    raise UsageError(f"--address: {address!r} is not an address of an agent; give HOST:PORT")


def _check_jobs(jobs: tuple[str, ...], role: Role) -> None:
    if jobs and role != "operator":
        raise UsageError("--jobs: only operators change jobs; leave it out")
    if len(jobs) > PATTERNS_MAX or not all(re.match(JOB_PATTERN, each) for each in jobs):
        raise UsageError(
            f"--jobs: expected at most {PATTERNS_MAX} names of jobs or patterns like 'web-*', each of at most 64 characters "
            "without spaces"
        )


def _send(items: list[Item], agent: Path) -> str:
    """Send revocations to the agent on this host. Raises ElfError."""
    from elf.agent.control.client import Control
    from elf.agent.control.protocol import Revoke

    with Control(agent) as control:
        control.one(Revoke(tuple(items)))
    return (
        f"the agent at {agent} accepted {len(items)} revocation{'s'[: len(items) != 1]}, and announces them"
    )


def local_agent(given: Path | None, config: Path, environ: Mapping[str, str]) -> Path | None:
    """The control socket of the agent on this host: the named one, else an existing one."""
    from elf.agent.control.client import socket_path

    path = socket_path(given, config, environ)
    return path if given is not None or path.exists() else None
