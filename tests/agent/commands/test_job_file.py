"""Job files: what they say, what is refused and where, and that a written one says the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elf.agent.commands.jobs.folder.files import jobs_of, label_of
from elf.agent.config.job_file import FILE_BYTES_MAX, JobFile, job_text, parse_job_file, read_job_file
from elf.agent.config.limits import limits_text
from elf.errors import QueryError, UsageError
from elf.jobmaster.directory.job_spec import JobSpec, Version
from elf.jobmaster.directory.limits import Limits
from elf.jobmaster.plan.codec import encode
from tests.rigs.mesh_lines import plan_of

SQL = "SELECT window, count(*) AS n FROM access\nGROUP BY window(time, '10 seconds')"
PLAN = encode(plan_of())
SECOND = 1_000_000

TOML = f"""\
# how busy it is
name = "traffic"
lateness = "5s"
sinks = ["lake", "archive"]
sql = '''

{SQL}
'''
"""
HEADED = f"""\
-- How busy it is.
-- +++
-- name = "traffic"
-- lateness = "5s"
--
-- sinks = [
--   "lake", "archive",
-- ]
-- +++

{SQL}
"""


def read(text: str, name: str = "t.toml") -> JobFile:
    return parse_job_file(text, Path(name))


def refusal(text: str, name: str = "t.toml") -> str:
    with pytest.raises(UsageError) as error:
        read(text, name)
    return str(error.value)


def said(file: JobFile) -> tuple[Any, ...]:
    return file.name, file.source, file.lateness_us, file.emit_us, file.keep_us, file.sinks


def test_both_forms_say_the_same() -> None:
    toml, headed = read(TOML), read(HEADED, "t.sql")
    assert said(toml) == said(headed)
    assert said(toml) == ("traffic", None, 5 * SECOND, SECOND // 5, 3600 * SECOND, ("lake", "archive"))
    assert toml.sql == SQL
    assert headed.sql == "-- How busy it is.\n" + "\n" * 9 + SQL


def test_values_of_parameters_are_texts() -> None:
    values = "[params]\nleast = 500\nshare = 0.5\nis_bot = true\npath = '/a'\n"
    headed = "".join(f"-- {line}\n" for line in values.splitlines())
    for file in (read(TOML + values), read(HEADED.replace("-- ]\n", f"-- ]\n{headed}"), "t.sql")):
        assert file.params == {"least": "500", "share": "0.5", "is_bot": "true", "path": "/a"}


def test_sql_alone_is_a_job_file() -> None:
    file = read(f"\n\n{SQL}\n\n", "traffic.sql")
    assert file == JobFile(Path("traffic.sql"), SQL, sql_line=3)
    assert said(file) == (None, None, None, SECOND // 5, 3600 * SECOND, ())


@pytest.mark.parametrize(("text", "name"), [(TOML, "t.toml"), (HEADED, "t.sql")])
def test_windows_line_ends_and_marks_change_nothing(tmp_path: Path, text: str, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert read_job_file(path) == parse_job_file(text, path)


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        (TOML, "t.toml", 8),
        (TOML.replace("'''\n\n", '"""\n').replace("'''", '"""'), "t.toml", 7),
        (HEADED, "t.sql", 12),
        (HEADED.removeprefix("-- How busy it is.\n"), "t.sql", 11),
        (SQL, "t.sql", 2),
    ],
)
def test_an_error_of_the_query_is_placed_in_the_file(text: str, name: str, line: int) -> None:
    file = read(text, name)
    number = file.sql.split("\n").index("GROUP BY window(time, '10 seconds')") + 1
    error = file.refusal(QueryError("it is wrong", line=number, column=3, hint="do this"))
    assert str(error) == f"{name}:{line}: query: it is wrong; do this"


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("", "t.toml", "t.toml: sql: expected the query"),
        ("", "t.sql", "t.sql: expected a query, found an empty file"),
        ("-- +++\n-- keep = '1h'\n-- +++\n", "t.sql", "t.sql: expected a query, found only its head"),
        ("sql = ''", "t.toml", 't.toml:1: sql: expected text, found ""'),
        ("sql = 1", "t.toml", "t.toml:1: sql: expected text, found 1"),
        (SQL, "t.toml", "t.toml:1: not valid TOML: "),
        (f"{TOML}what now", "t.toml", "t.toml:10: not valid TOML"),
        ("x = " + "[" * 5000, "t.toml", "t.toml: not valid TOML"),
        (f"sink = 'lake'\n{TOML}", "t.toml", "t.toml:1: sink: unknown key; did you mean sinks?"),
        (TOML.replace("lateness", "late"), "t.toml", "t.toml:3: late: unknown key; did you mean lateness?"),
        (
            TOML.replace('"5s"', "5"),
            "t.toml",
            't.toml:3: lateness: expected a duration like "60s", "250ms" or "1h", found 5',
        ),
        (TOML.replace('"5s"', "9" * 30), "t.toml", "t.toml:3: lateness: expected a duration"),
        (TOML.replace('"5s"', "true"), "t.toml", "t.toml:3: lateness: expected a duration"),
        (f"emit = '1ms'\n{TOML}", "t.toml", "t.toml:1: emit: expected a duration"),
        (TOML.replace('"lake"', "1"), "t.toml", "t.toml:4: sinks: expected the name of a [[sink]]"),
        (TOML.replace("archive", "lake"), "t.toml", "t.toml:4: sinks: expected each sink once"),
        (TOML.replace('"traffic"', '"../x"'), "t.toml", "t.toml:2: name: expected a name of at most"),
        (f"source = 'a b'\n{TOML}", "t.toml", "t.toml:1: source: expected a name that FROM can hold"),
        (
            f"params = 1\n{TOML}",
            "t.toml",
            "t.toml:1: params: expected a table of one value for each",
        ),
        (f"{TOML}[params]\nstatus = [1]", "t.toml", "t.toml:10: params: expected a table"),
        (
            "[params]\na = 1\nsql = 'SELECT 1'",
            "t.toml",
            "t.toml: sql stands below [params], and so belongs to it; move it above",
        ),
        (f"[[job]]\n{TOML}", "t.toml", "t.toml:1: job: unknown key"),
        (HEADED.replace('"5s"', '"5"'), "t.sql", "t.sql:4: lateness: expected a duration"),
        (
            HEADED.replace("name =", "nam ="),
            "t.sql",
            "t.sql:3: nam: unknown key; did you mean name?",
        ),
        (HEADED.replace("name =", "name "), "t.sql", "t.sql:3: not valid TOML"),
        (HEADED.replace("name =", "sql ="), "t.sql", "t.sql:3: sql: the query stands below the head"),
        (HEADED.replace("--\n", "\n"), "t.sql", "t.sql:2: the head that begins here does not end"),
        ("-- +++\n-- keep = '1h'", "t.sql", "t.sql:1: the head that begins here does not end"),
        (f"{SQL}\n{HEADED}", "t.sql", "t.sql:4: the head (-- +++) must stand above the query"),
        (
            HEADED.replace("-- sinks", "-- [params]\n-- status = 1\n-- sinks"),
            "t.sql",
            "t.sql:6: params: expected a table of one value for each parameter, headed [params], below all other keys",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, name: str, expected: str) -> None:
    assert refusal(text, name).startswith(expected)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    large = tmp_path / "large.sql"
    large.write_bytes(b"x" * (FILE_BYTES_MAX + 1))
    other = tmp_path / "other.sql"
    other.write_bytes(b"SELECT '\xff'")
    for path, expected in (
        (tmp_path / "none.sql", "none.sql: No such file or directory"),
        (tmp_path, ": Is a directory"),
        (large, "expected a job file, found more than 262,144 bytes"),
        (other, "expected UTF-8 text, found other bytes at 8"),
    ):
        with pytest.raises(UsageError) as error:
            read_job_file(path)
        assert str(error.value).endswith(expected)


