"""The command line. Imports nothing heavy until a command needs it: help and mistakes are answered at once."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from vlrl.cli import robots
from vlrl.cli.help import (
    complete,
    describe_commands,
    find_code,
    find_code_of,
    find_unknown,
    format_groups,
    print_error,
)
from vlrl.cli.robots import bridge_add, engines_add
from vlrl.cli.tools import data_add, looking_add, planning_add, sharing_add
from vlrl.cli.train import offpolicy_add, preferences_add, residual_add, stages_add, training_add
from vlrl.distributed.world import check_command, to_tell
from vlrl.registry import check_packages, lacking
from vlrl.types import UserError, __version__


class Parser(argparse.ArgumentParser):
    """Its mistakes have a code, as all have."""

    def error(self, message: str) -> NoReturn:
        super().error(f"{message} [{find_code_of(__name__)}]")


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="vlrl",
        usage="vlrl COMMAND ...     (vlrl COMMAND --help: its options)",
        description="Reinforcement learning for vision-language models and robot policies.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"vlrl {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", prog="vlrl", help=argparse.SUPPRESS)
    learning, rest = (
        (training_add, stages_add, offpolicy_add, preferences_add),
        (planning_add, data_add, robots.add, residual_add, bridge_add, engines_add),
    )
    for add in (*learning, *rest, sharing_add, looking_add):
        add(commands)
    describe_commands(commands)
    top.epilog = format_groups(commands)
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may come next
        complete(top, commands)
    return top


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What a command line asks for. Ends the process with exit code 2, and says why, where it is none of ours."""
    words = sys.argv[1:] if arguments is None else arguments
    top = parser()
    if words and (problem := find_unknown(words[0])):
        top.error(problem)
    options, extra = top.parse_known_args(words)
    if "changes" in options:  # argparse takes them before options only
        options.changes = [*options.changes, *(text for text in extra if not text.startswith("-"))]
        extra = [text for text in extra if text.startswith("-")]
    if extra:
        hint = "; settings are written key=value, as train.steps=10" if "changes" in options else ""
        top.error(f"unknown option {extra[0]!r}{hint}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Exit codes: 0 done, 1 training stopped by itself, 2 something the user can mend, 130 Ctrl-C."""
    options = parsed(arguments)
    sys.path.insert(0, str(Path.cwd()))  # a user's own `my_module:thing`
    try:
        check_command(options.command)
        if options.command != "doctor":  # which says more of it
            check_packages()
        return options.run(options)
    except UserError as error:
        if message := to_tell(error):
            code = "" if error.exit_code == 130 else f" [{find_code(error)}]"  # Ctrl-C is no mistake
            print_error(f"{message}{code}")
        return 2 if error.exit_code is None else error.exit_code
    except ModuleNotFoundError as error:
        if not (message := lacking(error)):
            raise
        print_error(f"{message} [{find_code_of(f'{lacking.__module__}.lacking')}]")
        return 2
    except BrokenPipeError:  # the reader, `head` for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EFBIG):
            raise
        code = find_code_of("vlrl.metrics.open_folder")  # whose error says the same of a run's folder
        print_error(f"cannot write {error.filename or 'a file'}: {error.strerror} [{code}]")
        return 2
    except KeyboardInterrupt:
        print("vlrl: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
