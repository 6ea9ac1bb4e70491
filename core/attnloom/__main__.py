"""`python -m attnloom` is the `attnloom` command."""

from __future__ import annotations

import sys

from attnloom.cli import main

sys.exit(main())
