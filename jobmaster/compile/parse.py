"""From a query's text to sqlglot's tree, with a place for every error.

sqlglot normalises functions and casts while it parses, differently in each version. The tokens are therefore rewritten first: a
call `name(` becomes `$name(`, which sqlglot does not change, a parameter `:name` becomes the call `$:name()`, and the keyword
`window` becomes a plain name. Functions with their own grammar (CAST, TRIM, EXTRACT) are not rewritten. Strings are unescaped
here, by Spark's rules. Works with sqlglot from 27 on, including its compiled build.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn, TypeAlias

from elf.errors import QueryError
from elf.jobmaster.compile.interval import UNITS
from elf.jobmaster.compile.light_sqlglot import spark_dialect
from elf.jobmaster.plan.check import PARAMETER_NAME

Node: TypeAlias = Any
"""A node of sqlglot's tree, whose base class has another name in each version."""
Token: TypeAlias = Any

NESTING_MAX = 50
"""Levels of parentheses and CASE, and prefix operators in a row: sqlglot recurses, about 15 frames for each."""
_PREFIXES = frozenset(("NOT", "!", "-", "+", "~"))
_BEGINNINGS = frozenset(("SELECT", "FROM", "("))
CALL_MARK = "$"
PARAMETER_MARK = ":"
INTERVAL = "interval literal"
"""The calls that sqlglot sees: `$name(…)` for functions, `$:name()` for parameters, `$interval literal('…')` for intervals."""

# Words before a parenthesis that are not function names.
_GRAMMAR = frozenset(
    (
        "in",
        "and",
        "or",
        "not",
        "where",
        "having",
        "by",
        "select",
        "from",
        "on",
        "filter",
        "over",
        "exists",
        "values",
        "when",
        "then",
        "else",
        "between",
        "like",
        "ilike",
        "rlike",
        "regexp",
        "as",
        "any",
        "some",
        "all",
        "distinct",
        "union",
        "except",
        "intersect",
        "minus",
        "limit",
        "offset",
        "case",
        "end",
        "using",
        "cast",
        "try_cast",
        "trim",
        "extract",
        "join",
        "table",
        "lateral",
        "escape",
        "is",
        "with",
        "order",
        "group",
        "partition",
        "rollup",
        "cube",
        "sets",
        "interval",
        "div",
        "pivot",
        "unpivot",
        "tablesample",
        "qualify",
        "within",
        "asc",
        "desc",
        "nulls",
        "position",
        "overlay",
        "insert",
        "into",
    )
)
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_CLOSED = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`|--[^\n]*|/\*.*?\*/|(?!/\*)[^'"`]""", re.DOTALL
)
"""One piece of SQL: a text, a quoted name, a comment or a character outside of them."""
_SIMPLE_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|([%_])|(.))|\\\Z", re.DOTALL)


def called(node: Node) -> str:
    """The name of the function that `node` calls, as written, "" where it is no call. A parameter is a call of `:name`."""
    if type(node).__name__ != "Anonymous":
        return ""
    return str(getattr(node.this, "name", node.this)).removeprefix(CALL_MARK)


def parameter_name(node: Node) -> str:
    """The name of the parameter that `node` is, "" where it is none."""
    name = called(node)
    return name[1:] if name.startswith(PARAMETER_MARK) else ""


def position(sql: str, offset: int) -> tuple[int, int]:
    """The 1-based (line, column) of a character offset."""
    return sql.count("\n", 0, offset) + 1, offset - sql.rfind("\n", 0, offset)


def place_of(node: Node) -> int:
    """The offset of the first character of `node` that sqlglot recorded, else of its parent; -1 for none."""
    while node is not None:
        starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
        if starts:
            return int(min(starts))
        node = node.parent
    return -1


def fail(sql: str, node: Node | None, reason: str, hint: str = "") -> NoReturn:
    """Raises QueryError that points at the node's place in the text."""
    line, column = position(sql, max(0, place_of(node)))
    raise QueryError(reason, line=line, column=column, hint=hint)


def source_of(sql: str, node: Node) -> str:
    """The text of `node`, as far as sqlglot recorded it, on one line of at most 60 characters."""
    ends = [part.meta["end"] for part in node.walk() if "end" in part.meta]
    start = max(0, place_of(node))
    text = sql[start : max(ends) + 1] if ends else " ".join(sql[start : start + 60].split()[:1])
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:59] + "…"


def parse(sql: str) -> Node:
    """The one statement in `sql`. Raises QueryError: empty, too deep, not SQL, or several statements."""
    dialect = spark_dialect()
    from sqlglot.errors import ParseError, TokenError

    try:
        tokens = dialect.tokenize(sql)
        _check_statement(sql, tokens)
        _check_nesting(sql, tokens)
        parsed = dialect.parser().parse(_rewritten(sql, tokens), sql)
    except TokenError:
        raise _unreadable(sql) from None
    except ParseError as error:
        raise _syntax(sql, error) from None
    except (TypeError, ValueError, AttributeError, LookupError) as error:  # sqlglot's own, on odd texts
        hint = "one SELECT … FROM … GROUP BY … is expected"
        raise QueryError("the text cannot be read as SQL", line=1, column=1, hint=hint) from error
    except RecursionError:
        raise QueryError("the query is nested too deeply", hint="split the expression up") from None
    statement: Node = parsed[0]
    if type(statement).__name__ == "Select" and not statement.expressions:
        fail(sql, statement, "SELECT names nothing", "try SELECT count(*) FROM access")
    return statement


