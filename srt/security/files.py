"""Keys and revocations in files: TOML, with public facts first, in comments too, and secrets last, in a table of their own.

So an operator can read the head of a file without seeing a secret; the agent uses only the proof and the secrets. A file with
secrets is created with mode 0600, under another name, and appears whole or not at all. Error messages never repeat bytes of a
file, since they may be secret.
"""

from __future__ import annotations

import base64
import os
import stat
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from elf.errors import ConfigError, PeerError
from elf.srt.messages.addresses import key_text
from elf.srt.messages.ids import short
from elf.srt.messages.messages import Item
from elf.srt.messages.revocation import Revocation
from elf.srt.messages.typed import S, parse
from elf.srt.security.certificates import Authority, Certificate, Key, Keys, TrustError, check_term, moment
from elf.srt.security.pairs import KEY_BYTES

FILE_BYTES_MAX = 64 << 10
"""Bound of a file of keys, which takes 1 KiB."""
REVOCATIONS_BYTES_MAX = 4 << 20
"""400 bytes each: 10,000."""
KEYS_FORMAT = "elf keys 1"
AUTHORITY_FORMAT = "elf authority 1"
REVOCATIONS_FORMAT = "elf revocations 1"


def seed_line(address: str, certificate: Certificate) -> str:
    """A node's address with its key, as other agents' configurations name it as a seed."""
    return f"{address}/{key_text(certificate.curve_public)}"


# Keys.


def load_keys(path: str | os.PathLike[str]) -> Keys:
    """Read a bundle that `elf keys issue` made. Raises ConfigError: unreadable, not a bundle, or readable by others."""
    where = os.fspath(path)
    data, mode = _read(where, "keys")
    keys = decode_keys(data, where)
    _check_mode(where, mode)
    return keys


def save_keys(keys: Keys, path: Path, *, replace: bool = False) -> None:
    """Write the bundle, mode 0600. Raises OSError; FileExistsError unless it may `replace`."""
    write_private(path, encode_keys(keys), replace=replace)


def load_agent_keys(path: str | os.PathLike[str], now_s: int) -> Keys:
    """Read the bundle of an agent, which must be valid now. Raises ConfigError."""
    keys = load_keys(path)
    it = keys.certificate
    if it.role != "agent":
        raise ConfigError(
            f"{os.fspath(path)}: these are keys of the {it.role} {it.name!r}; an agent needs some of the role agent"
        )
    try:
        check_term(it, now_s)
    except TrustError as error:
        raise ConfigError(f"{os.fspath(path)}: {error}") from None
    return keys


def decode_keys(data: bytes, where: str) -> Keys:
    """The keys in a bundle's bytes. Raises ConfigError that names `where`, and shows nothing of the bytes."""
    what, hint = "a bundle of keys", "`elf keys issue` makes one"
    found = _decoded(data, where, _KeysFile, KEYS_FORMAT, what, hint)
    curve, signing = found.secret.curve, found.secret.signing
    if len(signing) not in {0, KEY_BYTES}:
        raise ConfigError(
            f"{where}: a key has the wrong length; take the whole file that `elf keys issue` made"
        )
    try:
        return Keys(found.authority, found.proof, curve, signing, found.address)
    except TrustError as error:
        raise ConfigError(f"{where}: {error}") from None


def keys_lines(keys: Keys) -> list[str]:
    """The public facts about keys, one a line."""
    it = keys.certificate
    lines = [
        f"name: {it.name}",
        f"role: {it.role}",
        f"valid: {moment(it.not_before_s)} to {moment(it.not_after_s)}",
        f"id: {it.id.hex()} ({short(it.id)})",
        f"serial: {it.serial.hex()}",
        f"authority: {key_text(keys.authority)}",
    ]
    if it.role == "operator":
        lines.append(f"jobs: {it.jobs_text}")
    if it.role == "agent":
        lines.append(f"seed: {seed_line(keys.address or 'HOST:PORT', it)}")
    return lines


def encode_keys(keys: Keys) -> str:
    """The bundle's text."""
    facts = "".join(f"# {line}\n" for line in keys_lines(keys))
    return (
        f"# ELF keys. The holder of this file acts as {keys.certificate.name} in the mesh: do not copy it to where others "
        "can read it.\n"
        f"# Without the secrets: elf keys show FILE\n{facts}"
        f'format = "{KEYS_FORMAT}"\naddress = "{keys.address}"\nauthority = "{_b64(keys.authority)}"\n'
        f'proof = "{_b64(keys.proof)}"\n\n# SECRET from here on.\n[secret]\ncurve = "{_b64(keys.curve_secret)}"\n'
        f'signing = "{_b64(keys.signing_seed)}"\n'
    )


# The authority.


