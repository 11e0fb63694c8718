"""Whole processes: `elf grep` beside GNU grep with a regular expression, and awk, on the same log, one core each, alternating.

    python benchmarks/grep.py [--lines 2000000] [--runs 5] [--folder /tmp/elf-bench] [--smoke]

Each prints the same raw lines, in the same order, to a file; the hashes of these files must be equal. elf knows the condition
from an earlier run. GNU grep searches bytes (LC_ALL=C) and knows nothing of fields; awk (mawk, and gawk where it is installed)
splits each line at its spaces.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import measure

QUESTIONS = {
    "server errors": ("status >= 500", r'" 5[0-9][0-9] ([0-9]+|-) "', "$9 >= 500"),
    "pages found": (
        "status = 200 AND path LIKE '/category/%'",
        r'"[A-Z]+ /category/[^ ]* [^" ]*" 200 ([0-9]+|-) "',
        r"$9 == 200 && $7 ~ /^\/category\//",
    ),
}
"""The condition, the regular expression, the program of awk."""


def compare(question: str, file: Path, folder: Path, runs: int) -> bool:
    """Alternate all and print their figures; returns whether all printed the same lines."""
    condition, expression, program = QUESTIONS[question]
    commands = {
        "elf grep": [measure.ELF, "grep", condition, str(file), "--format", "combined"],
        "GNU grep -E": ["grep", "-E", expression, str(file)],
        **{awk: [awk, program, str(file)] for awk in ("mawk", "gawk") if shutil.which(awk)},
    }
    out = {name: folder / f"{name.replace(' ', '-')}.out" for name in commands}
    env = {"LC_ALL": "C", "XDG_CACHE_HOME": str(folder / "cache")}
    contenders = {
        name: partial(measure.run, command, stdout=out[name], env=env) for name, command in commands.items()
    }
    contenders["elf grep"]()  # compiles the condition
    found = measure.alternate(contenders, runs)
    results = {
        name: hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest() for name, path in out.items()
    }
    lines = out["elf grep"].read_bytes().count(b"\n")
    print(f"\n{question}: {condition}; {lines:,} lines of {file.name}")
    for name, result in results.items():
        print(measure.line(name, found[name], f", result {result}"))
    for name in list(commands)[1:]:
        ratio = measure.median(found[name]) / measure.median(found["elf grep"])
        print(f"  {f'speed / that of {name}':46} {ratio:7.2f}")
    is_same = len(set(results.values())) == 1
    print(f"  results {'equal' if is_same else 'DIFFER'}", flush=True)
    return is_same


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("--lines", type=int, default=2_000_000)
    options = parser.parse_args()
    lines, runs = (20_000, 1) if options.smoke else (options.lines, options.runs)
    file = measure.generated(options.folder, lines)
    print(measure.machine())
    with tempfile.TemporaryDirectory(prefix="elf-grep-") as folder:
        same = [compare(question, file, Path(folder), runs) for question in QUESTIONS]
    if not all(same):
        sys.exit("the results differ")


if __name__ == "__main__":
    main()
