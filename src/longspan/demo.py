"""`python -m longspan.demo`: see `longspan.cli.demo`."""

import sys

from longspan.cli.demo import main

if __name__ == "__main__":
    sys.exit(main())
