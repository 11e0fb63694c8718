"""Wrapped lines: what is inside gives the same rows as without the envelope, and the envelope's parts are columns."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from elf.agent.formats import formats
from elf.agent.formats.batch import Batch
from elf.agent.formats.envelopes import _unwrap, kinds
from elf.agent.formats.envelopes.wrapped import make_parser
from elf.agent.formats.fields import Format, Reason
from elf.agent.formats.parser import Parser
from elf.agent.formats.presets import PRESETS
from elf.errors import FormatError
from tests.rigs import paths
from tests.rigs.envelopes import COLUMNS, KINDS, MAY_US, docker, wrap

LINE = b'1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a?x=1 HTTP/1.1" 200 5 "-" "say \\"hi\\""'
ERROR = b'2015/05/17 10:05:03 [error] 8#8: *1 open() "/x" failed (2: No such file or directory)'
TIME_US = 1431857103_000_000
PLAIN = [name for name, plan in PRESETS.items() if not (plan.header or plan.comment)]


def golden(name: str) -> list[bytes]:
    """The lines of a format's golden file, rejected ones included."""
    lines = (paths.GOLDEN / "formats" / f"{name}.txt").read_bytes().splitlines()
    return [line for line in lines if line and not line.startswith((b"    ", b"#"))]


def rows(batch: Batch) -> dict[str, list[Any]]:
    return {column: vector.full(batch.rows).to_python() for column, vector in batch.columns.items()}


def parsed(format: Format, lines: list[bytes], *more: str, **options: Any) -> Batch:
    return make_parser(format, (*format.columns(), *more), **options).parse(
        b"".join(line + b"\n" for line in lines)
    )


def one(lines: bytes | list[bytes], spec: str = "auto", **options: Any) -> dict[str, Any]:
    """The columns of the first row, without NULLs."""
    lines = [lines] if isinstance(lines, bytes) else lines
    format = formats.resolve(spec, sample=b"\n".join(lines) + b"\n")
    return {
        column: values[0]
        for column, values in rows(parsed(format, lines, **options)).items()
        if values[0] is not None
    }


def test_the_kernel_knows_the_kinds() -> None:
    assert _unwrap.KINDS == kinds.KINDS == KINDS


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrapped_line_is_the_line_and_the_columns_of_its_envelope(kind: str, name: str) -> None:
    lines = golden(name)
    if kind in ("docker", "json"):
        lines = [line for line in lines if line.isascii()]
    plain = parsed(PRESETS[name], lines, "agent")
    batch = parsed(formats.resolve(f"{kind}+{name}"), [wrap(kind, line) for line in lines], "agent")
    assert (batch.rows, batch.lines, batch.rejects) == (plain.rows, plain.lines, plain.rejects)
    assert batch.reject_rows.tolist() == plain.reject_rows.tolist()
    found, expected = rows(batch), rows(plain)
    assert {column: found[column] for column in expected} == expected
    own = {column: value for column, value in COLUMNS[kind].items() if column not in PRESETS[name].columns()}
    if kind != "syslog":  # its year is that of each line
        assert {column: found[column] for column in own} == {
            column: [value] * plain.rows for column, value in own.items()
        }


