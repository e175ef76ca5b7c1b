"""One command in a process that `test_train.py` forks: runpy executes this file with `REQUEST` among its globals.

REQUEST: arguments; folder to work in, where the user's own modules lie; output, the files for stdout and stderr;
largest_file in bytes, or None: what a full disk would refuse; perhaps environment, variables to set.
"""

import os
import resource
import sys

from vlrl.cli import main

request = globals()["REQUEST"]
os.environ.update(request.get("environment", {}))
os.chdir(request["folder"])
for number, file in enumerate(request["output"], start=1):
    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
if request["largest_file"]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"],) * 2)
sys.exit(main(request["arguments"]))
