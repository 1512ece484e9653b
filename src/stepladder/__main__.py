"""`python -m stepladder` is the command line."""

import sys

from stepladder.cli import main

sys.exit(main())
