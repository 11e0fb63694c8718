"""The faults: how each begins, lasts and is undone. A fault holds its agent's lock as long as it lasts."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.rigs.agents.busy import busy
from tests.torture.agents import Agent, RefusedError, elf
from tests.torture.schedule import Fault
from tests.torture.world import SPARE, World

Do = Callable[[World, Fault], None]
DOUBTFUL_MS = 90_000
LEAVE_S_MAX = 100.0


def befall(world: World, fault: Fault) -> None:
    """Perform the fault, wait, undo it. Raises OSError and RefusedError."""
    DO[fault.kind](world, fault)


def kill(world: World, fault: Fault) -> None:
    agent = world.agents[fault.host]
    agent.kill()
    world.pause(fault.span_s)
    agent.start()


def stop(world: World, fault: Fault) -> None:
    agent = world.agents[fault.host]
    agent.signal(signal.SIGSTOP)
    world.pause(fault.span_s)
    agent.signal(signal.SIGCONT)


def restart(world: World, fault: Fault) -> None:
    agent = world.agents[fault.host]
    agent.stop()
    world.pause(fault.span_s)
    agent.start()


def roll(world: World, fault: Fault) -> None:
    """Restart every agent in turn, the next one once this one sees all other running ones."""
    for agent in [each for each in world.agents.values() if each.is_wanted]:
        if world.is_over.is_set():
            return
        with agent.lock:
            count = len(world.living)
            agent.stop()
            agent.start()
            with suppress(OSError):
                world.until(partial(_sees, world, agent, count), "it is not back", 30.0)


def _sees(world: World, agent: Agent, count: int) -> bool:
    return world.sees(agent) >= count


def part(world: World, fault: Fault) -> None:
    """Cut off one agent, or that one and another."""
    away = {fault.host, fault.other} if fault.share < 0.4 else {fault.host}
    world.hosts.part(away)
    world.pause(fault.span_s)
    world.hosts.join(away)


def block(world: World, fault: Fault) -> None:
    """Lose what it sends to another one, or to all; what they send arrives."""
    others = [name for name in world.hosts.names if name != fault.host]
    to = others if fault.variant == "all" else [fault.other if fault.other != fault.host else others[0]]
    world.hosts.block(fault.host, to)
    world.pause(fault.span_s)
    world.hosts.unblock(fault.host, to)


def wipe(world: World, fault: Fault) -> None:
    """Lose the disk; variants also rotate the log before the agent is back, or just after."""
    agent = world.agents[fault.host]
    agent.kill()
    agent.wipe()
    if fault.variant == "rotated":
        world.rotate(fault.host)
    world.pause(fault.span_s)
    agent.start()
    if fault.variant == "rotated later":
        world.pause(0.5 + fault.share)
        world.rotate(fault.host)


def twin(world: World, fault: Fault) -> None:
    """Run another machine with the agent's keys: a newly installed one, a clone with the state, or also with the logs; beside the
    agent, or instead of it for a while."""
    agent = world.agents[fault.host]
    other = Agent(world.hosts, SPARE, world.folder / SPARE / f"{fault.at_s:.0f}" / agent.name)
    _set_up(other, agent, fault.variant)
    if fault.variant == "instead":
        agent.kill()
    other.start()
    world.pause(fault.span_s)
    other.kill()
    if fault.variant == "instead":
        agent.start()


def _set_up(other: Agent, agent: Agent, variant: str) -> None:
    (other.folder / "logs").mkdir(parents=True)
    (other.folder / "disk").mkdir()
    shutil.copy2(agent.folder / "agent.keys", other.folder)
    text = (agent.folder / "elf.toml").read_text().partition("[[sink]]")[0]
    (other.folder / "elf.toml").write_text(text.replace(agent.address, other.address))
    if variant.startswith("cloned"):
        _copy_state(agent.state, other.state)
    if variant == "cloned with logs":
        for path in (agent.folder / "logs").iterdir():
            with suppress(OSError):
                shutil.copy2(path, other.folder / "logs")


def _copy_state(state: Path, to: Path) -> None:
    """Copy as much as possible while a process runs on it."""
    for path in sorted(state.rglob("*")) if state.exists() else []:
        with suppress(OSError):
            if path.is_file():
                (to / path.relative_to(state)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, to / path.relative_to(state))


def restore(world: World, fault: Fault) -> None:
    """Put back a backup of the state folder, made while the agent was stopped or while it ran."""
    agent, backup = world.agents[fault.host], world.folder / fault.host / "backup"
    if fault.variant == "stopped":
        agent.stop()
    _copy_state(agent.state, backup)
    if fault.variant == "stopped":
        agent.start()
    world.pause(6.0 + 20.0 * fault.share)
    agent.kill()
    agent.wipe()
    _copy_state(backup, agent.state)
    shutil.rmtree(backup, ignore_errors=True)
    world.pause(fault.span_s)
    agent.start()


def full(world: World, fault: Fault) -> None:
    """Fill the disk of its state, or of its lake."""
    folder = world.folder / fault.host
    disk = folder / fault.variant if (folder / fault.variant).exists() else folder / "disk"
    filling = disk / "filling"
    with suppress(OSError), filling.open("wb", buffering=0) as file:
        while file.write(bytes(65_536)):
            pass
    world.pause(fault.span_s)
    filling.unlink()


def clock(world: World, fault: Fault) -> None:
    agent = world.agents[fault.host]
    agent.step_clock(float(fault.variant))
    world.pause(fault.span_s)
    agent.step_clock(0.0)


def reload(world: World, fault: Fault) -> None:
    world.servers[fault.host].reload()


def hog(world: World, fault: Fault) -> None:
    """Run a busy loop beside it."""
    with busy(1):
        world.pause(fault.span_s)


def renew(world: World, fault: Fault) -> None:
    agent = world.agents[fault.host]
    world.authority.renew(agent)
    agent.stop()
    agent.start()


def bug(world: World, fault: Fault) -> None:
    """For a while, finishing a window of the doomed job raises, at one agent or at all."""
    agents = list(world.agents.values()) if fault.variant == "all" else [world.agents[fault.host]]
    for agent in agents:
        agent.bug.touch()
    world.pause(fault.span_s)
    for agent in agents:
        agent.bug.unlink(missing_ok=True)


def join(world: World, fault: Fault) -> None:
    """Add a host: its agent first, and visitors once the mesh knows it."""
    agent, server = world.agents[fault.host], world.servers[fault.host]
    server.start()
    agent.start()
    with suppress(OSError):
        world.until(lambda: world.sees(agent) >= 2, "it does not join", 30.0)
    server.welcome(world.options.rate, world.options.seed * 100 + len(fault.host))


def leave(world: World, fault: Fault) -> None:
    """Leave for good, after the last line. An agent that cannot leave in time stays, and ends as soon as it can."""
    agent = world.agents[fault.host]
    world.servers[fault.host].dismiss()
    with suppress(RefusedError):
        agent.is_wanted = False
        elf("mesh", "leave", "--agent", agent.socket, seconds=LEAVE_S_MAX)
        world.note_left(fault.host)
        return
    agent.is_wanted = agent.is_leaving = True
    if not agent.is_running:
        agent.start()


def _is_told(world: World, revoked: Agent) -> bool:
    """Whether a running agent took the revocation; another fault may hit that agent at this moment."""
    with suppress(RefusedError):
        world.authority.revoke(revoked, world.well(revoked.name))
        return True
    return False


def revoke(world: World, fault: Fault) -> None:
    """Revoke its keys. It is unknown which of its last lines still counted."""
    agent, server = world.agents[fault.host], world.servers[fault.host]
    server.dismiss()
    agent.is_wanted = False
    world.doubtful_ms[fault.host] = int(time.time() * 1_000) - DOUBTFUL_MS
    world.until(lambda: _is_told(world, agent), "no agent takes the revocation", 30.0)
    world.gone[fault.host] = "revoked"
    with suppress(OSError):
        world.until(lambda: not agent.is_running, "a revoked agent goes on", 30.0)
    agent.kill()


DO: dict[str, Do] = {
    do.__name__: do
    for do in (
        kill,
        stop,
        restart,
        roll,
        part,
        block,
        wipe,
        twin,
        restore,
        full,
        clock,
        reload,
        hog,
        renew,
        bug,
        join,
        leave,
        revoke,
    )
}
