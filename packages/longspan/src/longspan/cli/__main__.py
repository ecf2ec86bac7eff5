"""`python -m longspan.cli` is the same as `longspan`."""

import sys

from longspan.cli import main

sys.exit(main())
