"""From the file of `vlrl stages` to its checked entries, with the files that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vlrl.bundled import config_file
from vlrl.compare.config import found
from vlrl.stages.config import Average, Rounds, Stage, Stages
from vlrl.strict import load_as, suggest
from vlrl.types import UserError


def load(path: str | Path, changes: Sequence[str] = ()) -> Stages:
    """A YAML file and changes to it -> the checked stages, their files found.

    Args:
        changes: `key=value` of the file itself, or `NAME.key.path=value` of what the stage NAME runs.

    Raises:
        UserError: as `load_as`; a name that stands twice; a file that does not exist; a change of no stage.
    """
    own = [change for change in changes if "." not in change.partition("=")[0]]
    loaded = load_as(Stages, path, own)
    of: dict[str, list[str]] = {}
    for change in changes:
        if change not in own:
            name, _, rest = change.partition(".")
            of.setdefault(name, []).append(rest)
    known = [each.name for stage in loaded.stages for each in getattr(stage, "stages", [stage])]
    if twice := [name for name in known if known.count(name) > 1]:
        raise UserError(f"{path}: the name {twice[0]!r} stands twice")
    if unknown := [name for name in of if name not in known]:
        raise UserError(f"{path}: no stage is called {unknown[0]!r}{suggest(unknown[0], known)}")
    folder = config_file(path).parent
    try:
        stages = [_found(stage, folder, of) for stage in loaded.stages]
        measured = found(folder, loaded.measured_on) if loaded.measured_on else None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return loaded.model_copy(update={"stages": stages, "measured_on": measured})


def _found(stage: Stage | Rounds, folder: Path, of: Mapping[str, list[str]]) -> Stage | Rounds:
    if isinstance(stage, Rounds):
        return stage.model_copy(update={"stages": [_found(each, folder, of) for each in stage.stages]})
    if isinstance(stage, Average):
        if of.get(stage.name):
            raise UserError(f"{stage.name}.{of[stage.name][0]}: an average runs no config: change the file")
        return stage
    files = [found(folder, file) for file in stage.files]
    changes = [*stage.changes, *of.get(stage.name, [])]
    return stage.model_copy(update={"config": found(folder, stage.config), "files": files, "changes": changes})
