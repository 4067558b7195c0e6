"""Forked and spawned processes read the same."""

import sys

from pagestream import open_tokens


def total(corpus):
    return int(corpus[:].astype("u8").sum()), corpus.fingerprint


if __name__ == "__main__":
    corpus = open_tokens([f"{sys.argv[1]}/shard{n}" for n in range(100)])
    expected = total(corpus)
    child = __import__("os").fork()
    if child == 0:
        __import__("os")._exit(0 if total(corpus) == expected else 1)
    assert __import__("os").waitpid(child, 0)[1] == 0
    print(expected == total(__import__("pickle").loads(__import__("pickle").dumps(corpus))))
