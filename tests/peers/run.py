"""Runs another script of this folder and ends the process without tearing the interpreter down.

A script with client 0.8.0 was once seen to end by SIGABRT after its work was done. The client's own
threads go on until the process ends, so the likely cause is that the interpreter is finalised under
them; a user's program would not notice, a test that looks at the exit status does.

Usage: run.py SCRIPT ARGUMENTS...
"""

import os
import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
