"""`elf --version`: the version and the facts of its build."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import elf


def facts() -> str:
    """Version, then the facts of the build, one per line."""
    built = built_facts()
    lines = [f"elf {elf.__version__}"]
    lines.append(f"python: {platform.python_version()} ({sys.executable})")
    lines.append(f"platform: {platform.machine()} {platform.system()} {platform.release()}")
    lines += [f"{name}: {value}" for name, value in built.items()]
    return "\n".join(lines)


def built_facts() -> dict[str, str]:
    """The facts that setup.py wrote beside the package when the wheel was built; in a source tree only its folder."""
    path = Path(elf.__file__).parent / "build_facts.json"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {"build": f"in place, {path.parent}"}
    built: dict[str, str] = json.loads(text)
    return built
