"""The entry of `scoreascent` and `python -m scoreascent`."""

import sys

from scoreascent._extras import require


def main() -> None:
    """Run the command line, or say in one line what it lacks."""
    try:
        cli = require("scoreascent.cli", "cli", "the command line")
    except ModuleNotFoundError as error:
        sys.exit(str(error))
    cli.app()


if __name__ == "__main__":
    main()
