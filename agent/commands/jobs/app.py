"""The commands `elf job …`, and the options that they share with `elf mesh …`.

Everything but typer is imported by the command that needs it, so that help is quick.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from elf.agent.commands.agent_line import CONFIG_VARIABLE
from elf.agent.commands.run_line import Output

job_app = typer.Typer(
    help="Jobs of the mesh: start, try, change, roll back, stop, watch.", no_args_is_help=True
)


@job_app.callback()
def prepare() -> None:
    """Start soon. Those that show windows need numpy too."""
    from elf.agent.host.startup import light_messages

    light_messages()


class TableOrJson(StrEnum):
    table = "table"
    json = "json"


class TextOrJson(StrEnum):
    text = "text"
    json = "json"


class ShowForm(StrEnum):
    table = "table"
    json = "json"
    file = "file"


# Arguments of commands to the mesh.
ConfigFile = Annotated[
    Path,
    typer.Option(
        "--config", "-c", metavar="FILE", envvar=CONFIG_VARIABLE, help="The configuration, in TOML."
    ),
]
Agent = Annotated[
    Path | None,
    typer.Option(
        "--agent",
        metavar="PATH",
        envvar="ELF_AGENT",
        help="Control socket of the agent to ask.",
        show_default="control.sock in the configured state_dir, else in /run/elf",
    ),
]
JobName = Annotated[str, typer.Argument(metavar="NAME", help="The job.")]
OperatorKeys = Annotated[
    Path | None,
    typer.Option(
        "--keys", metavar="FILE", envvar="ELF_KEYS", help="The operator's key bundle, to sign with."
    ),
]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param", metavar="NAME=VALUE", help="The value of a parameter :NAME of the query. Repeatable."
    ),
]
ListOutput = Annotated[
    TableOrJson | None,
    typer.Option("--output", help="Its form.", show_default="table on a terminal, json in a pipe"),
]
WatchOutput = Annotated[
    Output | None,
    typer.Option("--output", help="Its form.", show_default="table on a terminal, json in a pipe"),
]

Strict = Annotated[
    bool,
    typer.Option("--strict", help="Change nothing if not all agents can run the query, or have its columns."),
]

Force = Annotated[bool, typer.Option("--force", help="With --at restate: also if lines it needs are gone.")]


Sql = Annotated[str | None, typer.Option("--sql", metavar="SQL", help="The question, in Spark SQL.")]
JobFileOption = Annotated[
    Path | None,
    typer.Option(
        "-f", "--file", metavar="FILE", help="A job file instead: TOML (.toml), or SQL with a TOML head."
    ),
]
LATENESS = "How long a window waits for late lines."
EMIT = "How often open windows are published."
KEEP = "How long a final window takes corrections."
SINK = "Where windows are kept: a [[sink]] of an agent. Repeatable; '' alone: nowhere."
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")]
Answer = Annotated[TextOrJson, typer.Option("--output", help="The answer's form.")]
Message = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the signed command to FILE (-: standard output), for an agent's command topic, and send nothing.",
    ),
]


def _print(text: str) -> None:
    """Print an answer; nothing where standard output has the message."""
    if text:
        typer.echo(text)


@job_app.command("start")
def job_start(
    name: JobName,
    sql: Sql = None,
    file: JobFileOption = None,
    param: Params = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The source: agents that have one of that name take part.",
            show_default="what FROM says",
        ),
    ] = None,
    lateness: Annotated[
        str | None, typer.Option(metavar="SPAN", help=LATENESS, show_default="by the logs' formats")
    ] = None,
    emit: Annotated[str | None, typer.Option(metavar="SPAN", help=EMIT, show_default="200ms")] = None,
    keep: Annotated[str | None, typer.Option(metavar="SPAN", help=KEEP, show_default="1h")] = None,
    sink: Annotated[list[str] | None, typer.Option(metavar="NAME", help=SINK)] = None,
    dry_run: DryRun = False,
    strict: Strict = False,
    output: Answer = TextOrJson.text,
    message: Message = None,
    keys: OperatorKeys = None,
    agent: Agent = None,
) -> None:
    """Start a job on all agents that follow its source."""
    from elf.agent.commands.jobs.job import new_job, start_command

    flags = {
        "sql": sql,
        "source": source,
        "lateness": lateness,
        "emit": emit,
        "keep": keep,
        "sinks": sink or None,
    }
    new = new_job(name, file, flags, param, strict=strict)
    _print(start_command(new, dry_run, keys, agent, output == "json", message))


class At(StrEnum):
    now = "now"
    next = "next"
    restate = "restate"


ChangeAt = Annotated[
    At,
    typer.Option(
        "--at",
        help="From which time on: now; the next window; or all windows that are not final, whose lines are read again.",
    ),
]
ExpectVersion = Annotated[
    str | None,
    typer.Option(metavar="V", help="Change nothing unless this is the job's version, or its first digits."),
]


@job_app.command("update")
def job_update(
    name: JobName,
    sql: Sql = None,
    file: JobFileOption = None,
    param: Params = None,
    lateness: Annotated[str | None, typer.Option(metavar="SPAN", help=LATENESS)] = None,
    emit: Annotated[str | None, typer.Option(metavar="SPAN", help=EMIT)] = None,
    keep: Annotated[str | None, typer.Option(metavar="SPAN", help=KEEP)] = None,
    sink: Annotated[list[str] | None, typer.Option(metavar="NAME", help=SINK)] = None,
    at: ChangeAt = At.now,
    expect_version: ExpectVersion = None,
    dry_run: DryRun = False,
    strict: Strict = False,
    force: Force = False,
    output: Answer = TextOrJson.text,
    message: Message = None,
    keys: OperatorKeys = None,
    agent: Agent = None,
) -> None:
    """Change a running job's question or options, everywhere.

    Every line counts in one version, the one in force at the line's time. Other options hold for windows that begin from then on.
    """
    from elf.agent.commands.jobs.change import Update, update_command
    from elf.agent.commands.jobs.job import new_job

    flags = {"sql": sql, "lateness": lateness, "emit": emit, "keep": keep, "sinks": sink or None}
    new = new_job(name, file, flags, param, strict=strict, exists=True)
    update = Update(
        name, new, None, at.value, expect_version, dry_run, keys, (), force, output == "json", message
    )
    _print(update_command(update, agent))


@job_app.command("set")
def job_set(
    name: JobName,
    values: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE...", help="Parameters of its query, and their values.")
    ],
    at: ChangeAt = At.now,
    expect_version: ExpectVersion = None,
    dry_run: DryRun = False,
    force: Force = False,
    output: Answer = TextOrJson.text,
    message: Message = None,
    keys: OperatorKeys = None,
    agent: Agent = None,
) -> None:
    """Give parameters of a running job's question other values."""
    from elf.agent.commands.jobs.change import Update, set_command

    about = (name, None, None, at.value, expect_version, dry_run, keys, tuple(values))
    update = Update(*about, force=force, as_json=output == "json", message=message)
    _print(set_command(update, agent))


