"""The first moments of a child: `python -I -S launcher.py PARENT_PID LC_CTYPE PROGRAM ARGUMENTS...`

Asks the kernel to kill this process when its parent dies (unless PARENT_PID is 0, for a child that
shall outlive it), then becomes the program: both the process id and the request survive exec. A
`preexec_fn` could ask the same, but it would run Python between fork and exec of a parent that has
threads, where any lock may be held for ever; this file runs in a fresh interpreter. It imports
nothing of the project, because -I and -S hide it.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_CANNOT_EXECUTE = 127  # as shells answer


def main() -> None:
    parent_pid = int(sys.argv[1])
    locale, program = sys.argv[2], sys.argv[3:]
    if parent_pid:
        _die_with(parent_pid)
    # The interpreter sets it for itself when it finds the C locale (PEP 538).
    if locale:
        os.environ["LC_CTYPE"] = locale
    else:
        os.environ.pop("LC_CTYPE", None)
    # The interpreter ignores these; a program started from a shell would not inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        print(f"{program[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(_CANNOT_EXECUTE)


def _die_with(parent_pid: int) -> None:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent_pid:
        sys.exit("the parent died before the child started")


if __name__ == "__main__":
    main()
