"""The entry of `scoreascent` and `python -m scoreascent`."""

import sys


def main() -> None:
    """Run the command line, or say in one line what it lacks."""
    try:
        from scoreascent.cli import app
    except ModuleNotFoundError as error:
        if error.name == "typer":
            sys.exit("the command line needs typer: pip install 'scoreascent[cli]'")
        raise
    app()


if __name__ == "__main__":
    main()
