"""Runs over wrapped logs, as a user starts them: nothing is silently zero."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elf.agent.commands.parse import read
from elf.agent.formats.fields import Reason
from elf.agent.run.api import run
from tests.rigs.envelopes import KINDS, parts, wrap

ERRORS = "SELECT count(*) AS n, max(bytes) AS most FROM access WHERE status >= 400"


def line(number: int) -> bytes:
    return b'10.0.0.%d - - [17/May/2015:10:05:03 +0000] "GET /%d HTTP/1.1" %d %d "-" "x"' % (
        number,
        number,
        404 if number % 2 else 200,
        number,
    )


@pytest.mark.parametrize("kind", [*KINDS, "spaced"])
def test_errors_are_counted_in_every_envelope(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "access.log"
    if kind == "spaced":
        lines = [
            json.dumps({"log": line(number).decode() + "\n", "stream": "stdout"}).encode()
            for number in range(6)
        ]
    else:
        lines = [wrap(kind, line(number)) for number in range(6)]
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines) + b"\n")
    assert list(run(ERRORS, path).rows()) == [{"n": 3, "most": 5}]


def test_a_syslog_file_of_several_programs(tmp_path: Path) -> None:
    path = tmp_path / "syslog"
    mail = b"May 17 10:05:02 web1 postfix/smtpd[99]: connect from unknown[10.0.0.1]"
    path.write_bytes(b"".join(mail + b"\n" + wrap("syslog", line(number)) + b"\n" for number in range(6)))
    result = run("SELECT log_host, program, count(*) AS n FROM access GROUP BY log_host, program", path)
    assert list(result.rows()) == [{"log_host": "web1", "program": "nginx", "n": 6}]
    assert (result.summary.lines, result.summary.parsed, result.summary.rejects) == (
        12,
        6,
        {Reason.PROGRAM: 6},
    )
    reading = read(str(path), "syslog+auto", 3, "UTC")
    assert (reading.parsed, reading.samples[Reason.PROGRAM][0].line) == (6, mail)
    assert [record[2] for record in reading.records] != []


def test_a_container_whose_log_was_rotated_within_a_line(tmp_path: Path) -> None:
    raw = [one + b"\n" for number in range(6) for one in parts("cri", line(number), [20, 50])]
    (tmp_path / "0.log.20150517-100503").write_bytes(b"".join(raw[:5]))
    (tmp_path / "0.log").write_bytes(b"".join(raw[5:]))
    result = run(ERRORS, [tmp_path / "0.log", tmp_path / "0.log.20150517-100503"])
    assert (list(result.rows()), result.summary.lines) == ([{"n": 3, "most": 5}], 6)
    assert list(
        run("SELECT stream, count(*) AS n FROM access GROUP BY stream", str(tmp_path / "0.log*")).rows()
    ) == [{"stream": "stdout", "n": 6}]