@pytest.mark.parametrize(
    "name", ["combined", "nginx_main", "common", "nginx_ingress", "ltsv", "caddy", "alb"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_envelope_and_the_format_inside_are_detected(kind: str, name: str) -> None:
    lines = [line for line in golden(name) if line.isascii()][:1] * 3
    sample = b"".join(wrap(kind, line) + b"\n" for line in lines)
    assert formats.resolve("auto", sample=sample).name == f"{kind}+{name}"
    assert formats.resolve(f"{kind}+auto", sample=sample).name == f"{kind}+{name}"


# Sources: RFC 3164 and 5424; rsyslog's default file format (RSYSLOG_FileFormat); journalctl(1) -o; nginx's syslog: without host.
@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (
            b"May 17 10:05:04 web1 nginx[1]: ",
            {"log_time": MAY_US - 500_000, "log_host": "web1", "program": "nginx"},
        ),
        (
            b"<190>May 17 10:05:04 web1 nginx: ",
            {"log_time": MAY_US - 500_000, "log_host": "web1", "program": "nginx"},
        ),
        (b"May 17 10:05:04 nginx: ", {"log_time": MAY_US - 500_000, "program": "nginx"}),
        (
            b"May 17 10:05:04.500000 web1 nginx[1]: ",
            {"log_time": MAY_US, "log_host": "web1", "program": "nginx"},
        ),
        (
            b"May  7 10:05:04 web1 nginx: ",
            {"log_time": MAY_US - 500_000 - 864_000_000_000, "log_host": "web1", "program": "nginx"},
        ),
        (
            b"2015-05-17T10:05:04.500000+00:00 web1 nginx[1]: ",
            {"log_time": MAY_US, "log_host": "web1", "program": "nginx"},
        ),
        (
            b"2015-05-17T12:05:04+0200 web1 nginx[1]: ",
            {"log_time": MAY_US - 500_000, "log_host": "web1", "program": "nginx"},
        ),
        (b"1431857104.500000 web1 nginx[1]: ", {"log_time": MAY_US, "log_host": "web1", "program": "nginx"}),
        (
            b"<190>1 2015-05-17T10:05:04.5Z web1 nginx 1 - - ",
            {"log_time": MAY_US, "log_host": "web1", "program": "nginx"},
        ),
        (
            b'<34>1 2015-05-17T10:05:04.5Z web1 nginx - ID47 [a@1 b="c\\"] d"][e f="g"] \xef\xbb\xbf',
            {"log_time": MAY_US, "log_host": "web1", "program": "nginx"},
        ),
        (b"<34>1 - - nginx - - - ", {"program": "nginx"}),
    ],
)
def test_the_forms_of_syslog(head: bytes, expected: dict[str, Any]) -> None:
    found = one(head + LINE)
    assert {
        name: found.get(name) for name in ("log_time", "log_host", "program") if name in found
    } == expected
    assert (found["client_ip"], found["time"], found["user_agent"]) == ("1.2.3.4", TIME_US, 'say "hi"')