@job_app.command("rollback")
def job_rollback(
    name: JobName,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="V",
            help="An earlier version, or its first digits: see elf job history.",
            show_default="the one before the present one",
        ),
    ] = None,
    at: ChangeAt = At.now,
    expect_version: ExpectVersion = None,
    dry_run: DryRun = False,
    force: Force = False,
    output: Answer = TextOrJson.text,
    message: Message = None,
    keys: OperatorKeys = None,
    agent: Agent = None,
) -> None:
    """Give a running job an earlier version again."""
    from elf.agent.commands.jobs.change import Update, rollback_command

    update = Update(
        name, None, to, at.value, expect_version, dry_run, keys, (), force, output == "json", message
    )
    _print(rollback_command(update, agent))


@job_app.command("try")
def job_try(
    name: JobName,
    sql: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="The question to try.", show_default="see the trial that runs"),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Values to try for parameters, of this question or of the job's own. Repeatable.",
        ),
    ] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on",
            metavar="PATTERN",
            help="Only agents with such names, like 'web-1*'; the present question runs there too, to compare with. Repeatable.",
        ),
    ] = None,
    span: Annotated[
        str, typer.Option("--for", metavar="SPAN", help="How long; then the trial ends by itself.")
    ] = "10m",
    windows: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="End the display after N windows; 0: show none.")
    ] = None,
    output: ListOutput = None,
    keys: OperatorKeys = None,
    agent: Agent = None,
) -> None:
    """Run a question beside a job, and compare their windows.

    The job is not changed. Ctrl-C ends only the display. End the trial with elf job promote or elf job abort.
    """
    from elf.agent.host.startup import light_numpy

    light_numpy()
    from elf.agent.commands.jobs.trial.trial import NewTrial
    from elf.agent.commands.jobs.trial.watch import try_command

    new = NewTrial(name, sql, tuple(values or ()), tuple(on or ()), span, keys)
    raise typer.Exit(try_command(new, windows, output.value if output else None, agent))


