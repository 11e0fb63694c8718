"""Tries the logs of each source: are there files, are they readable, do their last lines fit the format, how are they rotated."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from elf.agent.commands.doctor.finding import Finding, error, ok, warning
from elf.agent.commands.doctor.logrotate import Rule, rules
from elf.agent.commands.rejects import reject_lines
from elf.agent.config.config import Config, SourceSection
from elf.agent.files.content import kind
from elf.agent.files.inotify import FOLDERS_MAX, Inotify
from elf.agent.files.listing import Listing, Seen
from elf.agent.formats.choice import FormatChoice, head_of
from elf.agent.formats.formats import resolve
from elf.agent.formats.parser import Parser
from elf.agent.run.progress import count
from elf.errors import FormatError

TAIL_BYTES = 64 << 10
"""Bytes of a log's end whose lines are parsed."""
FILES_MAX = 20
"""Files of a source that are tried: those that were written last."""
EXCERPT_PLACES = 96


def log_findings(settings: Config) -> Iterator[Finding]:
    """Of each source, and of the watches for all of them."""
    folders: set[str] = set()
    found = rules()
    for source in settings.sources:
        listing = Listing(source.paths, lambda text: None)
        seen = [each for each in listing.look(()) if each.wanted]
        folders |= listing.folders
        yield from _of_source(source, seen, found)
    yield _watches(folders)


def _of_source(source: SourceSection, seen: Sequence[Seen], found: Sequence[Rule]) -> Iterator[Finding]:
    check = f"log {source.name}"
    live = [each for each in seen if not each.rotated] or list(seen)
    if not live:
        yield warning(
            check,
            f"no file matches {', '.join(source.paths)}; the agent waits for one: does the server log there?",
        )
        return
    for one in sorted(live, key=lambda each: -each.status.st_mtime_ns)[:FILES_MAX]:
        yield from _of_file(check, source, one)
    yield from _rotation(check, live, found)


def _of_file(check: str, source: SourceSection, one: Seen) -> Iterator[Finding]:
    try:
        tail = _tail(one.path)
    except OSError as problem:
        yield error(
            check,
            f"{one.path}: {problem.strerror} for user {os.getuid()}; add the agent's user to the group that owns the log "
            "(often adm), or change its mode",
        )
        return
    if not tail:
        yield ok(check, f"{one.path}: readable; there is no whole line at its end to try its format with")
        return
    try:
        yield _parsed(check, source, one, tail)
    except FormatError as problem:
        yield error(check, f"{one.path}: {problem}")


def _tail(path: str) -> bytes:
    """The last whole lines of a log; b"" if it has none, or is compressed. Raises OSError."""
    with open(path, "rb") as file:
        if kind(file.read(4)) != "plain":
            return b""
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        tail = file.read(TAIL_BYTES)
    if size > TAIL_BYTES:
        tail = tail[tail.find(b"\n") + 1 :]
    return tail[: tail.rfind(b"\n") + 1]


def _parsed(check: str, source: SourceSection, one: Seen, tail: bytes) -> Finding:
    choice = FormatChoice("auto", lambda text: None)
    is_auto = source.format == "auto"
    format = choice.detect(one.path, head_of(Path(one.path))) if is_auto else resolve(source.format)
    batch = Parser(format, (), timezone=source.timezone).parse(tail)
    how = f"format {format.name}" + (" (detected)" if is_auto else "")
    about = f"{one.path}: {how}, {batch.rows:,} of its last {batch.lines:,} lines parsed"
    if batch.rows == batch.lines:
        return ok(check, about)
    advice = (
        "; elf parse shows all"
        if batch.rows
        else "; name its format (elf formats lists them; elf parse tries one)"
    )
    lines = reject_lines(batch.samples[0], EXCERPT_PLACES) if batch.samples else ()
    return (warning if batch.rows * 2 > batch.lines else error)(check, about + advice, lines)


def _rotation(check: str, live: Sequence[Seen], found: Sequence[Rule]) -> Iterator[Finding]:
    """How logrotate treats the logs, as far as its files can be read here."""
    for path in sorted({each.path for each in live})[:FILES_MAX]:
        rule = next((rule for rule in found if rule.is_for(path)), None)
        if rule is None:
            continue
        if rule.copies:
            yield warning(
                check,
                f"{path}: {rule.where} rotates it by copytruncate, which loses the lines that are written between the copy and "
                "the truncation; use create, and have the server open its log again (postrotate)",
            )
        elif rule.keeps == 0:
            yield warning(
                check,
                f"{path}: {rule.where} keeps no rotated file (rotate 0), so lines that the agent has not read by then are lost; "
                "keep at least one",
            )
        else:
            yield ok(check, f"{path}: rotated by {rule.where}, {rule.keeps} kept")


def _watches(folders: set[str]) -> Finding:
    """Whether the kernel reports changes in the folders of the logs; without it the agent looks once in a while."""
    there = {folder for folder in folders if os.path.isdir(folder)}
    inotify = Inotify()
    try:
        inotify.watch(there)
        failed = sorted(inotify.failed)
    finally:
        inotify.close()
    if not failed:
        return ok("inotify", f"changes in {count(len(there), 'folder')} are reported")
    return warning(
        "inotify",
        f"{len(failed)} of {count(len(there), 'folder')} cannot be watched, {failed[0]} first (at most {FOLDERS_MAX}, and what "
        "fs.inotify.max_user_watches and max_user_instances allow); their lines arrive up to a second later",
    )
