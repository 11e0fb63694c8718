"""The expressions of the table, by function."""

from __future__ import annotations

from itertools import product

from elf.jobmaster.plan.plan import Expression, Literal
from elf.jobmaster.plan.signatures import UNITS
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
from tests.jobmaster.functions.cases import (
    COLUMN,
    E52,
    EDGES,
    G38,
    INF,
    NAN,
    M,
    call,
    double,
    long,
    number,
    text,
)

C = COLUMN
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "<=>")


def bounded(precision: int, scale: int) -> SqlType:
    """Spark's way with results of more than 38 digits: keep the whole part, and at least 6 decimals."""
    if precision <= 38:
        return decimal(precision, scale)
    return decimal(38, max(38 - (precision - scale), min(scale, 6)))


def result(function: str, one: SqlType, two: SqlType) -> SqlType:
    p1, s1, p2, s2 = one.precision, one.scale, two.precision, two.scale
    scale = max(s1, s2)
    if function in "+-":
        return bounded(max(p1 - s1, p2 - s2) + scale + 1, scale)
    if function == "*":
        return bounded(p1 + p2 + 1, s1 + s2)
    if function == "%":
        return bounded(min(p1 - s1, p2 - s2) + scale, scale)
    scale = max(6, s1 + p2 + 1)
    return bounded(p1 - s1 + s2 + scale, scale)


def arithmetic() -> list[Expression]:
    out: list[Expression] = []
    for function in "+-*":
        out += [call(function, INT, C["i"], C["j"]), call(function, BIGINT, C["a"], C["b"])]
        out += [call(function, DOUBLE, C["x"], C["y"]), call(function, INT, C["i"], number(7))]
        out += [call(function, BIGINT, long(-3), C["a"]), call(function, DOUBLE, C["x"], double(0.1))]
    out += [
        call("%", INT, C["i"], C["j"]),
        call("%", BIGINT, C["a"], C["b"]),
        call("%", DOUBLE, C["x"], C["y"]),
    ]
    out += [
        call("%", BIGINT, C["a"], long(0)),
        call("%", INT, C["i"], number(-3)),
        call("/", DOUBLE, C["x"], C["y"]),
    ]
    out += [call("div", BIGINT, C["a"], C["b"]), call("div", BIGINT, C["a"], long(-7))]
    pairs = [
        ("e", "e2"),
        ("e", "m"),
        ("m", "m2"),
        ("m", "k"),
        ("k", "m"),
        ("g", "e"),
        ("g", "g2"),
        ("k", "g"),
        ("m", "g"),
    ]
    for function, (one, two) in product("+-*/%", pairs):
        out.append(call(function, result(function, C[one].type, C[two].type), C[one], C[two]))
    out += [call("div", BIGINT, C[one], C[two]) for one, two in [("e", "e2"), ("e", "m")]]
    for unscaled in (3, -7, 0, 10**5):
        divisor = Literal(unscaled, decimal(6, 1))
        out += [call("/", result("/", C[name].type, divisor.type), C[name], divisor) for name in ("e", "m")]
    for name in ("i", "a", "x", "e", "m", "k"):
        out += [call("negate", C[name].type, C[name]), call("abs", C[name].type, C[name])]
    return out


def rounding() -> list[Expression]:
    out: list[Expression] = []
    for function in ("floor", "ceil"):
        out.append(call(function, BIGINT, C["x"]))
        for name in ("e", "m", "g"):
            type = C[name].type
            out.append(call(function, decimal(type.precision - type.scale + 1, 0), C[name]))
    for digits in (-20, -3, -1, 0, 1, 2, 5, 20, 400):
        out.append(call("round", DOUBLE, C["x"], number(digits)))
    for digits in (-20, -10, -9, -3, -1, 0, 2):
        out += [call("round", INT, C["i"], number(digits)), call("round", BIGINT, C["a"], number(digits))]
    for name, digits in product(("e", "m", "k", "g"), (-2, -1, 0, 1, 3, 12)):
        p, s = C[name].type.precision, C[name].type.scale
        least = p - s + 1
        if digits < 0:
            type = decimal(min(max(least, -digits + 1), 38), 0)
        else:
            type = decimal(min(least + min(s, digits), 38), min(s, digits))
        out.append(call("round", type, C[name], number(digits)))
    return out