@pytest.mark.parametrize(
    ("line", "name", "expected"),
    [
        (b"[pod/web-1/nginx] " + LINE, "kubectl+combined", {"log_host": "web-1", "container": "nginx"}),
        (b"2015-05-17T10:05:04.5Z " + LINE, "kubectl+combined", {"log_time": MAY_US}),
        (
            b"nginx-1  | 2015-05-17T10:05:04.500000000Z " + LINE,
            "compose+combined",
            {"log_time": MAY_US, "container": "nginx-1"},
        ),
        (b"\x1b[36mnginx_1  |\x1b[0m " + LINE, "compose+combined", {"container": "nginx_1"}),
        (
            b"2016-10-06T00:17:09.669794202Z stderr F:x " + LINE,
            "cri+combined",
            {"stream": "stderr", "log_time": 1475713029669794},
        ),
        (b'{"log":"' + LINE.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"}', "docker+combined", {}),
        (json.dumps({"msg": LINE.decode(), "ts": 1}).encode(), "json+combined", {}),
    ],
)
def test_the_other_forms(line: bytes, name: str, expected: dict[str, Any]) -> None:
    format = formats.resolve("auto", sample=line + b"\n")
    assert format.name == name
    found = one(line)
    own = ("log_time", "log_host", "container", "stream", "program")
    assert {column: found[column] for column in own if column in found} == expected
    assert (found["client_ip"], found["time"], found["user_agent"]) == ("1.2.3.4", TIME_US, 'say "hi"')


def test_a_syslog_time_has_the_year_that_is_nearest_to_the_line_and_the_sources_zone() -> None:
    line = LINE.replace(b"17/May/2015:10:05:03", b"31/Dec/2015:23:59:59")
    assert one(b"Jan  1 00:00:01 w nginx: " + line)["log_time"] == 1451606401_000_000
    assert (
        one(b"Jan  1 01:00:01 w nginx: " + line, timezone="Europe/Berlin")["log_time"] == 1451606401_000_000
    )
    leap = LINE.replace(b"17/May/2015:10:05:03", b"29/Feb/2016:10:05:03")
    assert one(b"Feb 29 10:05:04 w nginx: " + leap)["log_time"] == 1456740304_000_000
    only = make_parser(formats.resolve("syslog+combined"), ["log_time"]).parse(
        b"May 17 10:05:04 w nginx: " + LINE
    )
    assert rows(only) == {"log_time": [MAY_US - 500_000]}


def test_an_envelope_time_that_is_none_is_null() -> None:
    found = parsed(
        formats.resolve("cri+combined"), [wrap("cri", LINE).replace(b"2015-05-17T10", b"2015-99-17T10")]
    )
    assert (found.rows, rows(found)["log_time"], rows(found)["stream"], rows(found)["path"]) == (
        1,
        [None],
        [None],
        ["/a"],
    )


def test_lines_of_other_programs_do_not_matter_to_detection_and_have_a_reason_of_their_own() -> None:
    mail = b"May 17 10:05:02 web1 postfix/smtpd[99]: connect from unknown[10.0.0.1]"
    broken = wrap("syslog", LINE[:40])
    lines = (
        [mail] * 40
        + [wrap("syslog", LINE)]
        + [mail, broken, b"garbage"]
        + [mail.partition(b"connect")[0] + LINE]
    )
    format = formats.resolve("auto", sample=b"\n".join(lines) + b"\n")
    assert (format.name, format.programs) == ("syslog+combined", ("nginx",))
    batch = parsed(format, lines)
    assert batch.rejects[Reason.PROGRAM] == 41
    assert batch.rejects[Reason.ENVELOPE] == 1
    assert sum(batch.rejects.values()) == 43
    assert batch.rows == 2  # a line that fits counts, whoever wrote it
    named = parsed(formats.resolve("syslog+combined"), lines)
    assert (named.rows, Reason.PROGRAM in named.rejects) == (2, False)


def test_one_web_server_among_many_programs() -> None:
    others = [
        b"May 17 10:05:02 web1 p%d[9]: connect from unknown[10.0.0.1]" % (number % 40)
        for number in range(500)
    ]
    sample = b"\n".join([*others, *[wrap("syslog", LINE)] * 2]) + b"\n"
    assert formats.resolve("auto", sample=sample).name == "syslog+combined"


def test_a_container_that_writes_errors_between_its_requests() -> None:
    lines = [docker(ERROR.decode() + "\n", "stderr")] * 3 + [docker(LINE.decode() + "\n")] * 2
    format = formats.resolve("auto", sample=b"\n".join(lines) + b"\n")
    assert (format.name, format.programs) == ("docker+combined", ("stdout",))
    assert parsed(format, lines).rejects == {Reason.PROGRAM: 3}


def test_samples_show_the_whole_line_and_the_place_of_the_mismatch() -> None:
    def sample(line: bytes, spec: str) -> tuple[Reason, bytes, bytes]:
        batch = parsed(formats.resolve(spec), [line])
        found = batch.samples[0]
        assert (batch.rows, len(batch.samples), batch.rejects) == (0, 1, {found.reason: 1})
        assert found.line == line
        return found.reason, line[: found.offset][-6:], line[found.offset :]

    late = LINE + b" more"
    for kind in ("cri", "syslog", "kubectl", "compose", "stern"):
        assert sample(wrap(kind, late), f"{kind}+combined") == (Reason.TRAILING, b'"hi\\""', b" more")
    assert sample(wrap("json", late), "json+combined")[:2] == (Reason.TRAILING, b'\\\\\\"\\"')
    assert sample(wrap("json", late.replace(b"/a", b"/\xc3\xa9")), "json+common")[2].startswith(b"5 ")
    assert sample(b"garbage", "cri+combined") == (Reason.ENVELOPE, b"", b"garbage")
    assert sample(b"", "cri+combined")[0] is Reason.EMPTY
    assert sample(b'{"log":"a\\nb\\n"}', "docker+combined")[0] is Reason.ENVELOPE
    assert sample(b'{"log":"a\\q"}', "json+combined")[0] is Reason.ENVELOPE
    assert sample(b'{"log":"a"} x', "json+combined")[0] is Reason.ENVELOPE


def test_the_key_that_holds_the_line() -> None:
    text = json.dumps(LINE.decode())
    for head in (
        '"msg":1,"log":',
        '"msg":"x","MESSAGE":',
        '"a":{"log":"x"},"b":[{"log":2}],"message":',
        ' "n" : -1.5e3 , "msg":',
    ):
        assert one(("{" + head + text + "}").encode(), "json+combined")["path"] == "/a"
    assert one(wrap("journald", LINE[:-1] + b'\xff"'))["user_agent"] == 'say "hi"\\xff'
    pair = LINE.replace(b"say", b"\xf0\x9f\x98\x80")
    assert one(json.dumps({"log": pair.decode()}).encode())["user_agent"] == '\U0001f600 "hi"'
    half = json.dumps({"log": LINE.decode()}).replace("say", "\\ud83d").encode()
    assert one(half, "json+combined")["user_agent"] == '\ufffd "hi"'


def test_columns_that_nobody_asks_for_change_nothing() -> None:
    lines = [wrap("cri", LINE), b"garbage", wrap("cri", LINE + b"x")]
    format = formats.resolve("cri+combined")
    whole, none = parsed(format, lines), make_parser(format, ()).parse(b"\n".join(lines))
    assert (none.rows, none.rejects, none.reject_rows.tolist()) == (
        whole.rows,
        whole.rejects,
        whole.reject_rows.tolist(),
    )
    assert none.columns == {}
    assert rows(make_parser(format, ["stream", "path"]).parse(b"\n".join(lines))) == {
        "stream": ["stdout"],
        "path": ["/a"],
    }
    assert type(make_parser(formats.resolve("combined"), ())) is Parser


def test_the_inner_formats_column_keeps_its_name() -> None:
    format = formats.resolve("cri+regex:(?P<time>\\S+) (?P<stream>\\S+)")
    assert list(format.columns()) == ["time", "stream", "log_time"]
    assert rows(parsed(format, [wrap("cri", b"2015-05-17T10:05:03Z mine")]))["stream"] == ["mine"]


def test_any_bytes_are_lines_or_rejects() -> None:
    rng = np.random.default_rng(7)
    seeds = [wrap(kind, LINE) for kind in KINDS] + [
        b'{"log":"',
        b"<1>1 ",
        b"May 17 10:05:00 ",
        b"[pod/",
        b"\x1b[3",
    ]
    for kind in KINDS:
        format = formats.resolve(f"{kind}+combined")
        parser = make_parser(format, tuple(format.columns()))
        for _ in range(150):
            text = bytearray(b"\n".join(seeds[i] for i in rng.integers(0, len(seeds), 6)))
            for at in rng.integers(0, len(text), 12):
                text[at] = rng.integers(0, 256)
            batch = parser.parse(bytes(text[: rng.integers(0, len(text))]))
            assert batch.rows + sum(batch.rejects.values()) == batch.lines
            assert len(batch.reject_rows) == sum(batch.rejects.values())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cri+w3c", "header lines"),
        ("cri+docker+combined", "within an envelope"),
        ("cri", "name the format inside too, as in cri"),
        ("cri+combind", "did you mean combined"),
    ],
)
def test_what_cannot_be_wrapped(spec: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        formats.resolve(spec)


def test_a_certain_envelope_around_nothing_known_says_so() -> None:
    with pytest.raises(FormatError, match="wrapped by cri, and inside: format auto: none of "):
        formats.resolve("auto", sample=wrap("cri", b"hello") + b"\n")
    with pytest.raises(FormatError, match="most of the lines are not wrapped by docker"):
        formats.resolve("docker+auto", sample=LINE + b"\n")


def test_plain_formats_are_what_they_were() -> None:
    for name in PRESETS:
        sample = b"".join(line + b"\n" for line in golden(name))
        if name not in ("w3c", "cloudfront"):
            assert formats.resolve("auto", sample=sample).envelope == ""


def test_a_byte_order_mark_at_the_beginning() -> None:
    assert formats.resolve("auto", sample=b"\xef\xbb\xbf" + LINE).name == "combined"
