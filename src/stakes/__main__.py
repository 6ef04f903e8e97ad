"""``python -m stakes``: the command line, where its script is not on the path."""

from stakes.cli.main import main

if __name__ == "__main__":
    main()