def comparison() -> list[Expression]:
    pairs = [
        ("i", "j"),
        ("a", "b"),
        ("x", "y"),
        ("e", "e2"),
        ("g", "g2"),
        ("p", "q"),
        ("s", "t"),
        ("w", "w2"),
    ]
    out: list[Expression] = [
        call(f, BOOLEAN, C[one], C[two]) for f, (one, two) in product(COMPARISONS, pairs)
    ]
    some = [
        ("i", number(200)), ("a", long(10**18)), ("x", double(NAN)), ("x", double(0.0)), ("x", double(INF)),
        ("e", Literal(1500, E52)), ("g", Literal(10**10, G38)), ("p", Literal(True, BOOLEAN)), ("s", text("abc")),
        ("s", text("é")), ("s", text("")), ("w", Literal(0, TIMESTAMP)), ("s", text(None)), ("i", number(None)),
    ]  # fmt: skip
    out += [call(f, BOOLEAN, C[name], literal) for f, (name, literal) in product(COMPARISONS, some)]
    out += [call(f, BOOLEAN, text("abc"), C["s"]) for f in COMPARISONS]
    return out


def logic() -> list[Expression]:
    p, q, null = C["p"], C["q"], Literal(None, BOOLEAN)
    small = call("<", BOOLEAN, C["i"], number(3))
    out: list[Expression] = []
    for function in ("and", "or"):
        out += [
            call(function, BOOLEAN, p, q),
            call(function, BOOLEAN, p, null),
            call(function, BOOLEAN, p, q, small),
        ]
        out += [call(function, BOOLEAN, null, small), call(function, BOOLEAN, p, Literal(True, BOOLEAN), q)]
    out += [call("not", BOOLEAN, p), call("not", BOOLEAN, small)]
    out += [call("is_null", BOOLEAN, column) for column in C.values()]
    out += [call("not", BOOLEAN, call("is_null", BOOLEAN, C["s"]))]
    out += [
        call("in", BOOLEAN, C["i"], number(200), number(-1)),
        call("in", BOOLEAN, C["i"], number(200), number(None)),
    ]
    out += [
        call("in", BOOLEAN, C["i"], *map(number, range(12))),
        call("in", BOOLEAN, C["a"], C["b"], long(1)),
    ]
    out += [
        call("in", BOOLEAN, C["x"], double(NAN), double(0.0)),
        call("in", BOOLEAN, C["e"], Literal(1500, E52)),
    ]
    out += [
        call("in", BOOLEAN, C["s"], text("abc"), text("é"), text("")),
        call("in", BOOLEAN, C["s"], text("a"), text(None)),
    ]
    out += [call("in", BOOLEAN, C["s"], C["t"], text("a")), call("in", BOOLEAN, C["i"], number(1))]
    return out


def choice() -> list[Expression]:
    p, q = C["p"], C["q"]
    out: list[Expression] = [
        call("case", INT, p, C["i"], C["j"]),
        call("case", INT, p, C["i"], q, C["j"], number(None)),
        call("case", DOUBLE, p, C["x"], q, double(1.5), C["y"]),
        call("case", STRING, p, C["s"], q, text("lit"), C["t"]),
        call("case", STRING, p, text("yes"), text(None)),
        call("case", STRING, p, C["s"], C["s"]),
        call("case", STRING, call("=", BOOLEAN, C["s"], text("a")), text("first"), C["s"]),
        call("case", STRING, call("=", BOOLEAN, C["s"], text("a")), C["t"], text("-")),
        call(
            "case", INT, call("like", BOOLEAN, C["s"], text("%a%")), call("length", INT, C["s"]), number(-1)
        ),
        call("case", G38, p, C["g"], C["g2"]),
        call("case", TIMESTAMP, p, C["w"], Literal(None, TIMESTAMP)),
        call("case", BIGINT, call(">", BOOLEAN, C["a"], long(0)), call("+", BIGINT, C["a"], C["b"]), long(0)),
        call("coalesce", INT, C["i"], C["j"], number(-1)),
        call("coalesce", INT, C["i"], C["j"]),
        call("coalesce", STRING, C["s"], C["t"], text("none")),
        call("coalesce", STRING, C["s"], text("none")),
        call("coalesce", DOUBLE, C["x"], C["y"]),
        call("coalesce", E52, C["e"], Literal(0, E52)),
    ]
    return out


