"""Runs a function in a forked child. An alarm kills a child that hangs, and its status shows that."""

import faulthandler
import os
import signal

# The test's output includes the messages of a child that aborts.
os.dup2(1, 2)
faulthandler.enable()


def forked(act):
    """Returns the exit code of the child."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        # A child that hangs prints its stacks and is killed.
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(120)
        try:
            act()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
