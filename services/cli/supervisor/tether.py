"""Runs a command that must not outlive the process that starts it, however that one ends.

    python -I -S tether.py PARENT_PID COMMAND [ARGUMENT...]

Asks the kernel (Linux, prctl PR_SET_PDEATHSIG) for SIGKILL when the parent dies, then becomes the
command. The request outlives exec; it is bound to the parent's thread that spawned, which must
therefore be its main one. Standard library only, and nothing imported that is not used: this is
paid for at every start.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        sys.exit(f"prctl failed: {os.strerror(ctypes.get_errno())}")
    # The parent may have died before the request was made.
    if os.getppid() != parent:
        sys.exit("the supervisor has ended")
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
