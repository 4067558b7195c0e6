"""Runs a function in a forked child; a child that hangs is killed by its alarm, and its status tells."""

import faulthandler
import os
import signal

# Messages of a child that aborts belong to the output of the test.
os.dup2(1, 2)
faulthandler.enable()


def forked(act):
    """Returns the exit code of the child."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        # A child that hangs is killed, and shows its stacks.
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(120)
        try:
            act()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
