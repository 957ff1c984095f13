"""`python -m turnlog` is the `turnlog` command."""

from turnlog.cli import main

if __name__ == "__main__":
    main()
