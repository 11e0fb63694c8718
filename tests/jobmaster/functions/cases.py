"""The table of scalar expressions: edge values by type, expressions over them, and the SQL text Spark is given for each.

`tests/golden/functions.json` holds Spark's answers (PySpark 4.3, ANSI off, UTC), so the comparison needs no Java; with
Spark at hand `test_functions_spark.py` asks again. Where Spark wraps or clamps and ELF says NULL, the SQL asks Spark for
the checked form (try_add and its like).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from elf.cbt._strings import Strings
from elf.jobmaster.functions.frame import from_list
from elf.jobmaster.plan.plan import Call, Column, Expression, Literal
from elf.jobmaster.values.sql_types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    Kind,
    SqlType,
    decimal,
)
from elf.jobmaster.values.vector import Vector

ROWS = 96
NAN, INF = float("nan"), float("inf")
I_MAX, L_MAX = 2**31 - 1, 2**63 - 1
DAY = 86_400_000_000


def call(function: str, type: SqlType, *arguments: Expression) -> Call:
    return Call(function, arguments, type)


def text(value: str | None) -> Literal:
    return Literal(value, STRING)


def number(value: int | None) -> Literal:
    return Literal(value, INT)


def long(value: int | None) -> Literal:
    return Literal(value, BIGINT)


def double(value: float | None) -> Literal:
    return Literal(value, DOUBLE)


# ---- columns --------------------------------------------------------------------------------------------------------

E52, M, BIG, G38, Z38 = decimal(5, 2), decimal(18, 6), decimal(20, 0), decimal(38, 10), decimal(38, 38)

INTS = [
    0, 1, -1, 2, 3, -3, 5, 15, 25, -25, 200, 404, 12345, 99999, I_MAX, I_MAX - 1, -I_MAX, -I_MAX - 1, None,
]  # fmt: skip
LONGS = [
    0, 1, -1, 2, -2, 7, -7, 10, 1500, -1500, 10**6, I_MAX + 1, 10**12, 3 * 10**9, -3 * 10**9, 10**18, L_MAX,
    L_MAX - 1, -L_MAX, -L_MAX - 1, None,
]  # fmt: skip
DOUBLES = [
    0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -0.5, -2.5, 0.1, 0.15, 1.005, 2.675, 1e-3, 9.99e-4, 1e7, 9999999.0,
    12345.678, 123456789.125, -1e10, 1e15, 1e16, 2.0**53, 1e18, 1e22, 1.5e23, 1e300, -1e300, 5e-324,
    3.141592653589793, 1 / 3, NAN, INF, -INF, None,
]  # fmt: skip
TEXTS = [
    "", " ", "a", "A", "abc", "ABC", "  abc  ", "\tabc\n", "/api/v1/users", "/API/v1", "/index.html",
    "a/b/c/", "/", "ß", "é", "É", "naïve café", "日本語", "😀x😀", "İstanbul", "ΑΣ", "a%b", "a_b", "a\\b",
    "100%", "x" * 50, "aXbXc", "\n", "a\nb", "a\r\n", "a\r\nb", "abc\n", "\u2028", "foo.bar", "1.2.3.4",
    "GET /a?x=1 HTTP/1.1", "$1", "'q'", '"', "aaa", "abab", "mozilla/5.0 (X11; Linux)", "key=value&k2=v2",
    "a.b.c", "..", "null", None,
]  # fmt: skip
NUMBERS = [
    "0", "1", "-1", "+1", " 12 ", "\t12\n", "1.5", "-1.5", "1.", ".5", ".", "-.", "+", "-", "", " ", "abc",
    "12abc", "1e3", "1E-3", "-1e-7", "1.25", "1.35", "-1.25", "2147483647", "2147483648", "-2147483648",
    "-2147483649", "NaN", "nan", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "99999999999999999999", "Infinity", "-inf", "+infinity", "1d", "1.5F", "0x10", "0x1p3", "1e400",
    "1e-400", "1e39", "12345.678", "999.995", "-999.995", "0.005", "1_000", "1,5", "١", "true", "TRUE",
    " t ", "y", "Yes", "no", "N", "f", "FALSE", "00012", "-0", "-0.0", "1e", "e1", None,
    "12345678901234567890.123456789", "1 2", "\x0112\x7f", "--1", "1.2.3", "1e+5", "0e0", "1e99999999999",
]  # fmt: skip
TIMES = [
    "2015", "2015-5", "2015-05", "2015-5-7", "2015-05-17", "2015-05-17 ", " 2015-05-17", "2015-05-17T",
    "2015-05-17 10", "2015-05-17T10:05", "2015-05-17 10:05:03", "2015-05-17T10:05:03.1",
    "2015-05-17 10:05:03.123456789", "2015-02-29", "2016-02-29", "2015-05-17 10:05:03Z",
    "2015-05-17 10:05:03+01:00", "2015-05-17 10:05:03 -0130", "20150517", "1900-02-29",
    "2015-05-17 10:05:03+1", "2015-05-17 10:05:03 UTC", "2015-05-17 10:05:03 Europe/Berlin",
    "2015-05-17 24:00:00", "2015-05-17 10:60:00", "2015-13-01", "2015-00-01", "0001-01-01",
    "9999-12-31 23:59:59.999999", "+12015-01-01", "99", "-0001-01-01", "2015-05-17 10:05:03.",
    "2015-05-17 10:05:03 PST", "2015-05-17 10:05:03 GMT+2", "2015-05-17 10:05:03 x",
    "2015-05-17 10:05:03+18:00", "2015-05-17 10:05:03+18:01", "2015-05-17 10:05:03+01:30:15", "17/May/2015",
    "", "x", None, "2015-10-25 02:30:00 Europe/Berlin", "2015-03-29 02:30:00 Europe/Berlin",
    "2015-05-17 1:2:3", "2015-05-17 10:05 +01:00", "2015-05-17 10:05:03+1:00", "2015-05-17 10:05:03+01:5",
    "2015-05-17 10:05:03EST", "1969-12-31 23:59:59.5",
]  # fmt: skip
URLS = [
    "http://example.com/a/b?x=1&y=2#frag", "https://user:pw@host.org:8080/p;v=1?q#", "/index.html",
    "/a?b=c", "?x=1", "#f", "http://example.com", "http://example.com/", "http://example.com?x=1",
    "ftp://1.2.3.4/file", "http://[::1]:80/x", "", "mailto:a@b.c", "http://", "http:///p", "//host/p",
    "a b", "http://a b/", "http://host/%zz", "http://host/%41?k=%20", "http://under_score.com/",
    "http://host:port/", "http://host:/", "HTTP://HOST/", "http://x/?x=1&xx=2&x=3", "x:y", "http://x/é",
    "http://é.fr/", "http://x/a|b", "http://x/a[1]", "http://x/?a[1]=2", "http://x/#a#b", "http://x/{y}",
    ":", "http://-a.com/", "http://a..b/", "http://1.2.3/", "http://1.2.3.4.5/x", "http://a.b.1/",
    "http://a@b@c/", "-", "*", None, "example.com:443", "http://x\\y", "http://x/?q=^", "data:text/plain,x",
    "/a//b", "//", "http://x?", "http://x#", "http://h/p?x=a=b", "http://h/p?&x", "http://h/p?x",
    "http://h/p?y=1&x=", "1http://x/", "h+t-t.p://x/", "http://x/ ", "http://256.1.1.1/", "http://[1::g]/",
    "http://u@/p", "http://:80/p", "http://h:99999999999/", "/<script>", "/a%", "/%e9",
]  # fmt: skip
STAMPS = [
    0, 1, -1, 1431857103_123456, 1431857103_000000, -1, -500_000, 951782400_000000, 951868799_999999, None,
    1456704000_000000, -62135596800_000000, 253402300799_999999, -2208988800_000000, 1445739000_000000,
    -DAY, 3 * DAY, 1704067199_999999, 1704067200_000000, 1696118400_000000, 32503680000_000000,
    -12219292800_000000,
]  # fmt: skip


def _decimals(type: SqlType) -> list[int | None]:
    most = 10**type.precision - 1
    unit = 10**type.scale
    plain = [
        0,
        1,
        -1,
        5,
        -5,
        15,
        25,
        995,
        12345,
        -12345,
        unit,
        -unit,
        unit // 2,
        3 * unit // 2,
        5 * unit // 2,
        most,
        -most,
    ]
    return [*(value for value in plain if abs(value) <= most), None]


EDGES: dict[str, tuple[SqlType, Sequence[Any]]] = {
    "i": (INT, INTS),
    "j": (INT, INTS),
    "a": (BIGINT, LONGS),
    "b": (BIGINT, LONGS),
    "x": (DOUBLE, DOUBLES),
    "y": (DOUBLE, DOUBLES),
    "e": (E52, _decimals(E52)),
    "e2": (E52, _decimals(E52)),
    "m": (M, _decimals(M)),
    "m2": (M, _decimals(M)),
    "k": (BIG, _decimals(BIG)),
    "g": (G38, _decimals(G38)),
    "g2": (G38, _decimals(G38)),
    "p": (BOOLEAN, [True, False, None]),
    "q": (BOOLEAN, [False, None, True, False]),
    "s": (STRING, TEXTS),
    "t": (STRING, TEXTS),
    "n": (STRING, NUMBERS),
    "z": (STRING, TIMES),
    "u": (STRING, URLS),
    "w": (TIMESTAMP, STAMPS),
    "w2": (TIMESTAMP, STAMPS),
}
COLUMN = {name: Column(name, type) for name, (type, _) in EDGES.items()}


def rows() -> dict[str, list[Any]]:
    """Each column's edge values, repeated in a fixed shuffled order, so that pairs of columns meet widely."""
    out: dict[str, list[Any]] = {}
    for seed, (name, (_, edges)) in enumerate(EDGES.items()):
        assert len(edges) <= ROWS, name
        rng = random.Random(seed)
        values: list[Any] = []
        while len(values) < ROWS:
            values += rng.sample(list(edges), len(edges))
        out[name] = values[:ROWS]
    return out


