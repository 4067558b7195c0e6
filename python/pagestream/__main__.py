"""``python -m pagestream``: the command of the shell."""

from pagestream.cli import main

if __name__ == "__main__":
    main()
