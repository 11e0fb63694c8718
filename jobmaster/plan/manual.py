"""What each function does, in a line, with an example: `elf functions` and the tables of docs/query.md show it.

Tests compare it with `signatures.SQL_FUNCTIONS` and the aggregates: every name is in it, every example compiles, with that type.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Entry(NamedTuple):
    """Functions that do the same. calls: how each is called; type: of the result, in words where it depends on the arguments."""

    calls: tuple[str, ...]
    type: str
    meaning: str
    example: str

    def example_of(self, name: str) -> str:
        """The example with another of the names."""
        return re.sub(rf"\b({'|'.join(self.names)})\(", f"{name}(", self.example, count=1)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(match[1] for call in self.calls if (match := re.match(r"(\w+)\(", call))))


def _entry(calls: str, type: str, meaning: str, example: str) -> Entry:
    return Entry(tuple(re.findall(r"\w+\([^()]*(?:\([^()]*\)[^()]*)*\)", calls)), type, meaning, example)


FUNCTIONS = (
    _entry("if(c, x, y)", "of x and y", "x where c is true, else y", "if(status >= 500, 'bad', 'good')"),
    _entry(
        "coalesce(x, …), nvl(x, y), ifnull(x, y)", "of x", "the first that is not NULL", "coalesce(user, '-')"
    ),
    _entry("nullif(x, y)", "of x", "NULL where they are equal, else x", "nullif(referer, '')"),
    _entry("isnull(x), isnotnull(x)", "boolean", "whether x is (not) NULL", "isnull(user)"),
    _entry(
        "least(x, y, …), greatest(x, y, …)",
        "of x and y",
        "the least or greatest that is not NULL; NaN is the greatest number",
        "least(bytes, 1000000)",
    ),
    _entry("lower(s), lcase(s), upper(s), ucase(s)", "string", "in lower or upper case", "lower(path)"),
    _entry(
        "trim(s), ltrim(s), rtrim(s)",
        "string",
        "without spaces at the ends; `trim('/', s)` and `TRIM(BOTH '/' FROM s)` without those characters",
        "trim('/', path)",
    ),
    _entry(
        "length(s), len(s), char_length(s), character_length(s)", "int", "characters", "length(user_agent)"
    ),
    _entry(
        "substring(s, from[, n]), substr(s, from[, n])",
        "string",
        "from counts from 1, negative from the end",
        "substring(path, 2, 3)",
    ),
    _entry("left(s, n), right(s, n)", "string", "the first or last n characters", "left(path, 4)"),
    _entry(
        "contains(s, 'a'), startswith(s, 'a'), endswith(s, 'a')",
        "boolean",
        "whether s has that text, at its beginning, at its end",
        "contains(user_agent, 'bot')",
    ),
    _entry(
        "split_part(s, '/', n)",
        "string",
        "the nth part, negative from the end, `''` where there is none",
        "split_part(path, '/', 2)",
    ),
    _entry(
        "split(s, 'pattern'[, limit])",
        "parts",
        "the texts between the matches; only to take one: `split(s, '/')[0]`",
        "split(path, '/')[1]",
    ),
    _entry(
        "element_at(split(s, '/'), n), try_element_at(split(s, '/'), n)",
        "string",
        "the nth part from 1, negative from the end, NULL where there is none",
        "element_at(split(path, '/'), -1)",
    ),
    _entry("get(split(s, '/'), n)", "string", "as `split(s, '/')[n]`", "get(split(path, '[/.]'), 1)"),
    _entry(
        "substring_index(s, '/', n)",
        "string",
        "before the nth `/`; after it, counted from the end, for a negative n",
        "substring_index(client_ip, '.', 2)",
    ),
    _entry("concat(s, …)", "string", "joined; NULL if any is NULL", "concat(method, ' ', path)"),
    _entry(
        "concat_ws('-', s, …)",
        "string",
        "joined with that between; NULLs left out",
        "concat_ws(' ', method, path)",
    ),
    _entry(
        "replace(s, 'old'[, 'new'])",
        "string",
        "every occurrence replaced, or removed",
        "replace(path, '/', '.')",
    ),
    _entry(
        "regexp_extract(s, 'pattern'[, group])",
        "string",
        "the group (1 by default) of the first match, `''` for none",
        "regexp_extract(path, '^/([^/]+)')",
    ),
    _entry(
        "regexp_replace(s, 'pattern', 'new')",
        "string",
        "every match replaced; `$1` is a group",
        "regexp_replace(path, '[0-9]+', 'N')",
    ),
    _entry(
        "regexp_like(s, 'pattern'), rlike(s, 'pattern'), regexp(s, 'pattern')",
        "boolean",
        "as RLIKE",
        "rlike(path, '^/api/v[0-9]')",
    ),
    _entry(
        "like(s, 'a%'[, 'escape']), ilike(s, 'a%'[, 'escape'])",
        "boolean",
        "as LIKE and ILIKE",
        "ilike(path, '/API/%')",
    ),
    _entry(
        "parse_url(s, 'HOST'[, 'key'])",
        "string",
        "HOST, PATH, QUERY, REF, PROTOCOL, FILE, AUTHORITY, USERINFO; a key with QUERY",
        "parse_url(referer, 'HOST')",
    ),
    _entry(
        "url_decode(s), try_url_decode(s)",
        "string",
        "`%2F` as `/`, `+` as a space; NULL where a % has no two digits after it",
        "url_decode(query)",
    ),
    _entry("md5(s), sha(s), sha1(s)", "string", "the hash of its UTF-8, in hexadecimal", "md5(client_ip)"),
    _entry("sha2(s, bits)", "string", "likewise, of 224, 256, 384 or 512 bits", "sha2(client_ip, 256)"),
    _entry("crc32(s)", "bigint", "the checksum of its UTF-8", "crc32(client_ip) % 16"),
    _entry(
        "abs(x), floor(x), ceil(x), ceiling(x)",
        "of x",
        "without its sign; rounded down; rounded up",
        "floor(request_time)",
    ),
    _entry("round(x[, digits])", "of x", "half up", "round(request_time, 1)"),
    _entry("mod(x, y)", "of x and y", "as `%`", "mod(status, 100)"),
    _entry(
        "width_bucket(x, low, high, n)",
        "bigint",
        "which of n equal ranges from low to high x is in: 1 to n, 0 below, n + 1 above",
        "width_bucket(request_time, 0, 1, 10)",
    ),
    _entry(
        "date_trunc('HOUR', t)",
        "timestamp",
        "YEAR, QUARTER, MONTH, WEEK, DAY, HOUR, MINUTE, SECOND, MILLISECOND, MICROSECOND",
        "date_trunc('HOUR', time)",
    ),
    _entry(
        "year(t), month(t), day(t), dayofmonth(t), hour(t), minute(t), second(t)",
        "int",
        "in UTC",
        "hour(time)",
    ),
    _entry("dayofweek(t)", "int", "1 is Sunday", "dayofweek(time)"),
    _entry("to_date(t)", "timestamp", "the midnight (UTC) that began its day", "to_date(time)"),
    _entry(
        "to_timestamp(s)", "timestamp", "as `CAST(s AS TIMESTAMP)`", "to_timestamp('2024-05-17 10:05:03')"
    ),
    _entry(
        "date_format(t, 'pattern')",
        "string",
        "its letters: y M L d D E Q a H h K k m s S z Z X x; texts in single quotes",
        "date_format(time, 'EEE HH:mm')",
    ),
    _entry(
        "from_unixtime(seconds[, 'pattern'])",
        "string",
        "likewise, of seconds since 1970; as `2024-05-17 10:05:03` by default",
        "from_unixtime(unix_timestamp(time))",
    ),
    _entry("unix_timestamp(t)", "bigint", "whole seconds since 1970", "unix_timestamp(time)"),
    _entry(
        "from_utc_timestamp(t, 'zone'), to_utc_timestamp(t, 'zone')",
        "timestamp",
        "what the clocks of a zone show at t, and back",
        "hour(from_utc_timestamp(time, 'Europe/Berlin'))",
    ),
    _entry(
        "timestampadd(MINUTE, n, t), dateadd(MINUTE, n, t)",
        "timestamp",
        "n units later; the units of date_trunc",
        "timestampadd(MINUTE, 5, time)",
    ),
    _entry(
        "timestampdiff(MINUTE, t, u), datediff(DAY, t, u)",
        "bigint",
        "whole units from t to u",
        "timestampdiff(HOUR, TIMESTAMP '2024-05-17', time)",
    ),
    _entry(
        "datediff(u, t)",
        "int",
        "days from the day of t to that of u",
        "datediff(time, TIMESTAMP '2024-05-17')",
    ),
)

AGGREGATES = (
    _entry(
        "count(*), count(x), count(x, y)", "bigint", "lines; lines in which no argument is NULL", "count(*)"
    ),
    _entry(
        "count_if(condition)", "bigint", "lines for which the condition is true", "count_if(status >= 500)"
    ),
    _entry(
        "count(DISTINCT x), count(DISTINCT x, y)",
        "bigint",
        "different values (combinations), exact",
        "count(DISTINCT client_ip)",
    ),
    _entry(
        "approx_count_distinct(x)",
        "bigint",
        "different values, by HyperLogLog with 4096 registers: standard error 1.6 %",
        "approx_count_distinct(client_ip)",
    ),
    _entry(
        "approx_set(x)",
        "bigint",
        "different values, by a theta sketch of 4096 hashes: exact up to 4,096, else standard error 1.6 %; sets in a lake can be "
        "compared (`elf report LAKE returning`), at up to 32 KB a group",
        "approx_set(client_ip)",
    ),
    _entry(
        "sum(x), avg(x), mean(x)",
        "of x, wider",
        "exact for integers and decimals; over doubles the exact sum, rounded once",
        "sum(bytes)",
    ),
    _entry("min(x), max(x)", "of x", "of numbers, timestamps, booleans and strings", "max(request_time)"),
    _entry(
        "min_by(x, y), max_by(x, y)",
        "of x",
        "x of the line with the least or greatest y, which is no string; of several lines the smallest x",
        "max_by(path, request_time)",
    ),
    _entry(
        "first(x), first_value(x), any_value(x), last(x), last_value(x)",
        "of x",
        "x of the earliest or latest line by `time`; of several lines the smallest x; `first(x, true)` skips NULLs",
        "first(path)",
    ),
    _entry(
        "mode(x)",
        "of x",
        "the most frequent value, of several the smallest; counts each different value",
        "mode(status)",
    ),
    _entry(
        "var_pop(x), var_samp(x), variance(x)",
        "double",
        "from exact sums; `variance` is `var_samp`",
        "variance(bytes)",
    ),
    _entry(
        "stddev_pop(x), stddev_samp(x), stddev(x), std(x)",
        "double",
        "likewise; `stddev` and `std` are `stddev_samp`",
        "stddev(request_time)",
    ),
    _entry(
        "approx_percentile(x, 0.99), percentile_approx(x, 0.99)",
        "of x",
        "within 1 % of the exact value at that rank; with `array(0.5, 0.99)` an array",
        "approx_percentile(request_time, 0.99)",
    ),
)