def vectors(values: dict[str, list[Any]]) -> dict[str, Vector]:
    out: dict[str, Vector] = {}
    for name, (type, _) in EDGES.items():
        if type == STRING:
            strings = Strings()
            out[name] = Vector(STRING, strings.intern_all(values[name]), None, strings)
        else:
            out[name] = from_list(type, values[name])
    return out


# ---- SQL ------------------------------------------------------------------------------------------------------------


def quoted(value: str) -> str:
    escapes = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    out = "".join(escapes.get(character, character) for character in value)
    return "'" + out.replace("${", "$\\{") + "'"  # not a variable for Spark to fill in


def shown(value: Any, type: SqlType) -> str:
    """A literal as Spark SQL."""
    if value is None:
        return f"CAST(NULL AS {type})"
    if type.kind is Kind.STRING:
        return quoted(value)
    if type.kind is Kind.BOOLEAN:
        return "true" if value else "false"
    if type.kind is Kind.TIMESTAMP:
        return f"timestamp_micros({value}L)" if value != -(2**63) else "NULL"
    if type.kind is Kind.DECIMAL:
        sign, digits = "-" if value < 0 else "", str(abs(value)).rjust(type.scale + 1, "0")
        whole, fraction = digits[: len(digits) - type.scale], digits[len(digits) - type.scale :]
        return f"CAST('{sign}{whole}.{fraction}' AS {type})"
    return f"CAST('{value!r}' AS {type})"


