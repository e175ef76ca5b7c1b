"""Give a model away: a folder that other programs load, its card, the hub."""

from __future__ import annotations

import argparse
from pathlib import Path

from vlrl.commands.base import Commands, quiet

WEIGHTS = ("float32", "bfloat16")


def add(commands: Commands) -> None:
    card = commands.add_parser("card", help="write a model card into a run's model folder: results, config, licences")
    _about(card)
    card.set_defaults(run=_card)

    export = commands.add_parser("export", help="a folder of the model alone, for transformers, vLLM, SGLang")
    _about(export)
    _form(export)
    export.add_argument("--out", required=True, metavar="DIR", help="a new folder")
    export.set_defaults(run=_export)

    average = commands.add_parser("average", help="one model of the mean of several models' weights")
    average.add_argument("models", nargs="+", metavar="RUN", help="run folders or models' folders of one architecture")
    average.add_argument("--shares", nargs="+", type=float, metavar="SHARE", help="of each, together 1; default: equal")
    average.add_argument("--out", required=True, metavar="DIR", help="a new folder")
    average.set_defaults(run=_average)

    push = commands.add_parser("push", help="upload a model with its card to the Hugging Face hub")
    _about(push)
    _form(push)
    push.add_argument("--to", required=True, metavar="OWNER/NAME", help="made if it is not there")
    push.add_argument("--private", action="store_true", help="for you and those you name; default: for all to see")
    push.set_defaults(run=_push)


def _about(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", metavar="RUN", help="a run folder (its newest checkpoint), or a model's folder")
    command.add_argument("--license", metavar="ID", help="of this model, as the hub spells it (apache-2.0); default: "
                         "not stated")  # fmt: skip


def _form(command: argparse.ArgumentParser) -> None:
    command.add_argument("--merged", action="store_true", help="an adapter becomes part of its base's weights")
    command.add_argument("--dtype", choices=WEIGHTS, help="of the weights, default: as they were saved")


def _average(options: argparse.Namespace) -> int:
    quiet()
    from contextlib import ExitStack

    from vlrl.interop import average, export

    with ExitStack() as opened:
        models = [opened.enter_context(export.open_source(model)) for model in options.models]
        average.average(models, Path(options.out), options.shares)
    print(options.out)
    return 0


def _card(options: argparse.Namespace) -> int:
    from vlrl.interop import card, export

    with export.open_source(options.source) as source:
        print(card.write(source, source.folder, licence=options.license))
    return 0


def _export(options: argparse.Namespace) -> int:
    quiet()
    from vlrl.interop import card, export

    out = Path(options.out)
    with export.open_source(options.source) as source:
        export.export(source, out, merged=options.merged, dtype=options.dtype)
        card.write(source, out, licence=options.license)
    print(out)
    return 0


def _push(options: argparse.Namespace) -> int:
    quiet()
    from vlrl.interop import export
    from vlrl.interop.push import push

    form = {"merged": options.merged, "dtype": options.dtype, "licence": options.license}
    with export.open_source(options.source) as source:
        print(push(source, options.to, private=options.private, **form))
    return 0
