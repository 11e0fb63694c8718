"""`elf job history` and `elf job show`: the versions of a job, and what it is now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from elf.agent.commands.jobs.change import running_job, setting_differences
from elf.agent.commands.jobs.delivery import deliveries_of
from elf.agent.commands.mesh_text import as_json, is_table, table_of, time_text, trial_text
from elf.agent.config import units
from elf.agent.config.alert_table import alert_text, alerts_text
from elf.agent.config.job_file import job_text
from elf.agent.config.limits import limits_text
from elf.jobmaster.directory.differences import Difference, differences
from elf.jobmaster.directory.job_spec import ALL_TIME, END, JobSpec
from elf.jobmaster.directory.known_schedule import KnownSchedule
from elf.jobmaster.directory.limits import NO_LIMITS
from elf.jobmaster.directory.versions import Step, history, parameter_texts
from elf.sinks.console.cells import escape

MODES = {"start": "start", "split": "now", "next": "next", "restate": "restate", "fallback": "revoked"}
"""As `elf job update --at` calls them."""


def history_command(name: str, output: str | None, agent: Path | None) -> str:
    """The versions of a job, oldest first, as text. Raises `ElfError`."""
    spec, held = running_job(name, agent)
    steps = history(spec, held.schedule, held.lost)
    changes = _query_differences(spec, steps)
    if not is_table(output):
        return as_json([_as_values(step, each) for step, each in zip(steps, changes, strict=True)])
    columns = ["version", "at", "asked", "in force from", "state", "by", "values", "differences", "query"]
    rows = [
        (
            step.version,
            _mode(step),
            _time(step.asked_us),
            _time(step.from_us),
            _state(spec, step),
            escape(step.by) or "-",
            values_text(step.values),
            escape("; ".join(map(_brief, (*query, *_differences(step))))) or "-",
            " ".join(step.sql.split()) or "-",
        )
        for step, query in zip(steps, changes, strict=True)
    ]
    shown = [any(getattr(step, field) for step in steps) for field in ("by", "values")]
    used = [True] * 5 + [*shown, any(row[7] != "-" for row in rows), True]
    table = table_of(list(compress(columns, used)), [tuple(compress(row, used)) for row in rows])
    return f"{table}\n{escape(held.revoked)}" if held.revoked else table


def _query_differences(spec: JobSpec, steps: Sequence[Step]) -> list[list[Difference]]:
    """Of each step: how its query differs from that of the version before it that has results; nothing if one of the two is no
    longer kept."""
    versions = {version.digest: version for version in spec.whole}
    before, found = None, list[list[Difference]]()
    for step in steps:
        version = versions.get(step.version)
        found.append(differences(before, version) if before is not None and version is not None else [])
        if step.state in ("in force", "replaced") and step.version != END:
            before = version
    return found


def _brief(each: Difference) -> str:
    return f"{each.part} {_short(each.before)} -> {_short(each.after)}"


def _differences(step: Step) -> list[Difference]:
    """The settings that a change brought."""
    return setting_differences(*step.settings) if step.settings is not None else []


def _mode(step: Step) -> str:
    return "stop" if step.version == END else MODES[step.mode]


def _state(spec: JobSpec, step: Step) -> str:
    if step.state != "in force":
        return step.state
    return "stopped" if spec.stopped else "finishing" if spec.is_finishing else step.state


def values_text(values: Mapping[str, str]) -> str:
    """Values of parameters in a line, each of bounded length."""
    return ", ".join(f"{name}={escape(_short(text))}" for name, text in values.items()) or "-"


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


def show_command(name: str, output: str | None, agent: Path | None) -> str:
    """A job as it is now, as text, or as the job file that starts it again. Raises `ElfError`."""
    from elf.agent.commands.jobs.trial.trial import running_line

    spec, held = running_job(name, agent)
    if output == "file":
        return job_text(spec)
    values = _job(spec, held.schedule, held.now_us) | {"revoked": held.revoked}
    values["trial"] = trial = running_line(spec, held.now_us, agent)
    values["delivery"] = delivery = deliveries_of(spec, agent)
    if not is_table(output):
        return as_json(values)
    rows = [
        (
            "job",
            escape(spec.name) + (f", a trial of {escape(spec.trial.of)}" if spec.trial is not None else ""),
        ),
        ("state", values["state"]),
        ("version", values["version"]),
        *([("signed by", escape(values["by"]))] if values["by"] else []),
        *([("revoked", escape(held.revoked))] if held.revoked else []),
        ("in force", f"from {_time(values['from_us'])} on" if values["from_us"] else "not yet"),
        ("source", escape(spec.source)),
        ("since", _time(spec.since_us)),
        ("lateness", units.duration_text(spec.lateness_us)),
        ("emit", units.duration_text(spec.emit_us) if spec.emit_us else "the mesh's"),
        ("keep", units.duration_text(spec.keep_us)),
        ("sinks", escape(", ".join(spec.sinks)) or "none"),
        *(("delivery" if not at else "", each.text) for at, each in enumerate(delivery)),
        *([("alerts", escape(alerts_text(spec.alerts)))] if spec.alerts else []),
        *((("limits", limits_text(spec.limits)),) if spec.limits != NO_LIMITS else ()),
        ("folder", escape(spec.label) or "none"),
        *((("values", values_text(values["parameters"])),) if values["parameters"] else ()),
        *([("trial", trial_text(trial).partition(": ")[2])] if trial is not None else []),
        ("query", escape(" ".join(spec.query.text.split()))),
    ]
    return "\n".join(f"{title:<10}{text}" for title, text in rows)


def _job(spec: JobSpec, known: KnownSchedule | None, now_us: int) -> dict[str, Any]:
    last, steps = spec.query, history(spec, known)
    step = next((each for each in reversed(steps) if each.version == last.digest), steps[-1])
    state = "stopped" if spec.has_ended(now_us) else "finishing" if spec.is_finishing else "running"
    return {
        "name": spec.name,
        "state": state,
        "version": last.digest,
        "from_us": step.from_us,
        "number": spec.number,
        "source": spec.source,
        "since_us": spec.since_us,
        "lateness_us": spec.lateness_us,
        "emit_us": spec.emit_us,
        "keep_us": spec.keep_us,
        "sinks": list(spec.sinks),
        "alerts": [alert_text(each) for each in spec.alerts],
        "limits": {
            "groups": spec.limits.groups,
            "over": "other" if spec.limits.others else "fail",
            "sent_bytes": spec.limits.sent_bytes,
            "cpu_us": spec.limits.cpu_us,
        },
        "label": spec.label,
        "sql": last.text,
        "parameters": parameter_texts(last),
        "by": spec.changes[-1].by if spec.changes else "",
    }


def _as_values(step: Step, query: Sequence[Difference]) -> dict[str, Any]:
    return {
        "version": step.version,
        "at": _mode(step),
        "asked_us": step.asked_us,
        "from_us": step.from_us,
        "state": step.state,
        "sql": step.sql,
        "parameters": step.values,
        "by": step.by,
        "differences": to_builtins(query),
        "settings": to_builtins(_differences(step)),
    }


def _time(us: int | None) -> str:
    return "the oldest line" if us == ALL_TIME else time_text(us) if us else "-"