CHECKED = {"+": "try_add", "-": "try_subtract", "*": "try_multiply"}
INFIX = frozenset({"+", "-", "*", "/", "%", "div", "=", "<>", "<", "<=", ">", ">=", "<=>", "rlike"})


def sql(expression: Expression) -> str:
    """The expression as text for Spark, asking for NULL where the plain form would wrap or clamp."""
    if isinstance(expression, Column):
        return expression.name
    if isinstance(expression, Literal):
        return shown(expression.value, expression.type)
    function, arguments, type = (
        expression.function,
        [sql(part) for part in expression.arguments],
        expression.type,
    )
    kind = expression.arguments[0].type.kind
    first = arguments[0]
    if function in CHECKED and type.is_integer:
        return f"{CHECKED[function]}({', '.join(arguments)})"
    if function == "div" and kind is Kind.BIGINT:
        wraps = f"{first} = {shown(-(2**63), BIGINT)} AND {arguments[1]} = -1"
        return f"(CASE WHEN {wraps} THEN NULL ELSE {first} div {arguments[1]} END)"
    if function in INFIX:
        return f"({first} {function} {arguments[1]})"
    if function in ("negate", "abs"):
        plain = f"-({first})" if function == "negate" else f"abs({first})"
        least = {Kind.INT: -(2**31), Kind.BIGINT: -(2**63)}.get(kind)
        return (
            plain
            if least is None
            else f"(CASE WHEN {first} = {shown(least, type)} THEN NULL ELSE {plain} END)"
        )
    if function in ("floor", "ceil") and kind is Kind.DOUBLE:
        return f"(CASE WHEN NOT isnan({first}) AND abs({first}) >= 9.2e18D THEN NULL ELSE {function}({first}) END)"
    if function == "round" and type.is_integer:
        return f"try_cast(round(CAST({first} AS DECIMAL(38,0)), {arguments[1]}) AS {type})"
    if function == "cast":
        return _cast(first, kind, type)
    if function == "try_cast":
        return f"try_cast({first} AS {type})"
    forms = {
        **dict.fromkeys(("timestampadd", "timestampdiff"), lambda: _of_unit(function, arguments)),
        "url_decode": lambda: f"try_url_decode({first})",
        "split_element": lambda: f"try_element_at(split({', '.join(arguments[:3])}), {arguments[3]})",
        "width_bucket": lambda: f"width_bucket({', '.join(arguments)})",
        "and": lambda: "(" + " AND ".join(arguments) + ")",
        "or": lambda: "(" + " OR ".join(arguments) + ")",
        "not": lambda: f"(NOT {first})",
        "is_null": lambda: f"({first} IS NULL)",
        "in": lambda: f"({first} IN ({', '.join(arguments[1:])}))",
        "like": lambda: f"({first} LIKE {arguments[1]} ESCAPE {(arguments[2:] or [quoted(chr(92))])[0]})",
        "ilike": lambda: f"({first} ILIKE {arguments[1]} ESCAPE {(arguments[2:] or [quoted(chr(92))])[0]})",
        "case": lambda: _case(arguments),
        "trim": lambda: f"trim(BOTH {arguments[1]} FROM {first})" if arguments[1:] else f"trim({first})",
        "ltrim": lambda: f"trim(LEADING {arguments[1]} FROM {first})" if arguments[1:] else f"ltrim({first})",
        "rtrim": lambda: (
            f"trim(TRAILING {arguments[1]} FROM {first})" if arguments[1:] else f"rtrim({first})"
        ),
    }
    return forms[function]() if function in forms else f"{function}({', '.join(arguments)})"