# Written.

SPANS = st.integers(10_000, 10**15)
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text(st.sampled_from("'\"\\ \n\t\r\x1bx"))


@given(TEXTS.filter(str.strip), SPANS, SPANS, SPANS, st.lists(st.sampled_from("abcd"), unique=True))
def test_a_written_file_says_the_same(
    sql: str, lateness_us: int, emit_us: int, keep_us: int, sinks: list[str]
) -> None:
    spec = JobSpec(
        "traffic",
        1,
        "access",
        (Version("v", PLAN, sql),),
        lateness_us=lateness_us,
        emit_us=emit_us,
        keep_us=keep_us,
        sinks=tuple(sinks),
    )
    text = job_text(spec)
    file = read(text)
    assert said(file) == ("traffic", None, lateness_us, emit_us, keep_us, tuple(sinks))
    assert file.sql.strip() == sql.strip()
    assert all(letter.isprintable() or letter in "\n\t" for letter in text)


def test_a_query_is_written_as_it_is_read() -> None:
    spec = JobSpec("traffic", 1, "access", (Version("v", PLAN, SQL),), emit_us=200_000, sinks=("lake",))
    assert job_text(spec) == (
        'name = "traffic"\nlateness = "1m"\nemit = "200ms"\nkeep = "1h"\nsinks = ["lake"]\n'
        f"sql = '''\n{SQL}\n'''"
    )


