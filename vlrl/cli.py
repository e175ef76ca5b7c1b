"""The command line. Imports nothing heavy until a command needs it: help and mistakes are answered at once."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from vlrl.commands import (
    bridge,
    data,
    engines,
    looking,
    offpolicy,
    planning,
    preferences,
    residual,
    robots,
    stages,
    training,
)
from vlrl.parallel.telling import check_command, to_tell
from vlrl.types import UserError


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="vlrl", description="Reinforcement learning for vision-language models and robot policies."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    learning, rest = (training, stages, offpolicy, preferences), (planning, data, robots, residual, bridge, engines)
    for subject in (*learning, *rest, looking):
        subject.add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Exit codes: 0 done, 1 training stopped by itself, 2 something the user can mend, 130 Ctrl-C."""
    options, extra = parser().parse_known_args(arguments)
    if hasattr(options, "changes"):  # argparse takes them before options only
        options.changes = [*options.changes, *(text for text in extra if not text.startswith("-"))]
        extra = [text for text in extra if text.startswith("-")]
    if extra:
        parser().error(f"unknown option {extra[0]!r}")
    sys.path.insert(0, str(Path.cwd()))  # a user's own `my_module:thing`
    try:
        check_command(options.command)
        return options.run(options)
    except UserError as error:
        if told := to_tell(error):
            print(f"vlrl: {told}", file=sys.stderr)
        return getattr(error, "exit_code", 2)
    except BrokenPipeError:  # the reader, `head` for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EFBIG):
            raise
        print(f"vlrl: cannot write {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("vlrl: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
