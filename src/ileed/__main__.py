"""The door of the command `ileed`: everything heavy is imported behind it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command and end the process with its exit code."""
    try:
        import rich  # noqa: F401
        import tyro  # noqa: F401
    except ImportError as error:
        sys.exit(f"ileed: the command needs rich and tyro ({error}): pip install rich tyro")
    from ileed.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
