"""The text of faults in a transcript, with seconds and names of hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.world.network import Weather
from elf.agent.simulator.world.sources import Loss

Naming = Callable[[int], str]
"""The name of a host by its number, and of a sink by its number in a `Cut`."""

_LOST: dict[Loss, str] = {
    "all": "all its log files are deleted",
    "rotated": "its log files are deleted, but for the one it writes to",
    "cut": "the log file it writes to is cut to nothing",
}
_TWINS = {"nothing": "an empty state folder", "clone": "a clone of its state folder"}
_KEPT = {"all": "all that it held", "lake": "its lake alone", "nothing": "nothing"}


def fault_text(what: str, about: Any, name: Naming) -> str:
    """The text of an event that is a fault, or the end of one; "" for other events."""
    text = _TEXTS.get(what)
    return text(about, name) if text is not None else ""


def span(us: int) -> str:
    return f"{us / 1e6:g} s" if us >= s.SECOND else f"{us / 1e3:g} ms"


def _until(fault: s.Fault) -> str:
    return f", until {fault.until_us / 1e6:g}" if fault.until_us else ""


def _hosts(fault: s.Cut, name: Naming) -> str:
    return _list([name(host) for host in fault.hosts])


def _list(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _cut(fault: s.Cut, name: Naming) -> str:
    hosts = _hosts(fault, name)
    if fault.outward and fault.inward:
        return f"cut: nothing passes between others and {hosts}{_until(fault)}"
    way = f"from {hosts} to others" if fault.outward else f"from others to {hosts}"
    return f"cut: nothing passes {way}{_until(fault)}"


def _weather(weather: Weather, name: Naming) -> str:
    least, most = weather.delay_us, weather.delay_us + weather.jitter_us
    delays = span(most) if least == most else f"{span(least)} to {span(most)}"
    shares = (
        (weather.loss, "is lost"),
        (weather.duplicate, "comes twice"),
        (weather.straggle, f"comes up to {span(weather.straggle_us)} late"),
    )
    return ", ".join(
        [
            f"weather: datagrams take {delays}",
            *(f"{share * 100:.2g}% {way}" for share, way in shares if share),
        ]
    )


def _slow(extra_us: int, name: Naming) -> str:
    return f"slow: all from and to it takes {span(extra_us)} longer" if extra_us else "is no longer slow"


def _clock(by_us: int, name: Naming) -> str:
    return f"clock steps {span(abs(by_us))} {'ahead' if by_us > 0 else 'back'}"


def _bug(bug: s.Bug, name: Naming) -> str:
    place = "at all agents" if bug.host < 0 else f"at {name(bug.host)}"
    what = " ".join(filter(None, (bug.on, bug.kind)))
    return f"bug: job{bug.job} fails {place} at {'one' if bug.once else 'each'} {what}{_until(bug)}"


_TEXTS: dict[str, Callable[[Any, Naming], str]] = {
    "weather": _weather,
    "cut": _cut,
    "mend": lambda fault, name: f"mend: the cut around {_hosts(fault, name)} is over",
    "slow": _slow,
    "clock": _clock,
    "bug": _bug,
    "lose": lambda loss, name: _LOST[loss],
    "crash": lambda wipe, name: "crash, its disk is lost" if wipe else "crash",
    "process": lambda about, name: "its host lives on, and closes its sockets",
    "sees end": lambda who, name: f"sees that the process of {who} is gone",
    "sees restart": lambda who, name: f"sees that {who} was restarted",
    "twin": lambda fault, name: (
        f"its key is used by another machine too, with {_TWINS[fault.keeps]}{' and logs of its own' if fault.logs else ''}"
        f"{', beside it' if fault.beside else ''}"
        f"{_until(fault)}"
    ),
    "restore": lambda fault, name: f"its state folder is what it was at {fault.from_us / 1e6:g} s",
    "reject": lambda fault, name: (
        f"{fault.share * 100:.2g}% of its lines are logged in another format{_until(fault)}"
    ),
    "share": lambda fault, name: f"it reads the logs of {name(fault.other)}",
    "sink away": lambda fault, name: f"{name(s.SINK - fault.sink)} is away{_until(fault)}",
    "sink": lambda fault, name: f"{name(s.SINK - fault.sink)} is back, with {_KEPT[fault.keeps]}",
}
