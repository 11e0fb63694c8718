"""Where the files are that tests read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
GOLDEN = TESTS / "golden"
DATA = ROOT.parent / "shared" / "data"
"""Real logs, beside the project; tests of them are skipped where there are none."""
