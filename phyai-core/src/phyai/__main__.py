"""``python -m phyai``: the ``phyai`` command."""

import sys

from phyai.cli import main

sys.exit(main())
