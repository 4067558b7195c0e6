"""Counts the resources of this process. The first argument is the file."""

import os
import sys


def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) << 10


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def mappings():
    return sum(sys.argv[1] in line for line in open("/proc/self/maps"))
