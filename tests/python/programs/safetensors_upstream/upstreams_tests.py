"""Runs a file of upstream's tests with pagestream in upstream's place."""

import sys

import pagestream.safetensors

if __name__ == "__main__":
    pagestream.safetensors.install()
    import pytest

    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore"]
    sys.exit(pytest.main([sys.argv[1], *options, "--junitxml", sys.argv[2]]))
