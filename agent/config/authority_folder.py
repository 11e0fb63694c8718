"""A mesh authority on disk: a folder that only its owner can read, best not on a host of the mesh.

    authority.secret    signs certificates: a reader of it decides which nodes the mesh admits. Mode 0600
    authority.public    the key that verifies certificates; in effect the mesh's identity
    issued.jsonl        all certificates issued, a line each, the newest last
    revocations.toml    all revocations, signed, to be sent to any agent of the mesh

A certificate is listed before it is handed out, so that every one can be revoked.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from elf.errors import ConfigError, UsageError
from elf.srt.messages.addresses import key_text
from elf.srt.messages.messages import Item
from elf.srt.security.certificates import Authority, Certificate, Keys, Role, TrustError, moment, read_proof
from elf.srt.security.files import (
    encode_authority,
    encode_revocations,
    load_authority,
    load_revocations,
    sync_folder,
    write_private,
)
from elf.srt.security.items import revocation

SECRET, PUBLIC, ISSUED, REVOKED = "authority.secret", "authority.public", "issued.jsonl", "revocations.toml"


class Issued(msgspec.Struct, frozen=True):
    """A line of the list. The proof is authoritative; the rest is for human readers."""

    name: str
    role: str
    until: str
    proof: bytes


class AuthorityFolder:
    """The authority in a folder. Its ConfigErrors name the file."""

    def __init__(self, path: Path) -> None:
        """Open it. Raises ConfigError if the folder holds none."""
        self.path = path
        if not (path / SECRET).exists():
            raise ConfigError(
                f"{path}: there is no mesh authority here; elf keys init --dir {path} makes one"
            )
        self.authority = load_authority(path / SECRET)

    @classmethod
    def make(cls, path: Path) -> AuthorityFolder:
        """Make a new authority. Raises UsageError if there is one already, OSError."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = Authority()
        try:
            write_private(path / SECRET, encode_authority(authority))
        except FileExistsError:
            raise UsageError(
                f"{path}: there is a mesh authority already; name another folder with --dir"
            ) from None
        (path / PUBLIC).write_text(key_text(authority.public) + "\n", encoding="utf-8")
        return cls(path)

    def issue(
        self,
        name: str,
        role: Role,
        now_s: int,
        days: int,
        address: str,
        jobs: tuple[str, ...] = (),
        secret: bytes = b"",
    ) -> Keys:
        """Issue new keys. jobs: valid patterns. secret: see `Authority.issue`. Raises UsageError if that name is invalid or
        already has valid keys."""
        with self._locked():
            self._check_name(name, now_s)
            try:
                keys = self.authority.issue(name, role, now_s, days, address, jobs, secret)
            except TrustError:
                raise UsageError(
                    f"{name!r} cannot be a name: at most 64 letters, digits, dots, dashes and underscores"
                ) from None
            self._list(keys)
        return keys

    def renew(self, keys: Keys, now_s: int, days: int) -> Keys:
        """Issue a new certificate for the same keys. Raises UsageError for keys of another authority, or revoked ones."""
        name = keys.certificate.name
        if keys.authority != self.authority.public:
            raise UsageError(
                f"the keys of {name!r} are of another authority than {self.path}; name its folder with --dir"
            )
        with self._locked():
            if keys.certificate.serial in self.revoked():
                raise UsageError(f"the keys of {name!r} were revoked; elf keys issue makes new ones")
            renewed = self.authority.renew(keys, now_s, days)
            self._list(renewed)
        return renewed

    def revoke(self, who: str, now_s: int) -> list[Item]:
        """Revoke all certificates of that name, or of the keys with that serial. Returns all revocations so far. Raises
        UsageError."""
        with self._locked():
            listed = self.issued()
            found = [each for each in listed if who in (each.name, each.serial.hex())]
            if not found:
                raise UsageError(
                    f"{who!r}: no keys have that name or serial; elf keys show {self.path} lists all"
                )
            keys = {each.curve_public for each in found}
            held = self.revoked()
            for each in listed:
                if each.curve_public in keys and each.serial not in held:
                    held[each.serial] = revocation(self.authority, each, now_s)
            items = list(held.values())
            write_private(self.path / REVOKED, encode_revocations(items), replace=True)
        return items

    def issued(self) -> list[Certificate]:
        """All certificates ever issued here, oldest first. Raises ConfigError."""
        where = self.path / ISSUED
        try:
            lines = where.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        try:
            proofs = [msgspec.json.decode(line, type=Issued).proof for line in lines]
            return [read_proof(self.authority.public, proof) for proof in proofs]
        except (msgspec.MsgspecError, UnicodeDecodeError, TrustError) as error:
            raise ConfigError(
                f"{where}: a line is damaged ({error}); take it from a copy, or remove the line"
            ) from None

    def revoked(self) -> dict[bytes, Item]:
        """Serial -> its revocation. Raises ConfigError."""
        path = self.path / REVOKED
        return {item.name: item for item in load_revocations(path)} if path.exists() else {}

    def _check_name(self, name: str, now_s: int) -> None:
        gone = self.revoked()
        for each in self.issued():
            if each.name == name and each.serial not in gone and each.not_after_s >= now_s:
                raise UsageError(
                    f"{name!r} has keys until {moment(each.not_after_s)}: elf keys renew FILE makes these last longer, "
                    f"elf keys revoke {name} takes them back"
                )

    def _list(self, keys: Keys) -> None:
        it = keys.certificate
        line = msgspec.json.encode(Issued(it.name, it.role, moment(it.not_after_s), keys.proof)) + b"\n"
        descriptor = os.open(self.path / ISSUED, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(descriptor, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(descriptor)
        sync_folder(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock out other processes that issue or revoke."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def listing(folder: AuthorityFolder, now_s: int) -> Sequence[str]:
    """Each certificate and its state, a line each, for operators."""
    gone = folder.revoked()
    lines = [f"authority: {key_text(folder.authority.public)}"]
    for it in folder.issued():
        state = "revoked" if it.serial in gone else "expired" if it.not_after_s < now_s else "valid"
        jobs = f"  jobs: {it.jobs_text}" if it.role == "operator" else ""
        lines.append(
            f"{it.name}  {it.role}  {state}, until {moment(it.not_after_s)}  {it.serial.hex()}{jobs}"
        )
    return lines
