"""Put a vision-language model behind a port, to write completions for a run or for anybody."""

from __future__ import annotations

import argparse
from importlib import import_module

from vlrl.commands.base import Commands, quiet


def add(commands: Commands) -> None:
    serve = commands.add_parser("serve-model", help="put a vision-language model behind OpenAI's API, for rollouts")
    serve.add_argument("model", help="as policy.model: embedded, a folder, a run folder or a hub name")
    serve.add_argument("--host", default="127.0.0.1", help="default %(default)s; others need a token")
    serve.add_argument("--port", type=int, default=8000, help="default %(default)s; 0: any that is free")
    serve.add_argument("--name", metavar="TEXT", help="what clients call the model, default: MODEL")
    serve.add_argument("--token-env", metavar="NAME", help="the environment variable with the token that clients show")
    serve.add_argument("--weights-folder", metavar="DIR", help="where paths of new weights may lie; default: nowhere")
    serve.add_argument("--max-tokens", type=int, default=4096, metavar="N", help="of a completion, default %(default)s")
    serve.add_argument("--max-batch", type=int, default=256, metavar="N", help="completions at once, default "
                       "%(default)s")  # fmt: skip
    serve.add_argument("--min-pixels", type=int, metavar="N", help="of an image as shown; give what the run gives")
    serve.add_argument("--max-pixels", type=int, metavar="N")
    serve.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="default %(default)s")
    serve.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> int:
    quiet()
    return import_module("vlrl.engines.hosting.command").main(options)
