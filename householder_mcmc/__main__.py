"""`python -m householder_mcmc`."""

import sys

from householder_mcmc.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