def casts() -> list[Expression]:
    types = [
        BOOLEAN,
        INT,
        BIGINT,
        DOUBLE,
        TIMESTAMP,
        E52,
        M,
        decimal(10, 0),
        decimal(20, 3),
        decimal(38, 18),
        STRING,
    ]
    out: list[Expression] = []
    for name, type in product(("i", "a", "x", "e", "m", "k", "g", "p", "n", "z", "w", "s"), types):
        if (name, type) not in {("z", E52), ("z", M)}:
            out.append(call("cast", type, C[name]))
    out += [
        call("try_cast", type, C[name])
        for name in ("n", "x", "g")
        for type in types
        if type.kind is not Kind.TIMESTAMP or name == "n"
    ]
    out += [call("cast", type, Literal(None, type)) for type in types]
    out += [
        call("cast", STRING, Literal(5, decimal(12, 10))),
        call("cast", STRING, Literal(0, decimal(9, 8))),
    ]
    return out


def strings() -> list[Expression]:
    s, t, i = C["s"], C["t"], C["i"]
    out: list[Expression] = []
    for name in ("lower", "upper", "trim", "ltrim", "rtrim"):
        out.append(call(name, STRING, s))
    for name in ("trim", "ltrim", "rtrim"):
        out += [
            call(name, STRING, s, text("/a ")),
            call(name, STRING, s, text("")),
            call(name, STRING, s, text("é😀")),
        ]
    out += [call("length", INT, s), call("length", INT, call("concat", STRING, s, t))]
    for at in (-100, -3, -1, 0, 1, 2, 100, 2**31 - 1, -(2**31)):
        out.append(call("substring", STRING, s, number(at)))
        out += [call("substring", STRING, s, number(at), number(n)) for n in (-1, 0, 2, 2**31 - 1)]
    out += [call("substring", STRING, s, i, number(2)), call("substring", STRING, s, number(2), i)]
    for delimiter, part in product(("/", "a", "", "..", "b/"), (1, 2, -1, -2, 100, -100)):
        out.append(call("split_part", STRING, s, text(delimiter), number(part)))
    out += [
        call("concat", STRING, s, t),
        call("concat", STRING, s, text(" - "), t),
        call("concat", STRING, s),
    ]
    out += [
        call("concat", STRING, s, call("cast", STRING, i)),
        call("concat", STRING, s, text(None)),
        call("concat", STRING, s, s),
    ]
    out += [call("concat", STRING, text("<"), s, text(">"))]
    for search, replacement in (("a", "b"), ("", "x"), ("/", ""), ("é", "e"), ("aa", "a"), ("X", "\\$")):
        out.append(call("replace", STRING, s, text(search), text(replacement)))
    out.append(call("replace", STRING, s, text("a")))
    patterns = (
        "abc",
        "a%",
        "%a",
        "%a%",
        "%",
        "",
        "_",
        "__",
        "a_b",
        "a\\%b",
        "a\\_b",
        "a\\\\b",
        "%a_c%",
        "a%c",
        "%.%",
        "%\n%",
        "é",
        "日%",
        "_x_",
    )
    out += [call(name, BOOLEAN, s, text(pattern)) for name, pattern in product(("like", "ilike"), patterns)]
    out += [
        call("like", BOOLEAN, s, text("a!%b"), text("!")),
        call("ilike", BOOLEAN, s, text("A!_B"), text("!")),
    ]
    out += [
        call("ilike", BOOLEAN, s, text("ÉX%")),
        call("ilike", BOOLEAN, s, text("İ%")),
        call("like", BOOLEAN, s, text(None)),
    ]
    nested = call("like", BOOLEAN, call("lower", STRING, s), text("/api/%"))
    out += [nested, call("and", BOOLEAN, nested, call(">", BOOLEAN, call("length", INT, s), number(8)))]
    out += [call("=", BOOLEAN, call("upper", STRING, s), call("upper", STRING, t))]
    out += [call("+", INT, call("length", INT, s), i), call("*", INT, call("length", INT, s), number(2**30))]
    return out


