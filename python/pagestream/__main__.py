"""``python -m pagestream``: the shell command."""

from pagestream.cli import main

if __name__ == "__main__":
    main()
