"""`python -m checkback`: the console script, where it is not on PATH."""

import sys

from checkback.cli import main

sys.exit(main())