def _of_unit(function: str, arguments: list[str]) -> str:
    return f"{function}({arguments[0].strip(chr(39))}, {', '.join(arguments[1:])})"


def _cast(first: str, kind: Kind, type: SqlType) -> str:
    if kind in (Kind.STRING, Kind.BOOLEAN) or type.kind in (
        Kind.STRING,
        Kind.BOOLEAN,
        Kind.DOUBLE,
        Kind.DECIMAL,
    ):
        return f"CAST({first} AS {type})"
    if kind is Kind.DOUBLE and type.is_integer:
        return f"(CASE WHEN isnan({first}) THEN 0 ELSE try_cast({first} AS {type}) END)"
    if type.kind is Kind.TIMESTAMP:
        micros = f"try_cast(CAST({first} AS DECIMAL(38,10)) * 1000000BD AS BIGINT)"
        plain = f"(CASE WHEN abs({first}) > 9.2e12D THEN NULL ELSE CAST({first} AS TIMESTAMP) END)"
        return plain if kind is Kind.DOUBLE else f"timestamp_micros({micros})"
    return f"try_cast({first} AS {type})"


def _case(arguments: list[str]) -> str:
    pairs = zip(arguments[:-1:2], arguments[1:-1:2], strict=True)
    return (
        "(CASE "
        + " ".join(f"WHEN {when} THEN {then}" for when, then in pairs)
        + f" ELSE {arguments[-1]} END)"
    )


# ---- values as JSON -------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A value as JSON keeps it exactly: doubles and decimals as text, a decimal without the zeros at its end."""
    from decimal import Decimal

    if isinstance(value, float):
        return repr(value)
    if not isinstance(value, Decimal):
        return value
    shown = format(value, "f")
    shown = shown.rstrip("0").rstrip(".") if "." in shown else shown
    return "0" if shown in ("-0", "") else shown