@job_app.command("promote")
def job_promote(
    name: JobName,
    at: ChangeAt = At.now,
    dry_run: DryRun = False,
    force: Force = False,
    output: Answer = TextOrJson.text,
    keys: OperatorKeys = None,
    agent: Agent = None,
) -> None:
    """Give a job the question of its trial, and end the trial.

    Refused if the job was changed since the trial began.
    """
    from elf.agent.commands.jobs.change import Update
    from elf.agent.commands.jobs.trial.trial import promote_command

    update = Update(name, at=at.value, dry_run=dry_run, keys=keys, force=force, as_json=output == "json")
    typer.echo(promote_command(update, agent))


@job_app.command("abort")
def job_abort(name: JobName, keys: OperatorKeys = None, agent: Agent = None) -> None:
    """End the trial of a job; the job stays as it is."""
    from elf.agent.commands.jobs.trial.trial import abort_command

    typer.echo(abort_command(name, keys, agent))


@job_app.command("history")
def job_history(name: JobName, output: ListOutput = None, agent: Agent = None) -> None:
    """The versions of a job, oldest first."""
    from elf.agent.commands.jobs.history import history_command

    typer.echo(history_command(name, output.value if output else None, agent))


@job_app.command("show")
def job_show(
    name: JobName,
    output: Annotated[
        ShowForm | None,
        typer.Option(
            "--output",
            help="Its form; file: the job file that starts it again.",
            show_default="table on a terminal, json in a pipe",
        ),
    ] = None,
    agent: Agent = None,
) -> None:
    """A job as it is now: its question, version and options."""
    from elf.agent.commands.jobs.history import show_command

    typer.echo(show_command(name, output.value if output else None, agent))


@job_app.command("apply")
def job_apply(
    folder: Annotated[
        Path,
        typer.Option("-f", "--folder", metavar="DIR", help="The folder; each .toml and .sql file is a job."),
    ],
    label: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help="A name that marks the jobs that are started from the folder.",
            show_default="the folder's name",
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Stop the jobs with this label that have no file in the folder now."),
    ] = False,
    dry_run: DryRun = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Stop even more than a fifth of the mesh's jobs.")
    ] = False,
    output: Annotated[TextOrJson, typer.Option("--output", help="Its form.")] = TextOrJson.text,
    keys: OperatorKeys = None,
    agent: Agent = None,
) -> None:
    """Make the mesh's jobs equal to a folder of job files."""
    from elf.agent.commands.jobs.folder.apply import Apply, apply_command

    apply = Apply(folder, label, prune, dry_run, yes, output.value == "json", keys)
    for line in apply_command(apply, agent):
        typer.echo(line)


@job_app.command("stop")
def job_stop(
    name: JobName,
    now: Annotated[bool, typer.Option("--now", help="At once; its open windows are dropped.")] = False,
    message: Message = None,
    keys: OperatorKeys = None,
    agent: Agent = None,
) -> None:
    """Stop a job everywhere, once its open windows are final.

    Lines from now on do not count. Ctrl-C ends only the waiting: the job ends all the same.
    """
    from elf.agent.commands.jobs.stop import stop_command

    raise typer.Exit(stop_command(name, now, keys, agent, message))


@job_app.command("list")
def job_list(output: ListOutput = None, agent: Agent = None) -> None:
    """All jobs."""
    from elf.agent.commands.jobs.job import list_command

    typer.echo(list_command(output.value if output else None, agent))


@job_app.command("watch")
def job_watch(
    name: JobName,
    windows: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="End after N final windows.")
    ] = None,
    output: WatchOutput = None,
    agent: Agent = None,
) -> None:
    """Follow a job's windows, open ones as they grow."""
    from elf.agent.host.startup import light_numpy

    light_numpy()
    from elf.agent.commands.jobs.watch import watch_command

    raise typer.Exit(watch_command(name, windows, output.value if output else None, agent))