def regular() -> list[Expression]:
    s = C["s"]
    patterns = (
        "a", "^a", "a$", "^abc$", "a.b", "(?s)a.b", "(?m)^b", "(?m)a$", "[a-c]+", "[^a]", "\\d+", "\\w+\\s",
        "^/api/(v\\d)", "a|b", "(?i)abc", "x(?i)Y|B", "(?i:A)bc", "\\p{Lu}", "\\p{Alpha}+", "\\P{L}",
        "\\p{Punct}", "a*+b", "(?>a+)b", "\\Qa.b\\E", "\\Q$1", "(?<n>a)\\k<n>", "(.)\\1", "a{2}", "a{2,}",
        "\\.", "^$", "$", "\\z", "\\Z", "\\A/", "\\bb", "[a[bc]]", "\\x61", "\\u00e9", "é", "[é-í]",
        "\\x{1F600}", "^.$", "^..$", "\\h", "\\v", "\\R", "(?=b)b", "(?<=a)b", "(?!a)b", "[]a]", "[a\\]]",
        "\\t", "[\\w/]+", "[^\\w/]", "\\S+", "\\D", "(a)|(b)", "", "[-a]", "[a-]", "\\/", "\\011", "[\\s\\S]",
    )  # fmt: skip
    out: list[Expression] = [call("rlike", BOOLEAN, s, text(pattern)) for pattern in patterns]
    for pattern, group in (
        ("(a)(b)?", 1),
        ("(a)(b)?", 2),
        ("(a)(b)?", 0),
        ("/([^/]+)", 1),
        ("^/api/(v\\d)", 1),
        ("(\\w+)=(\\w+)", 2),
        ("$", 0),
    ):
        out.append(call("regexp_extract", STRING, s, text(pattern), number(group)))
    for pattern, replacement in (
        ("a", "b"), ("(a)(b)?", "<$1$2>"), ("", "-"), ("x*", "-"), ("[0-9]+", "N"), ("(?<n>a)", "${n}${n}"),
        ("a", "\\$1"), ("/", "\\\\"), ("(a)", "$12"), ("$", "!"), ("(?m)$", "!"), ("(?m)^", "!"), ("\\s+", " "),
        ("(a)(b)", "$2$1"), ("$", ""), (".", "."), ("1*?", "<$0>"), ("[.1]??", "!"),
    ):  # fmt: skip
        column = (
            C["n"] if pattern in ("", "x*", "1*?", "[.1]??") else s
        )  # Java's empty matches cut surrogate pairs in two
        out.append(call("regexp_replace", STRING, column, text(pattern), text(replacement)))
    return out


def urls() -> list[Expression]:
    parts = ("HOST", "PATH", "QUERY", "REF", "PROTOCOL", "FILE", "AUTHORITY", "USERINFO")
    out: list[Expression] = [call("parse_url", STRING, C["u"], text(part)) for part in parts]
    out += [call("parse_url", STRING, C["u"], text("QUERY"), text(key)) for key in ("x", "y", "nope")]
    out += [
        call("parse_url", STRING, C["u"], text("PATH"), text("x")),
        call("parse_url", STRING, C["u"], text("host")),
    ]
    return out


def times() -> list[Expression]:
    w = C["w"]
    out: list[Expression] = []
    for unit in (*UNITS, "mon", "x"):
        out.append(call("date_trunc", TIMESTAMP, text(unit), w))
    for name in ("hour", "minute", "second", "dayofweek", "day", "month", "year"):
        out.append(call(name, INT, w))
    out.append(call("unix_timestamp", BIGINT, w))
    return out


def extremes() -> list[Expression]:
    out: list[Expression] = []
    for name in ("least", "greatest"):
        for one, two in (
            ("i", "j"),
            ("a", "b"),
            ("x", "y"),
            ("e", "e2"),
            ("g", "g2"),
            ("p", "q"),
            ("s", "t"),
        ):
            out.append(call(name, C[one].type, C[one], C[two]))
        out += [call(name, TIMESTAMP, C["w"], C["w2"]), call(name, INT, C["i"], C["j"], number(7))]
        out += [call(name, STRING, C["s"], text("abc"), C["t"]), call(name, DOUBLE, C["x"], double(0.0))]
        out += [call(name, STRING, C["s"], text(None)), call(name, INT, number(None), C["i"])]
    x, y = C["x"], C["y"]
    limits = [
        (0.0, 10.0, 5),
        (10.0, 0.0, 5),
        (0.0, 0.0, 5),
        (0.0, NAN, 5),
        (0.0, INF, 3),
        (-5.0, 1e7, 1000),
        (0.0, 1.0, 0),
    ]
    for low, high, count in limits:
        out.append(call("width_bucket", BIGINT, x, double(low), double(high), long(count)))
    out += [
        call("width_bucket", BIGINT, x, y, double(100.0), long(10)),
        call("width_bucket", BIGINT, x, double(-1.0), y, C["a"]),
    ]
    return out


