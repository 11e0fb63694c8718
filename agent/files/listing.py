"""The files on disk: every file that the patterns match, once, and the other files of the same families."""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import stat
from collections.abc import Callable, Iterable, Sequence

import msgspec

from elf.agent.files import names
from elf.agent.files.follow import Inode


class Seen(msgspec.Struct):
    """A regular file on disk, at one scan. wanted: a pattern matches it (else only another file of its family)."""

    path: str
    status: os.stat_result
    wanted: bool

    @property
    def inode(self) -> Inode:
        return self.status.st_dev, self.status.st_ino

    @property
    def signature(self) -> tuple[int, int]:
        return self.status.st_size, self.status.st_mtime_ns

    @property
    def rotated(self) -> bool:
        return names.looks_rotated(self.path)

    @property
    def family(self) -> str:
        return names.family(self.path)


def not_a_file(mode: int) -> str | None:
    """Why a file of that mode cannot be followed as a log; None if it can. The bytes at a position must stay readable."""
    kinds = (
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    if stat.S_ISDIR(mode):
        return "is a folder, not a log; name the files in it, for example '*.log'"
    for is_it, name in kinds:
        if is_it(mode):
            return (
                f"is {name}, whose bytes cannot be read again after a restart; have the server log to a file "
                "(elf run without --follow reads it once)"
            )
    return None


def refused(patterns: Iterable[str]) -> str | None:
    """The first pattern that names something other than a file, with what to do; None if all can be followed."""
    for pattern in patterns:
        try:
            why = not_a_file(os.stat(pattern).st_mode)
        except OSError:
            continue  # the file may appear, or become readable
        if why is not None:
            return f"{pattern}: {why}"
    return None


def reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and not error.strerror:
        return f"{error} no longer exists"
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


def writable(seen: Sequence[Seen]) -> set[Inode]:
    """The files that a writer may have open by name: those with a plain name; in a family without one, the newest."""
    families: dict[str, list[Seen]] = {}
    for one in seen:
        families.setdefault(one.family, []).append(one)
    found: set[Inode] = set()
    for members in families.values():
        wanted = [one for one in members if one.wanted] or members
        plain = [one for one in wanted if not one.rotated]
        found |= {one.inode for one in plain or wanted[-1:]}
    return found


class Listing:
    """The patterns, and the notices already given about them."""

    def __init__(self, patterns: Sequence[str], notice: Callable[[str], None]) -> None:
        self.patterns = [os.path.abspath(pattern) for pattern in patterns]
        self.is_deep = any(glob.has_magic(os.path.dirname(pattern)) for pattern in self.patterns)
        """Whether patterns match folders, so that files may appear in folders that are not watched."""
        self.folders: set[str] = set()
        """The folders that the last `look` listed: to be watched."""
        self._linked: set[str] = set()  # folders of files to which links lead that a pattern matches
        self._notice = notice
        self._missing: set[str] = set()
        self._aliases: set[tuple[str, str]] = set()
        self._odd: set[str] = set()

    def look(self, known_paths: Iterable[str]) -> list[Seen]:
        """Every file once, the longest unmodified first. O(files in the folders)."""
        known = list(known_paths)
        self.folders = {os.path.dirname(path) for path in known}
        paths: dict[str, bool] = {}
        links: set[str] = set()
        for pattern in self.patterns:
            self._match(pattern, paths, links)
        self._linked = {os.path.dirname(os.path.realpath(link)) for link in links}
        self.folders |= self._linked
        families = {names.family(path) for path in [*paths, *known]}
        for folder in self.folders:
            for entry in _files_in(folder):
                if (
                    entry.path not in paths
                    and not entry.is_symlink()
                    and names.family(entry.path) in families
                ):
                    paths[entry.path] = False
        found: dict[Inode, Seen] = {}
        for path in sorted(paths, key=lambda path: (not paths[path], path in links, path)):
            self._stat(path, paths[path], path in links, found)
        return sorted(found.values(), key=lambda one: (one.status.st_mtime_ns, names.age(one.path)))

    def is_named(self, folder: str) -> bool:
        """Whether a pattern may match files in that folder, whether or not one does now."""
        named = [os.path.dirname(pattern) for pattern in self.patterns]
        if folder in named or folder in self._linked:
            return True
        return any(fnmatch.fnmatchcase(folder, each.replace("/**", "*")) for each in named)

    def _match(self, pattern: str, paths: dict[str, bool], links: set[str]) -> None:
        """Add the files of a pattern to `paths` (symbolic links also to `links`), and their folders to `folders`."""
        folder, name = os.path.split(pattern)
        if not glob.has_magic(pattern) or os.path.lexists(pattern):
            self.folders.add(folder)
            paths[pattern] = True
            links |= {pattern} if os.path.islink(pattern) else set()
        elif not glob.has_magic(folder):
            self.folders.add(folder)
            for entry in _files_in(folder):
                if fnmatch.fnmatchcase(entry.name, name) and (name[0] == "." or entry.name[0] != "."):
                    paths[entry.path] = True
                    links |= {entry.path} if entry.is_symlink() else set()
        else:
            for path in glob.glob(pattern, recursive=True):
                paths[path] = True
                links |= {path} if os.path.islink(path) else set()
                self.folders.add(os.path.dirname(path))

    def _stat(self, path: str, wanted: bool, is_link: bool, found: dict[Inode, Seen]) -> None:
        try:
            status = os.stat(path)
        except OSError as error:
            if (
                wanted
                and path not in self._missing
                and (error.errno != errno.ENOENT or path in self.patterns)
            ):
                self._missing.add(path)
                self._notice(f"{path}: {reason(error)}; waiting for it")
            return
        self._missing.discard(path)
        if not stat.S_ISREG(status.st_mode):
            if (
                wanted
                and path not in self._odd
                and not (stat.S_ISDIR(status.st_mode) and path not in self.patterns)
            ):
                self._odd.add(path)
                self._notice(f"{path}: {not_a_file(status.st_mode)}; it is not read")
            return
        self._odd.discard(path)
        one = Seen(os.path.realpath(path) if is_link else path, status, wanted)
        other = found.setdefault(one.inode, one)
        if other is one:
            return
        if not _is_at(other):
            found[one.inode] = one  # renamed during this look
        elif wanted and other.wanted and (path, other.path) not in self._aliases:
            self._aliases.add((path, other.path))
            self._notice(f"{path}: the same file as {other.path}; counted once")


def _is_at(one: Seen) -> bool:
    try:
        status = os.stat(one.path)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == one.inode


def _files_in(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