def _is_string(token: Token) -> bool:
    return getattr(token.token_type, "name", "") in ("STRING", "RAW_STRING")


def _check_statement(sql: str, tokens: list[Token]) -> None:
    """Check that there is one statement, a query: sqlglot would write to stderr about others."""
    texts = ["" if _is_string(token) else token.text for token in tokens]
    while texts and texts[-1] == ";":
        texts.pop()
    if not texts:
        raise QueryError("the query is empty", hint="try SELECT count(*) FROM access")
    if texts[0].upper() not in _BEGINNINGS:
        line, column = position(sql, tokens[0].start)
        first = texts[0][:40].upper()
        reason = "WITH is not supported" if first == "WITH" else f"{first} is not a query"
        raise QueryError(reason, line=line, column=column, hint="only SELECT … FROM source … GROUP BY … runs")
    if ";" in texts:
        line, column = position(sql, tokens[texts.index(";") + 1].start)
        raise QueryError("there are several statements", line=line, column=column, hint="send one SELECT")


def _rewritten(sql: str, tokens: list[Token]) -> list[Token]:
    from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]

    def remade(token: Token, type: TokenType, text: str, end: int) -> Token:
        return Token(type, text, token.line, token.col, token.start, end, token.comments)

    out: list[Token] = []
    skip = 0
    for at, token in enumerate(tokens):
        if at < skip:
            continue
        called = at + 1 < len(tokens) and tokens[at + 1].token_type == TokenType.L_PAREN
        before = tokens[at - 1].token_type if at else None
        name = _NAME.match(token.text) and token.token_type != TokenType.STRING
        if token.token_type in (TokenType.STRING, TokenType.RAW_STRING):
            text, end = _text_of(sql, token), token.end
            if out and before == out[-1].token_type == TokenType.STRING:
                # 'it''s' contains a quote; 'a' 'b' is one string.
                first = out.pop()
                same = first.end + 1 == token.start and sql[first.end] == sql[token.start]
                text, token = first.text + (sql[token.start] if same else "") + text, first
            out.append(remade(token, TokenType.STRING, text, end))
        elif token.token_type == TokenType.COLON and (after := _parameter_after(sql, tokens, at)):
            name_text = CALL_MARK + PARAMETER_MARK + sql[after.start : after.end + 1]
            out.append(remade(token, TokenType.VAR, name_text, after.end))
            out.append(remade(after, TokenType.L_PAREN, "(", after.end))
            out.append(remade(after, TokenType.R_PAREN, ")", after.end))
            skip = at + 2
        elif token.token_type == TokenType.INTERVAL and (length := _interval_after(sql, tokens, at)):
            text, skip = length
            last = tokens[skip - 1]
            out.append(remade(token, TokenType.VAR, CALL_MARK + INTERVAL, token.end))
            out.append(remade(last, TokenType.L_PAREN, "(", last.end))
            out.append(remade(last, TokenType.STRING, text, last.end))
            out.append(remade(last, TokenType.R_PAREN, ")", last.end))
        elif (
            token.token_type == TokenType.NUMBER
            and tokens[at + 1 : at + 2]
            and tokens[at + 1].start == token.start
        ):
            # sqlglot reads 10L as 10 :: BIGINT, three tokens in one place.
            out.append(remade(token, TokenType.NUMBER, sql[token.start : token.end + 1], token.end))
            skip = at + 3
        elif (
            called
            and name
            and (token.text.lower() not in _GRAMMAR or _is_plain_trim(tokens, at) or _is_match(tokens, at))
            and before not in (TokenType.ALIAS, TokenType.DCOLON)
        ):
            out.append(remade(token, TokenType.VAR, CALL_MARK + token.text, token.end))
        elif token.token_type == TokenType.WINDOW:
            out.append(remade(token, TokenType.VAR, token.text, token.end))
        else:
            out.append(token)
    return out


def _parameter_after(sql: str, tokens: list[Token], at: int) -> Token | None:
    """The name directly after the colon `tokens[at]`, which makes a parameter."""
    after = tokens[at + 1] if at + 1 < len(tokens) else None
    if after is None or after.start != tokens[at].end + 1:
        return None
    return after if re.fullmatch(PARAMETER_NAME, sql[after.start : after.end + 1]) else None


def _interval_after(sql: str, tokens: list[Token], at: int) -> tuple[str, int] | None:
    """The text of `INTERVAL '5 minutes'`, `INTERVAL 5 MINUTES` or `INTERVAL '5' MINUTE`, and the index of the token after it."""
    after = at + 1
    sign = "-" if tokens[after : after + 1] and tokens[after].text == "-" else ""
    after += len(sign)
    if after >= len(tokens) or tokens[after].token_type.name not in ("STRING", "NUMBER"):
        return None
    is_text = _is_string(tokens[after])
    text = sign + (_text_of(sql, tokens[after]) if is_text else tokens[after].text)
    unit = tokens[after + 1].text.lower() if after + 1 < len(tokens) else ""
    if unit in UNITS and not (tokens[after + 2 : after + 3] and tokens[after + 2].text.upper() == "TO"):
        return f"{text} {unit}", after + 2
    return (text, after + 1) if is_text and not sign and unit not in UNITS else None


