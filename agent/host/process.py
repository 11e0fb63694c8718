"""The process of a mesh agent: loads the keys, runs the event loop, handles signals."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from time import time

from elf.agent.config.config import Config
from elf.agent.disk import state_dir
from elf.agent.host.allocator import stay_small
from elf.agent.host.host import Host
from elf.agent.host.single_instance import Restart
from elf.errors import StateError
from elf.srt.security.certificates import Keys, Trust

Reload = Callable[[Callable[[], None]], None]
"""Handles SIGHUP: calls its argument, in any thread, if the agent is to end."""


def serve_mesh(config: Config, notices: Callable[[str], None], reload: Reload) -> int | None:
    """Run one agent of a mesh, or of a mesh of one, until it ends. Returns the exit code: 0 after SIGTERM, 130 after Ctrl-C; None
    without either.

    The first signal shuts it down in order, a second one ends it at once. Raises ConfigError, StateError.
    """
    stay_small()
    keys = _keys(config)
    trust = Trust(keys.authority) if keys is not None else None
    with asyncio.Runner(loop_factory=_loop_factory(config)) as runner:
        return runner.run(_run(lambda former: Host(config, keys, trust, notices, former), reload))


def _loop_factory(config: Config) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """None: Python's own loop, which starts faster, and serves an agent without neighbours as well."""
    if config.mesh.listen is None:
        return None
    import uvloop

    return uvloop.new_event_loop


async def _run(host_after: Callable[[Restart | None], Host], reload: Reload) -> int | None:
    """Run a host, and after each restart of its node the next one, within this process."""
    stop = asyncio.Event()
    exit_code: int | None = None
    loop = asyncio.get_running_loop()

    def ask(number: int) -> None:
        nonlocal exit_code
        exit_code = 130 if number == signal.SIGINT else 0
        stop.set()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask, number)

    def end() -> None:
        loop.call_soon_threadsafe(stop.set)

    loop.add_signal_handler(signal.SIGHUP, reload, end)
    restart = await _live(host_after, None, stop)
    while restart is not None and not stop.is_set():
        restart = await _live(host_after, restart, stop)
    return exit_code


async def _live(
    host_after: Callable[[Restart | None], Host], former: Restart | None, stop: asyncio.Event
) -> Restart | None:
    """Run the next host; while its disk is full before it has begun, wait and try again. Raises as `Host.run`."""
    is_told = False
    while not stop.is_set():
        host = host_after(former)
        try:
            return await host.run(stop)
        except StateError as error:
            if host.is_open or not state_dir.is_full(error):
                raise
            if not is_told:
                host.notices(state_dir.waiting(host.config.agent.state_dir, error))
            is_told = True
        with suppress(TimeoutError):
            async with asyncio.timeout(state_dir.RETRY_S):
                await stop.wait()
    return None


def _keys(config: Config) -> Keys | None:
    if config.mesh.bundle is None or config.mesh.security == "none":
        return None
    from elf.srt.security.files import load_agent_keys

    return load_agent_keys(config.mesh.bundle, int(time()))
