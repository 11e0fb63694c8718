"""Tries what the host gives an agent: room on disks, a clock that is set, memory, descriptors and its addresses."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from elf.agent.commands.doctor.finding import Finding, error, ok, warning
from elf.agent.config import units
from elf.agent.config.config import Config
from elf.agent.config.specs import MeshSection
from elf.srt.messages.addresses import Address

FREE_MIN = 256 << 20
"""Bytes of a disk below which there is too little room: a journal of `memory_max` is rewritten beside itself."""
FREE_SHARE = 0.05
BARE = 64 << 20
"""About what an agent's process has before it reads anything, with some reserve."""
DESCRIPTORS_MIN = 1024
TIME_ERROR = 5
"""What adjtimex(2) returns if nothing keeps the kernel's clock right."""
MAXERROR = struct.Struct("@l")
CONNECT_S = 3.0


def machine_findings(settings: Config, is_running: bool) -> Iterator[Finding]:
    """is_running: an agent with these settings runs here, and has its ports."""
    yield from _disks(settings)
    yield _clock()
    yield _memory(settings)
    yield _descriptors()
    yield from _ports(settings.mesh, is_running)


def _disks(settings: Config) -> Iterator[Finding]:
    folders = {"state_dir": settings.agent.state_dir}
    folders |= {f"sink {sink.name}": sink.parquet for sink in settings.mesh.sinks if sink.parquet}
    for name, folder in folders.items():
        yield _disk(f"disk {name}", folder)


def _disk(check: str, folder: Path) -> Finding:
    from elf.sinks.lake.folder import try_folder

    try:
        try_folder(folder)
        place = folder.absolute()
        while not place.exists():
            place = place.parent
        found = os.statvfs(place)
    except OSError as problem:
        return error(
            check,
            f"{folder}: {problem.filename or folder}: {problem.strerror}; make it writable for the agent's user",
        )
    free, all_of_it = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    text = f"{folder}: {units.size_text(free)} of {units.size_text(all_of_it)} free"
    if free < FREE_MIN:
        return error(
            check, f"{text}; make room: without any, the agent keeps all in memory, and then stops reading"
        )
    if free < FREE_SHARE * all_of_it or found.f_favail < 1000 < found.f_files:
        return warning(check, f"{text}, {found.f_favail:,} inodes; make room")
    return ok(check, text)


def _clock() -> Finding:
    """As the kernel sees it: NTP daemons report to it when the clock is right, and how far it may be off."""
    buffer = ctypes.create_string_buffer(512)
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        state = -1
    if state < 0:
        return warning(
            "clock", "the kernel does not say whether the clock is kept right; check that NTP runs"
        )
    off_us = MAXERROR.unpack_from(buffer, 3 * MAXERROR.size)[0]  # after modes, offset and freq
    if state == TIME_ERROR:
        return warning(
            "clock",
            "no NTP daemon keeps this host's clock right, as far as the kernel knows (in a container the host's may); a clock "
            "that is off makes lines late or early; start chrony or systemd-timesyncd",
        )
    return ok("clock", f"kept right by NTP, within {off_us / 1000:.1f} ms")


def _memory(settings: Config) -> Finding:
    needed = settings.agent.memory_max + BARE
    text = f"memory_max {units.size_text(settings.agent.memory_max)}, and about {units.size_text(BARE)} of the process"
    bounds = [
        (_limit(Path("/sys/fs/cgroup/memory.max")), "its cgroup allows"),
        (_available(), "are available"),
    ]
    for bound, verb in bounds:
        if bound is not None and bound < needed:
            return warning(
                "memory", f"{text}, but {units.size_text(bound)} {verb}; lower memory_max, or raise that"
            )
    return ok("memory", text)


def _limit(path: Path) -> int | None:
    """The bytes that a cgroup's file names; None without a bound."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _available() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None


def _descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft:,} files may be open"
    if 0 <= hard < DESCRIPTORS_MIN:
        return warning("descriptors", f"{text}; raise that to {DESCRIPTORS_MIN:,} (LimitNOFILE= of a unit)")
    return ok("descriptors", text)


def _ports(mesh: MeshSection, is_running: bool) -> Iterator[Finding]:
    """The agent's own addresses: free, or held by the agent that runs; and reached at what it advertises."""
    for key, address in {"listen": mesh.listen, "metrics": mesh.metrics}.items():
        if address is None:
            continue
        if is_running:
            yield ok(f"port {key}", f"{address}: the agent that runs here has it")
        else:
            yield _bound(f"port {key}", address)
    if is_running and mesh.advertise is not None and mesh.advertise.port:
        yield reached("advertise", mesh.advertise, "other agents are to reach this one there")


def _bound(check: str, address: Address) -> Finding:
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family[0], family[1]) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(family[4])
    except OSError as problem:
        return error(
            check,
            f"{address}: {problem.strerror or problem}; name an address of this host and a port that nothing else has "
            "(ss -ltnp lists who has it)",
        )
    return ok(check, f"{address}: free")


def reached(check: str, address: Address, what: str) -> Finding:
    """Whether a connection to that address is taken."""
    try:
        with socket.create_connection((address.host, address.port), CONNECT_S):
            return ok(check, f"{address.endpoint}: answers")
    except OSError as problem:
        why = "no answer" if isinstance(problem, TimeoutError) else (problem.strerror or str(problem))
        return error(
            check,
            f"{address.endpoint}: {why.lower()}; {what}: check that its agent runs, the address, and firewalls on both sides",
        )
