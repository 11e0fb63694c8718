"""Compiles calls to programs, once per expression. See `expressions` for how often each program runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from elf.cbt._strings import Strings
from elf.errors import InternalError
from elf.jobmaster.functions import cast, logic, number, text, time
from elf.jobmaster.functions.frame import Build, Compile, Frame, Program, Texts, column, constant, nulls
from elf.jobmaster.functions.table import Counts, Results, distinct
from elf.jobmaster.plan.plan import Call, Column, Expression, Literal
from elf.jobmaster.plan.signatures import SIGNATURES, check_registered
from elf.jobmaster.values._text import decode, intern
from elf.jobmaster.values.sql_types import STRING, Kind
from elf.jobmaster.values.vector import Vector

VECTOR_BUILD: dict[str, Build] = {
    **logic.BUILD,
    **number.BUILD,
    **time.BUILD,
    **cast.BUILD,
}
"""Functions over vectors that are not text, by name."""

check_registered(SIGNATURES, {*VECTOR_BUILD, *text.TEXT, *text.MEASURE}, "jobmaster/functions")

LAZY = frozenset({"and", "or", "<=>", "is_null", "in", "case", "coalesce", "least", "greatest", "concat_ws"})
"""Functions whose result may be other than NULL although an operand is NULL."""
NAMED = frozenset(
    {"date_trunc", *("timestampadd", "timestampdiff", "from_utc_timestamp", "to_utc_timestamp")}
)
"""Functions whose only text is a name, of a unit or a zone, and no operand."""


def columns_of(expression: Expression) -> dict[str, Column]:
    """The columns an expression reads, by name."""
    if isinstance(expression, Column):
        return {expression.name: expression}
    if isinstance(expression, Literal):
        return {}
    return {name: column for part in expression.arguments for name, column in columns_of(part).items()}


def _check_known(call: Call) -> None:
    if call.function not in SIGNATURES:
        raise InternalError(f"plan: no function {call.function!r}; was it compiled by another version?")


def _is_text(expression: Expression) -> bool:
    return expression.type.kind is Kind.STRING


def _reads_text(call: Call) -> bool:
    """Whether an operand is text."""
    return call.function not in NAMED and any(map(_is_text, call.arguments))


def compile_block(expression: Call, results: Results, compile: Compile) -> Program:
    """Compile a call for blocks of rows: the outer form, in which strings are codes. compile: compiles its operands."""
    _check_known(expression)
    columns = columns_of(expression)
    if not columns:
        return _folded(expression, results)
    if _is_strict_null(expression):
        value = nulls(expression.type)
        return lambda frame: value
    if expression.function == "is_null":
        return logic.is_null(expression, compile)
    if len(columns) == 1 and all(map(_is_text, columns.values())):
        return _by_dictionary(expression, next(iter(columns)), results)
    if _is_text(expression) and expression.function in ("case", "coalesce"):
        return _chosen_text(expression, results, compile)
    if _is_text(expression) or _reads_text(expression):
        return _by_combination(expression, results, compile)
    return VECTOR_BUILD[expression.function](expression, compile)


def _is_strict_null(call: Call) -> bool:
    return call.function not in LAZY and any(
        isinstance(part, Literal) and part.value is None for part in call.arguments
    )


def _folded(call: Call, results: Results) -> Program:
    """A call of literals only: evaluated now."""
    frame = Frame({}, 1)
    with np.errstate(all="ignore"):
        if _is_text(call):
            value = constant(STRING, compile_texts(call)(frame)[0])
        else:
            value = compile_inner(call)(frame)
    if frame.lost is not None:
        results.overflows += int(frame.lost.sum())
    return lambda frame: value


def _runner(call: Call, results: Results) -> tuple[Callable[[Frame], Vector], Strings | None]:
    """The inner form of a call: a function from a small frame to a vector of all its rows, and the dictionary of its text
    results."""
    if not _is_text(call):
        inner = compile_inner(call)
        return lambda frame: inner(frame).full(frame.rows), None
    texts, derived = compile_texts(call), results.derive()

    def run(frame: Frame) -> Vector:
        values = texts(frame)
        codes = intern(derived, values)
        return Vector(
            STRING, codes if len(codes) == frame.rows else np.repeat(codes, frame.rows), None, derived
        )

    return run, derived


def _by_dictionary(call: Call, name: str, results: Results) -> Program:
    """Once per distinct value of the string column `name`."""
    run_small, derived = _runner(call, results)

    def run_values(values: Vector) -> tuple[Vector, Counts | None]:
        small = Frame({name: values}, len(values))
        return run_small(small), small.lost

    table, source = results.table(call.type, run_values, derived), column(name)
    return lambda frame: table.take(frame, source(frame))


def _by_combination(call: Call, results: Results, compile: Compile) -> Program:
    """Compute the arguments as vectors, then run the function once per distinct combination of them."""
    names = [f"#{at}" for at in range(len(call.arguments))]
    parts = [
        part if isinstance(part, Literal) else Column(name, part.type)
        for name, part in zip(names, call.arguments, strict=True)
    ]
    programs = {
        name: compile(part)
        for name, part in zip(names, call.arguments, strict=True)
        if not isinstance(part, Literal)
    }
    reduced = Call(call.function, tuple(parts), call.type)
    if len(programs) == 1 and _is_text(parts[int(next(iter(programs))[1:])]):
        ((name, program),) = programs.items()
        by_code = _by_dictionary(reduced, name, results)
        return lambda frame: _with_lost(frame, {name: program(frame)}, by_code)
    run_small, _ = _runner(reduced, results)

    def run(frame: Frame) -> Vector:
        vectors = {name: program(frame) for name, program in programs.items()}
        first, back = distinct(list(vectors.values()))
        small = Frame({name: vector.take(first) for name, vector in vectors.items()}, len(first))
        out = run_small(small)
        if small.lost is not None:
            frame.overflow(small.lost[back])
        return Vector(out.type, out.values[back], None if out.valid is None else out.valid[back], out.strings)

    return run


def _with_lost(frame: Frame, columns: Mapping[str, Vector], program: Program) -> Vector:
    inner = Frame(columns, frame.rows)
    out = program(inner)
    if inner.lost is not None:
        frame.overflow(inner.lost)
    return out


def _chosen_text(call: Call, results: Results, compile: Compile) -> Program:
    """CASE and coalesce with a text result: convert the branches to one dictionary, then choose by code."""
    target = results.derive()
    is_case = call.function == "case"
    parts = [*call.arguments[1:-1:2], call.arguments[-1]] if is_case else list(call.arguments)
    conditions = [compile(part) for part in call.arguments[:-1:2]] if is_case else []
    programs = [_moved(part, target, results, compile) for part in parts]

    def run(frame: Frame) -> Vector:
        if is_case:
            whens, thens = logic.branches(frame, conditions, programs)
        else:
            thens = [program(frame) for program in programs]
            whens = [then.values >= 0 for then in thens[:-1]]
        out = thens[-1].values
        for when, then in zip(reversed(whens), reversed(thens[:-1]), strict=True):
            out = np.where(when, then.values, out)
        return Vector(STRING, out, None, target)

    return run


def _moved(expression: Expression, target: Strings, results: Results, compile: Compile) -> Program:
    """A text expression whose codes are those of the dictionary `target`."""
    if isinstance(expression, Literal):
        value = expression.value if isinstance(expression.value, str) else None
        return lambda frame: Vector(STRING, intern(target, [value]), None, target)
    program = compile(expression)

    def copy(values: Vector) -> tuple[Vector, None]:
        codes = intern(target, decode(values.strings or target, values.values))
        return Vector(STRING, codes, None, target), None

    table = results.table(STRING, copy, target)
    return lambda frame: table.take(frame, program(frame))


# ---- the inner form: text as lists ----------------------------------------------------------------------------------


def compile_inner(expression: Expression) -> Program:
    """Compile an expression that is not text for rows whose strings are decoded."""
    if isinstance(expression, Literal):
        value = constant(expression.type, expression.value)
        return lambda frame: value
    if isinstance(expression, Column):
        return column(expression.name)
    _check_known(expression)
    if _is_strict_null(expression):
        value = nulls(expression.type)
        return lambda frame: value
    if _reads_text(expression):
        build = text.MEASURE[expression.function]
        return build(expression, compile_inner, compile_texts)
    return VECTOR_BUILD[expression.function](expression, compile_inner)


def compile_texts(expression: Expression) -> Texts:
    """Compile a text expression to lists of str."""
    if isinstance(expression, Literal):
        values = [expression.value if isinstance(expression.value, str) else None]
        return lambda frame: values
    if isinstance(expression, Column):
        name = expression.name
        return lambda frame: frame.text(name)
    _check_known(expression)
    if _is_strict_null(expression):
        return lambda frame: [None]
    return text.TEXT[expression.function](expression, compile_inner, compile_texts)
