"""`elf doctor` and the tests of `elf validate` before an agent starts."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest

from elf.agent.commands.doctor import machine, state
from elf.agent.commands.doctor.command import all_findings
from elf.agent.commands.doctor.finding import Finding, Severity, as_text, error, exit_code, ok, warning
from elf.agent.commands.doctor.logrotate import Rule, rules
from elf.agent.commands.doctor.mesh import neighbours
from elf.agent.commands.startable import folder_of, obstacles
from elf.agent.config import config
from elf.agent.control.protocol import Member, Status
from elf.agent.disk.journal import Journal
from elf.sinks.console.grid import Style
from elf.srt.messages.addresses import Address
from elf.srt.security.certificates import Authority
from elf.srt.security.files import save_keys
from elf.typer_cli import main

LINE = '192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 12 "-" "curl/8"\n'
LONE = """
[agent]
name = "web1"
state_dir = "state"
[[source]]
name = "access"
path = "{path}"
[[job]]
name = "errors"
sql = "SELECT window, count(*) AS n FROM access GROUP BY window(time, '10 seconds')"
"""
MESH = """
[agent]
name = "web1"
state_dir = "state"
listen = "127.0.0.1:{port}"
[keys]
bundle = "web1.keys"
[[source]]
name = "access"
path = "access.log"
"""


def written(folder: Path, text: str, **values: object) -> Path:
    path = folder / "elf.toml"
    path.write_text(text.format(**({"path": "access.log"} | values)))
    return path


def found(path: Path, check: str) -> list[Finding]:
    return [each for each in all_findings(path) if each.check == check]


def keys(folder: Path, role: str = "agent", days: int = 365) -> bytes:
    """Issue a bundle `web1.keys`; the id of its holder."""
    import time

    issued = Authority().issue("web1", role, int(time.time()), days=days)  # type: ignore[arg-type]
    save_keys(issued, folder / "web1.keys", replace=True)
    return issued.id


# Logs.


def test_a_log_that_fits_its_format_is_good(tmp_path: Path) -> None:
    (tmp_path / "access.log").write_text(LINE * 3)
    path = written(tmp_path, LONE)
    assert found(path, "log access") == [
        ok("log access", f"{tmp_path}/access.log: format combined (detected), 3 of its last 3 lines parsed")
    ]
    assert found(path, "configuration")[0].severity is Severity.ok


def test_only_whole_lines_at_the_end_of_a_long_log_are_tried(tmp_path: Path) -> None:
    (tmp_path / "access.log").write_text(LINE * 1_000 + LINE[:20])
    (one,) = found(written(tmp_path, LONE), "log access")
    assert one.severity is Severity.ok
    lines = ((64 << 10) - 20) // len(LINE)
    assert f"{lines} of its last {lines} lines parsed" in one.text


def test_lines_of_another_format_are_shown(tmp_path: Path) -> None:
    (tmp_path / "access.log").write_text(LINE + "garbage in the log\n")
    (half,) = found(written(tmp_path, LONE), "log access")
    assert (half.severity, half.lines[1].strip()) == (Severity.error, "garbage in the log")
    (tmp_path / "access.log").write_text(LINE * 9 + "garbage in the log\n")
    (few,) = found(written(tmp_path, LONE), "log access")
    assert few.severity is Severity.warning
    assert "9 of its last 10 lines parsed; elf parse shows all" in few.text
    (tmp_path / "access.log").write_text("this is\nno access log\n")
    (none,) = found(written(tmp_path, LONE), "log access")
    assert none.severity is Severity.error
    assert "format auto: none of" in none.text


def test_a_log_that_is_not_there_is_doubtful_and_its_folder_an_obstacle(tmp_path: Path) -> None:
    path = written(tmp_path, LONE)
    assert found(path, "log access")[0].text.startswith(f"no file matches {tmp_path}/access.log; ")
    path = written(tmp_path, LONE, path="ngnix/access.log")
    (only,) = obstacles(config.load(path, environ={}))
    assert only.startswith(f"{path}: source access: {tmp_path}/ngnix: No such file or directory; ")
    assert found(path, "configuration") == [error("configuration", only)]


@pytest.mark.parametrize(
    ("pattern", "folder"),
    [("/var/log/a.log*", "/var/log"), ("/srv/*/logs/a.log", "/srv"), ("/srv/**/x[12]/a", "/srv")],
)
def test_the_folder_before_the_first_wildcard_must_exist(pattern: str, folder: str) -> None:
    assert folder_of(pattern) == Path(folder)


# Rotation.

LOGROTATE = """
# as Debian has it
weekly
rotate 4
include {folder}/d
/var/log/last.log { rotate 2 }
"""
NGINX = """
/var/log/nginx/*.log
"/srv/with blanks/access.log" {
    daily
    rotate 14
    prerotate
        if [ -d /etc/x ]; then { run-parts /etc/x; } ; fi
    endscript
    postrotate
        copytruncate
    endscript
}
/var/log/apache2/*.log {
    copytruncate
    rotate 0
}
/var/log/default.log {
}
"""


def test_rules_of_logrotate_are_read_with_what_holds_for_all(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "web").write_text(NGINX)
    (tmp_path / "d" / "old.bak").write_text(NGINX)
    main_file = tmp_path / "logrotate.conf"
    main_file.write_text(LOGROTATE.replace("{folder}", str(tmp_path)))
    web = str(tmp_path / "d" / "web")
    read = rules(str(main_file))
    assert read == [
        Rule(web, ("/var/log/nginx/*.log", "/srv/with blanks/access.log"), False, 14),
        Rule(web, ("/var/log/apache2/*.log",), True, 0),
        Rule(web, ("/var/log/default.log",), False, 4),
        Rule(str(main_file), ("/var/log/last.log",), False, 2),
    ]
    assert read[0].is_for("/var/log/nginx/access.log")
    assert rules(str(tmp_path / "none")) == []


def test_copytruncate_and_no_rotated_file_are_doubtful(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "access.log").write_text(LINE)
    path = written(tmp_path, LONE)
    log = f"{tmp_path}/access.log"
    for copies, keeps, severity, text in (
        (True, 4, Severity.warning, "by copytruncate, which loses the lines"),
        (False, 0, Severity.warning, "keeps no rotated file (rotate 0)"),
        (False, 7, Severity.ok, "rotated by rule, 7 kept"),
    ):
        rule = Rule("rule", (log,), copies, keeps)
        monkeypatch.setattr("elf.agent.commands.doctor.logs.rules", lambda rule=rule: [rule])
        about = found(path, "log access")[1]
        assert (about.severity, text in about.text) == (severity, True)


# Keys and state.


def test_a_key_that_others_can_read_a_foreign_role_and_foreign_state_are_obstacles(tmp_path: Path) -> None:
    me = keys(tmp_path)
    path = written(tmp_path, MESH, port=7070)
    settings = config.load(path, environ={})
    assert list(obstacles(settings)) == []
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "node").write_text(me.hex())
    assert list(obstacles(settings)) == []
    (tmp_path / "state" / "node").write_text("ab" * 16)
    assert [text.partition("; ")[0] for text in obstacles(settings)] == [
        f"{path}: state_dir {tmp_path}/state holds the state of agent ababab, but the keys are those of agent {me.hex()[:6]}"
    ]
    (tmp_path / "web1.keys").chmod(0o644)
    assert [text.partition(": ")[2] for text in obstacles(settings)] == [
        "others may read or change these secrets (mode 0644); chmod 600 it"
    ]
    (tmp_path / "web1.keys").unlink()
    assert "web1.keys: keys cannot be read: No such file or directory" in next(iter(obstacles(settings)))
    keys(tmp_path, role="operator")
    assert "these are keys of the operator 'web1'" in next(iter(obstacles(settings)))


def test_validate_refuses_what_cannot_start(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keys(tmp_path)
    path = written(tmp_path, MESH, port=7070)
    (tmp_path / "web1.keys").chmod(0o644)
    assert main(["validate", "-c", str(path)]) == 78
    assert capfd.readouterr().err.endswith("(mode 0644); chmod 600 it\n")


@pytest.mark.process
def test_keys_that_end_soon_are_doubtful(tmp_path: Path) -> None:
    keys(tmp_path, days=10)
    (one,) = found(written(tmp_path, MESH, port=0), "keys")
    assert one.severity is Severity.warning
    assert " days; renew them with: elf keys renew" in one.text


def test_a_damaged_journal_is_an_error(tmp_path: Path) -> None:
    settings = config.load(written(tmp_path, LONE), environ={})
    assert [each.text for each in state.state_findings(settings)] == [
        f"{tmp_path}/state: not there yet; the agent's first start makes it"
    ]
    journal, _ = Journal.open(tmp_path / "state" / "mesh")
    for record in (b"one", b"two" * 100, b"three"):
        journal.append(record)
        journal.sync()
    journal.close()
    (whole,) = state.state_findings(settings)
    assert (whole.severity, ": whole, 3 records, " in whole.text) == (Severity.ok, True)
    content = bytearray((tmp_path / "state" / "mesh").read_bytes())
    content[60] ^= 1
    (tmp_path / "state" / "mesh").write_bytes(content)
    (broken,) = state.state_findings(settings)
    assert (broken.severity, "mesh: damaged at byte" in broken.text) == (Severity.error, True)


# The host and its neighbours.


@pytest.mark.process
def test_a_port_that_something_else_has_is_an_error(tmp_path: Path) -> None:
    keys(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (one,) = found(written(tmp_path, MESH, port=port), "port listen")
        assert one.text.startswith(f"127.0.0.1:{port}: Address already in use; ")
        where = Address(f"127.0.0.1:{port}")
        assert machine.reached("seed", where, "") == ok("seed", f"127.0.0.1:{port}: answers")
    (one,) = found(tmp_path / "elf.toml", "port listen")
    assert one == ok("port listen", f"127.0.0.1:{port}: free")


def test_too_little_room_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)
    full = os.statvfs_result((4096, 4096, 1 << 30, 100, 100, *real[5:]))
    monkeypatch.setattr("os.statvfs", lambda path: full)
    (one,) = found(written(tmp_path, LONE), "disk state_dir")
    assert (one.severity, "400 KiB of " in one.text) == (Severity.error, True)


def test_neighbours_that_do_not_answer_and_clocks_that_are_off_are_named() -> None:
    me = Member("a", "aa", "h:1", "alive")
    well = Member("b", "bb", "h:2", "alive", skew_us=-1_000, round_trip_us=200)
    off = msgspec.structs.replace(well, name="c", id="cc", skew_us=2_500_000)
    gone = Member("d", "dd", "h:4", "dead")
    left = Member("e", "ee", "h:5", "left")
    assert list(neighbours(Status("aa", (me, well, left), ()))) == [
        ok("mesh", "1 of 1 other agents answer"),
        ok("clocks", "b's is 0.001 s off this one, the most of 1"),
    ]
    assert list(neighbours(Status("aa", (me, well, off, gone), ("seed x: no answer yet",)))) == [
        error(
            "mesh", "2 of 3 other agents answer; not: d (dead); check that they run, and the network between"
        ),
        warning("clocks", "c's is 2.500 s off this one, the most of 2; set the clocks (NTP)"),
        warning("problem", "seed x: no answer yet"),
    ]


# The command.


def test_the_exit_code_is_the_worst_severity_and_a_bad_file_is_one_finding(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert [exit_code(each) for each in ([ok("a", "")], [warning("a", ""), ok("b", "")], [error("a", "")])] == [
        0, 1, 2,
    ]  # fmt: skip
    (tmp_path / "elf.toml").write_text("[agnet]\n")
    assert main(["doctor", "-c", str(tmp_path / "elf.toml"), "--output", "json"]) == 2
    (only,) = msgspec.json.decode(capfd.readouterr().out)
    assert (only["check"], only["severity"]) == ("configuration", "error")
    assert "agnet: unknown key; did you mean agent?" in only["text"]


def test_the_findings_as_text() -> None:
    lines = as_text([ok("log", "fine"), error("clock", "off\x1b[2J", ["here", "  ^"])], Style(False))
    assert lines == [
        "ok       log    fine",
        "error    clock  off\\u001b[2J",
        "                here",
        "                  ^",
        "1 error, 0 warnings, 1 of 2 checks good",
    ]