def load_authority(path: str | os.PathLike[str]) -> Authority:
    """Read an authority's secret. Raises ConfigError like `load_keys`."""
    where = os.fspath(path)
    data, mode = _read(where, "the authority's secret")
    what, hint = "an authority's secret", "`elf keys init` makes one"
    found = _decoded(data, where, _AuthorityFile, AUTHORITY_FORMAT, what, hint)
    _check_mode(where, mode)
    return Authority(found.seed)


def encode_authority(authority: Authority) -> str:
    """The text of the file that `load_authority` reads."""
    return (
        "# ELF mesh authority. The holder of this file can admit anyone to the mesh. Keep it off the mesh's hosts.\n"
        f'# authority: {key_text(authority.public)}\nformat = "{AUTHORITY_FORMAT}"\n\n# SECRET from here on.\n'
        f'seed = "{_b64(authority.seed)}"\n'
    )


# Revocations. Public.


def encode_revocations(items: Sequence[Item]) -> str:
    """The text of a file that `decode_revocations` reads."""
    parts = [f'# Certificates that a mesh authority revoked. Public.\nformat = "{REVOCATIONS_FORMAT}"\n']
    for item in items:
        about = parse(item.body, Revocation)
        parts.append(
            f"\n# {about.name}, serial {item.name.hex()}, {moment(about.revoked_s)}\n[[revoked]]\n"
            f'item = "{_b64(msgspec.msgpack.encode(item))}"\n'
        )
    return "".join(parts)


def load_revocations(path: str | os.PathLike[str]) -> list[Item]:
    """Read such a file. The signatures are not verified here. Raises ConfigError."""
    where = os.fspath(path)
    return decode_revocations(_read(where, "revocations", REVOCATIONS_BYTES_MAX)[0], where)


def decode_revocations(data: bytes, where: str) -> list[Item]:
    """Items of kind "revoked"; their signatures are not verified here. Raises ConfigError."""
    what, hint = "a list of revocations", "`elf keys revoke` makes one"
    found = _decoded(data, where, _RevocationsFile, REVOCATIONS_FORMAT, what, hint, REVOCATIONS_BYTES_MAX)
    try:
        items = [parse(each.item, Item) for each in found.revoked]
        for item in items:
            parse(item.body, Revocation)
    except PeerError as error:
        raise ConfigError(f"{where}: a revocation cannot be read ({error}); take the whole file") from None
    if any(item.kind != "revoked" for item in items):
        raise ConfigError(f"{where}: it contains other items than revocations; take the file that elf made")
    return items


# Files.


def write_private(path: Path, text: str, *, replace: bool = False) -> None:
    """Create a file of mode 0600, whole or not at all, and sync it. Raises FileExistsError unless it may `replace`, OSError."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o600)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        if replace:
            os.replace(new, path)
        else:
            os.link(new, path)  # unlike a rename, fails if the file exists
    finally:
        new.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that files created or renamed in it are durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(where: str, what: str, bytes_max: int = FILE_BYTES_MAX) -> tuple[bytes, int]:
    """A file's bytes, up to one more than allowed, and its mode. Raises ConfigError."""
    try:
        with open(where, "rb") as file:
            return file.read(bytes_max + 1), stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except OSError as error:
        raise ConfigError(
            f"{where}: {what} cannot be read: {error.strerror}; check its path and owner"
        ) from None


def _check_mode(where: str, mode: int) -> None:
    """A file with secrets may be readable by its owner and by its group, and by no others. Raises ConfigError."""
    if mode & 0o037:
        raise ConfigError(f"{where}: others may read or change these secrets (mode {mode:04o}); chmod 600 it")


class _Secrets(msgspec.Struct):
    curve: Key
    signing: Annotated[bytes, Meta(max_length=KEY_BYTES)]


class _KeysFile(msgspec.Struct):
    authority: Key
    proof: bytes
    secret: _Secrets
    address: Annotated[str, Meta(max_length=200, pattern=r"^[ -~]*\Z")] = ""


class _AuthorityFile(msgspec.Struct):
    seed: Key


class _Revoked(msgspec.Struct):
    item: bytes


class _RevocationsFile(msgspec.Struct):
    revoked: list[_Revoked] = []


def _decoded(
    data: bytes, where: str, kind: type[S], form: str, what: str, hint: str, bytes_max: int = FILE_BYTES_MAX
) -> S:
    try:
        if len(data) > bytes_max:
            raise ValueError
        table = tomllib.loads(data.decode())
    except (
        ValueError,
        RecursionError,
    ):  # ValueError: of TOML and UTF-8 too; its text would show the file's content
        table = {}
    if table.get("format") != form:
        raise ConfigError(f"{where}: this is not {what} of a version that this elf reads; {hint}") from None
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:  # it names the field, and does not show its content
        raise ConfigError(f"{where}: {error}; take the whole file that elf made") from None


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
