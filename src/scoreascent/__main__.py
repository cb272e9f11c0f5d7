"""The entry of `scoreascent` and `python -m scoreascent`."""

import sys

from scoreascent._extras import require


def main() -> None:
    """Run the command line, or say in one line what it lacks."""
    try:
        require("typer", "cli", "the command line")
    except ModuleNotFoundError as error:
        sys.exit(str(error))
    from scoreascent.cli import app

    app()


if __name__ == "__main__":
    main()
