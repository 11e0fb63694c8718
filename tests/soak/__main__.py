"""`python -m tests.soak`: see `tests.soak.soak`."""

from __future__ import annotations

import sys

from tests.soak.soak import main

sys.exit(main(sys.argv[1:]))