def _is_match(tokens: list[Token], at: int) -> bool:
    """Whether `tokens[at]` is the function in `rlike(path, 'x')`, rather than the operator in `path RLIKE ('x')`."""
    if tokens[at].text.lower() not in ("like", "ilike", "rlike", "regexp"):
        return False
    before = at - 1
    while before >= 0 and tokens[before].text.upper() in ("NOT", "!"):
        before -= 1
    return before < 0 or (not _is_string(tokens[before]) and tokens[before].text.upper() in _BEFORE_OPERAND)


_BEFORE_OPERAND = frozenset(
    [
        "(",
        ",",
        "=",
        "==",
        "<>",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "<=>",
        "+",
        "-",
        "*",
        "/",
        "%",
        "||",
        "AND",
        "OR",
        "WHERE",
        "SELECT",
        "HAVING",
        "BY",
        "WHEN",
        "THEN",
        "ELSE",
        "CASE",
        "DISTINCT",
    ]
)


def _is_plain_trim(tokens: list[Token], at: int) -> bool:
    """Whether `tokens[at]` begins trim(…) with commas, rather than TRIM(BOTH … FROM …)."""
    depth = 0
    if tokens[at].text.lower() != "trim":
        return False
    for token in tokens[at + 1 :]:
        text = "" if _is_string(token) else token.text.upper()
        depth += (text == "(") - (text == ")")
        if depth == 1 and text == "FROM":
            return False
        if depth == 0:
            break
    return True


def _text_of(sql: str, token: Token) -> str:
    """The value of a string token, from its source: sqlglot's own unescaping is not Spark's."""
    source = sql[token.start : token.end + 1]
    if source[0] in "rR":
        return source[2:-1]
    return _ESCAPE.sub(_unescaped, source[1:-1])


def _unescaped(match: re.Match[str]) -> str:
    short, long, octal, pattern, other = match.groups()
    if short or long:
        point = int(short or long, 16)
        return chr(point) if point < 0x110000 and not 0xD800 <= point < 0xE000 else "�"
    if octal:
        return chr(int(octal, 8))
    if pattern:
        return "\\" + pattern  # an escape of LIKE: keep it
    return _SIMPLE_ESCAPES.get(other, other) if other else "\\"


def _check_nesting(sql: str, tokens: list[Token]) -> None:
    from sqlglot.tokens import TokenType  # type: ignore[attr-defined]

    depth = run = 0
    for token in tokens:
        if token.token_type in (TokenType.L_PAREN, TokenType.CASE, TokenType.L_BRACKET):
            depth += 1
        elif token.token_type in (TokenType.R_PAREN, TokenType.END, TokenType.R_BRACKET):
            depth -= 1
        run = run + 1 if token.text.upper() in _PREFIXES and not _is_string(token) else 0
        if max(depth, run) > NESTING_MAX:
            line, column = position(sql, token.start)
            reason = f"the query is nested more than {NESTING_MAX} levels deep"
            raise QueryError(reason, line=line, column=column, hint="split the expression up")


def _unreadable(sql: str) -> QueryError:
    offset, end = 0, len(sql)
    while offset < end:
        whole = _CLOSED.match(sql, offset)
        if whole is None:
            line, column = position(sql, offset)
            reason = f"the text or comment that starts here with {sql[offset]} has no end"
            return QueryError(reason, line=line, column=column, hint="close it")
        offset = whole.end()
    return QueryError("the text cannot be read as SQL", line=1, column=1, hint="check quotes and comments")


_SYNTAX = (
    ("Expecting )", "a closing parenthesis is missing"),
    ("Expecting (", "an opening parenthesis is missing"),
    ("Expected table name", "the name of a source is missing"),
    ("Required keyword", "an expression is missing after it"),
    ("Expected END after CASE", "CASE has no END"),
    ("after CAST", "CAST takes a value and a type: CAST(x AS INT)"),
)
"""How sqlglot's descriptions begin or end, and what the user reads instead."""


def _syntax(sql: str, error: Any) -> QueryError:
    """The place of sqlglot's first error, in words of our own."""
    first = error.errors[0] if error.errors else {}
    said = str(first.get("description") or error)
    reason = next((ours for theirs, ours in _SYNTAX if theirs in said), "this cannot stand here")
    found = " ".join(str(first.get("highlight") or "").replace(CALL_MARK, "").split())[:60]
    line = int(first.get("line") or 0)
    column = max(1, int(first.get("col") or 0) - len(str(first.get("highlight") or "")) + 1) if line else 0
    reason = f"syntax error{f' at {found!r}' if found else ''}: {reason}"
    return QueryError(reason, line=line, column=column, hint="one SELECT … FROM … GROUP BY … is expected")
