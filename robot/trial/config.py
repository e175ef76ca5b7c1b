"""A trial's YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from vlrl.strict import Count, Section, load_as
from vlrl.types import UserError

Share = Annotated[float, Field(gt=0, lt=1)]
MOST = 8  # policies


class Arm(Section):
    """Where a policy is: url or dir. Neither where the operator runs it (`--manual`)."""

    url: str | None = None  # of a policy server
    dir: str | None = None  # a policy's folder, for `vlrl deploy` to load itself
    changes: list[str] = Field(default_factory=list)  # overrides of the deployment for this policy, key.path=value

    @property
    def overrides(self) -> list[str]:
        """Of `vlrl deploy`: what selects this policy."""
        return [f"policy.url={self.url or 'null'}", f"policy.dir={self.dir or 'null'}", *self.changes]


class Trial(Section):
    """All that is fixed before the first episode."""

    policies: dict[str, Arm]
    deploy: str | None = None  # the YAML of `vlrl deploy`; not with --manual
    changes: list[str] = Field(default_factory=list)  # further overrides of it, key.path=value
    alpha: Share = 0.05  # the chance of any false claim in the whole trial
    delta: Share = 0.1  # a difference of success that would not matter
    max_episodes: Count = 100  # of all policies together, voids not counted
    block: Count = 1  # how often each policy is in a block
    seed: Annotated[int, Field(ge=0)] | None = None  # of the order; none: drawn, and recorded in the plan
    starts: list[str | int] = Field(default_factory=list)  # of episodes, each with every policy: words, or seeds
    out: str

    @model_validator(mode="after")
    def _fits(self):
        if not 2 <= len(self.policies) <= MOST:
            raise ValueError(f"policies: a trial compares 2 to {MOST} of them, got {len(self.policies)}")
        if self.max_episodes < len(self.policies):
            raise ValueError(f"max_episodes: {self.max_episodes} is not one for each policy")
        if both := [name for name, arm in self.policies.items() if arm.url and arm.dir]:
            raise ValueError(f"policies.{both[0]}: url or dir, not both")
        return self


def load(path: str | Path, changes: list[str], manual: bool) -> Trial:
    """A trial's YAML with changes; the path of its `deploy` is made absolute.

    Raises:
        UserError: a key is unknown or ill-typed, or what is needed to run the policies is missing.
    """
    trial = load_as(Trial, path, changes)
    if manual:
        return trial
    if missing := [name for name, arm in trial.policies.items() if not (arm.url or arm.dir)]:
        raise UserError(f"{path}: policies.{missing[0]}: name a url or a dir, or run them yourself with --manual")
    if not trial.deploy:
        raise UserError(f"{path}: deploy: name the YAML of `vlrl deploy`, or run the policies yourself with --manual")
    if not Path(trial.deploy).is_file():
        raise UserError(f"{path}: deploy: there is no file {trial.deploy}")
    return trial.model_copy(update={"deploy": str(Path(trial.deploy).resolve())})