def pieces() -> list[Expression]:
    s, t, n = C["s"], C["t"], C["n"]
    out: list[Expression] = []
    for delimiter, count in product(("/", "a", "", "..", "aa", "b/"), (1, 2, 3, 0, -1, -2, -3, 2**31 - 1)):
        out.append(call("substring_index", STRING, s, text(delimiter), number(count)))
    for pattern in ("/", "a", "", "[ab]", "x*", "(?=b)", "\\.", "^", "$", "[0-9]"):
        column = (
            n if pattern in ("", "x*", "(?=b)", "^", "$") else s
        )  # Java's empty matches cut surrogate pairs in two
        for limit, at in ((-1, 1), (-1, 2), (-1, -1), (-1, -2), (2, 2), (1, 1), (0, 3), (3, 3)):
            out.append(call("split_element", STRING, column, text(pattern), number(limit), number(at)))
    out += [
        call("concat_ws", STRING, text(", "), s, t),
        call("concat_ws", STRING, s, t, text("x"), n),
        call("concat_ws", STRING, text("-")),
        call("concat_ws", STRING, text(None), s),
        call("concat_ws", STRING, text("-"), text(None), s, call("cast", STRING, C["i"])),
    ]
    return out


def hashes() -> list[Expression]:
    s = C["s"]
    out: list[Expression] = [call(name, STRING, s) for name in ("md5", "sha1")]
    out += [call("sha2", STRING, s, number(bits)) for bits in (0, 224, 256, 384, 512)]
    out += [call("crc32", BIGINT, s), call("%", BIGINT, call("crc32", BIGINT, s), long(10))]
    out += [call("url_decode", STRING, column) for column in (C["u"], s, C["n"])]
    for shown in ("a%2Fb+c", "%e9x", "%C3%A9%", "%+f%-0%41", "%F0%9F%98%80", "%E2%82", "100%", "%%41"):
        out.append(call("url_decode", STRING, call("concat", STRING, text(shown), s)))
    return out


ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "+02:00",
    "-1:30",
    "UTC+3",
    "PST",
    "Z",
)


def moments() -> list[Expression]:
    w, w2 = C["w"], C["w2"]
    # Around the changes of clocks: the hours before and after, for each edge.
    autumn = call(
        "timestampadd",
        TIMESTAMP,
        text("MINUTE"),
        call("%", BIGINT, C["a"], long(1000)),
        stamp(1445736600_000000),
    )
    spring = call(
        "timestampadd",
        TIMESTAMP,
        text("MINUTE"),
        call("%", BIGINT, C["a"], long(1000)),
        stamp(1427590800_000000),
    )
    out: list[Expression] = []
    for function, name in product(("from_utc_timestamp", "to_utc_timestamp"), ZONES):
        out.append(call(function, TIMESTAMP, w, text(name)))
    for function, column in product(("from_utc_timestamp", "to_utc_timestamp"), (autumn, spring)):
        out.append(call(function, TIMESTAMP, column, text("Europe/Berlin")))
    for unit in UNITS:
        out += [call("timestampadd", TIMESTAMP, text(unit), long(count), w) for count in (1, -1, 13, 0)]
        out.append(call("timestampadd", TIMESTAMP, text(unit), call("cast", BIGINT, C["s"]), w))
        out.append(call("timestampdiff", BIGINT, text(unit), w, w2))
        out.append(call("timestampdiff", BIGINT, text(unit), w, stamp(1709164800_000000)))
        later = call("timestampadd", TIMESTAMP, text("SECOND"), call("cast", BIGINT, C["i"]), w)
        out.append(call("timestampdiff", BIGINT, text(unit), w, later))
    patterns = (
        "yyyy-MM-dd HH:mm:ss", "yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "", "y yy yyy yyyyy", "M MM MMM MMMM L LL LLL LLLL",
        "d dd D DD DDD",
        "E EE EEE EEEE", "H HH h hh k kk K KK m mm s ss a", "S SS SSS SSSSSS SSSSSSSSS", "Q QQ QQQ", "z zz zzz Z ZZ ZZZ",
        "X XX XXX x xx xxx", "'o''clock' '' h", "dd/MMM/yyyy:HH:mm:ss Z", "é 日, ; <>",
    )  # fmt: skip
    out += [call("date_format", STRING, w, text(pattern)) for pattern in patterns]
    out.append(call("date_format", STRING, call("cast", TIMESTAMP, C["z"]), text("yyyy MM")))
    return out


def stamp(micros: int) -> Literal:
    return Literal(micros, TIMESTAMP)


def expressions() -> list[Expression]:
    parts = [arithmetic, rounding, comparison, logic, choice, casts, strings, regular, urls, times]
    parts += [extremes, pieces, hashes, moments]
    return [expression for part in parts for expression in part()]


assert set(EDGES) == set(C)