# Folders.


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        stem, _, suffix = name.rpartition("_")
        (folder / f"{stem}.{suffix}").write_text(text)
    return folder


def test_a_folders_files_are_its_jobs(tmp_path: Path) -> None:
    write(tmp_path, b_toml=TOML, a_sql=SQL, notes_md="no job")
    (tmp_path / ".hidden.sql").write_text("no job")
    jobs, errors = jobs_of(tmp_path, "web")
    assert errors == []
    assert [(job.name, job.label, job.lateness_us) for job in jobs] == [
        ("a", "web", None),
        ("traffic", "web", 5 * SECOND),
    ]
    assert [job.file and job.file.path.name for job in jobs] == ["a.sql", "b.toml"]


def test_all_errors_of_a_folder_are_found(tmp_path: Path) -> None:
    write(tmp_path, b_toml=TOML, traffic_sql=SQL, c_toml="sql = 1", d_sql=SQL)
    (tmp_path / "x y.sql").write_text(SQL)
    (tmp_path / "folder.sql").mkdir()
    jobs, errors = jobs_of(tmp_path, "web")
    assert [job.name for job in jobs] == ["d", "traffic"]
    assert errors == [
        f"{tmp_path}/c.toml:1: sql: expected text, found 1",
        f"{tmp_path}/folder.sql: expected a job file, found a folder or a device",
        f"{tmp_path}/traffic.sql: job traffic is also in {tmp_path}/b.toml; a job has one file",
        f"{tmp_path}/x y.sql: expected a name of at most 64 letters, digits, _ - and ., beginning with a letter, digit or "
        "_, found 'x y'; rename the file, or give the job a name in it",
    ]


def test_a_folder_without_job_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path, notes_md="no job")
    with pytest.raises(UsageError, match="expected job files"):
        jobs_of(tmp_path, "web")
    with pytest.raises(UsageError, match="No such file or directory"):
        jobs_of(tmp_path / "none", "web")


def test_a_label_is_the_folders_name_unless_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web servers").mkdir()
    monkeypatch.chdir(tmp_path / "web")
    assert label_of(Path("."), None) == label_of(tmp_path / "web", None) == "web"
    assert label_of(tmp_path, "w") == "w"
    for folder, given_label in ((Path("/"), None), (tmp_path / "web servers", None), (tmp_path, "a b")):
        with pytest.raises(UsageError, match="--label: expected a name"):
            label_of(folder, given_label)


LIMITED = f"""\
sql = '''
{SQL}
'''

[limits]
groups = 1000
over = "other"
bytes = "512KiB"
processor = 0.25
"""


def test_limits() -> None:
    file = read(LIMITED)
    assert file.limits == Limits(1000, True, 512 << 10, 250_000)
    spec = JobSpec("traffic", 1, "access", (Version("v", PLAN, SQL),), limits=file.limits)
    assert read(job_text(spec)).limits == file.limits
    assert limits_text(file.limits) == "1,000 groups, the rest as one row, 512 KiB/s sent, 0.25 cores"
    assert limits_text(read(TOML).limits) == "none"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("groups = 1000", "groups = 0", "t.toml:6: limits: expected groups = a whole number above 0, found "),
        ("groups = 1000\n", "", 'limits: expected groups = N beside over = "other", found '),
        ('"other"', '"rest"', 'limits: expected over = "fail" or "other", found '),
        ('"512KiB"', '"lots"', 'limits: expected bytes = bytes a second, like "512KiB", found '),
        ("0.25", "true", "limits: expected processor = a number of cores, at least 0.01, like 0.5, found "),
        ("bytes", "byte", "limits: expected other keys than byte; did you mean bytes?, found "),
        ("[limits]", "[[limits]]", "limits: expected a table [limits] with groups, bytes, processor, over"),
    ],
)
def test_wrong_limits_are_named(before: str, after: str, expected: str) -> None:
    assert expected in refusal(LIMITED.replace(before, after))
