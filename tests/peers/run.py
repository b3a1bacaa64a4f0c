"""Runs another script of this folder and ends the process without tearing the interpreter down.

The Iggy client's own threads go on until the process ends; when the interpreter is finalised under
them it aborts now and then (seen with 0.8.0, about once in a hundred runs), after all work is done.

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
