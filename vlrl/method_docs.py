"""docs/methods.md, made of what methods say of themselves, of the recipes and of the tests.

Anew after a change: python -m vlrl.method_docs
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from vlrl import methods, registry
from vlrl.method_checks import ROOT, checks, exemptions, recipes_with

PAGE = ROOT / "docs" / "methods.md"
KINDS = {
    "sampler": "Samplers: which prompts a step asks",
    "rollouts": "Rollout strategies: where a step's episodes come from",
    "process": "Process rewards: what the steps of an episode earned",
    "shaping": "Shaping: what a reward alone cannot see",
    "advantages": "Advantages: in the order of the list",
    "replay": "Replay and mixing: what a step learns from, once its advantages are known",
    "losses": "Losses: each times its coef, added",
    "weighing": "Weighing: how much each token counts",
    "hooks": "Hooks: what happens between steps",
    "agent": "Agents: what learns off-policy (docs/offpolicy.md)",
    "source": "Sources: transitions that an off-policy run is given (a list under `offline`)",
    "judge": "Judges: in which of two moments a goal is nearer (`vlrl preferences`)",
}
HEAD = """\
# Methods

Everything a configuration may name to train with, by kind. This page is generated: `python -m vlrl.method_docs` after a
change (a test compares). `vlrl list methods` prints the same in short.

A method's **needs** are checked when a configuration is read, and what does not fit is refused with the key and an
alternative. Parts that are right one by one and wrong together are refused as well (vlrl/interactions). The needs:

NEEDS

**Checked** says what a method is held to beside tests of its own:

- *golden*: worked numbers of the published formula, computed apart from this code in float64, to 2e-6;
- *laws*: what every method of its kind must satisfy for random inputs (tests/vlrl/test_laws.py): order of the batch,
  padding, degenerate groups, precision; losses also micro-batches and, at ratio 1, the plain policy gradient. A method
  that is exempt says so with the reason;
- *runs*: the tests train a recipe with it for two steps;
- *learned*: a run whose held-out accuracy rose.

## Which helped here

On the embedded model, at equal budgets, over seeds; the pages have numbers, costs and figures. It is one small model on
easy tasks: a method that does nothing here may do much where groups seldom agree or answers are long.

- **Did**: one rollout a prompt (MSSR, MVSR, REINFORCE++) where prompts abound
  ([results](results.md#single-rollout-against-groups)); ReLIFT where right answers are known
  ([results](results.md#one-method-of-each-kind-against-grpo)); off-policy learning with demonstrations for robots, by
  far (RLPD, DSRL, residual SAC: [manipulation](manipulation.md#methods-at-equal-ticks)).
- **Made no difference that could be shown**: SSR, LATR, VADE, DAPO's refill, RLOO, DAPO without refill, Reg-GRPO,
  forced rethinking (at 3.6 times the tokens: [results](results.md#forced-rethinking-where-there-are-thoughts)), GiGPO
  in a browser ([results](results.md#gigpo-in-a-browser)); on robots SRPO and PPO with a critic.
- **Did harm**: GHPO's hints and ESSA from a fresh adapter, at equal rollouts; AReaL's decoupled objective with one
  update a step and a staleness of 4 ([asynchronous](asynchronous.md#measured)); VLA-RL's process reward at few
  episodes, and ResiP where its start seldom succeeds.

## Add your own in 10 lines

A method is a function of columns (`vlrl.types.Rollouts`, `Batch`); its keyword-only parameters are its options, typed
and checked. Decorate it with `@method`, put it on the Python path, name it `module:function`. A test runs this block:

```python
# my_methods.py
from vlrl.advantages import group_means
from vlrl.methods import method


@method(needs=("group",), source="the advantage of Dr. GRPO, bounded")
def bounded(rollouts, advantage, *, bound: float = 1.0):
    \"\"\"Reward minus its group's mean, at most `bound` either way. -> [B]\"\"\"
    centred = rollouts.reward - group_means(rollouts.reward, rollouts.group)
    return centred.clamp(-bound, bound)[rollouts.episode]
```

```bash
vlrl train configs/gui_grounding.yaml 'advantages=[{name: "my_methods:bounded", bound: 0.5}]'
```

In the repository the same file lies in vlrl/advantages (or losses, shaping, samplers). There it is found by its name,
by `vlrl list methods`, by the laws and by this page. What a paper changes beside it is one YAML in configs/recipes.
"""


def page() -> str:
    """The whole of docs/methods.md."""
    needs = "\n".join(f"- `{need}`: {_plain(text)}" for need, text in methods.ALTERNATIVES.items())
    return "\n".join([HEAD.replace("NEEDS", needs), *(_section(kind) for kind in KINDS)])


def _plain(text: str) -> str:
    """The need itself, without the alternative that stands behind the colon."""
    return text.partition(":")[0]


def _section(kind: str) -> str:
    lines = [f"## {KINDS[kind]}", "", f"`{kind}` in a configuration.", ""]
    for name, target in registry.names(kind).items():
        lines += [f"### {name}", "", *_entry(kind, name, target), ""]
    return "\n".join(lines)


def _entry(kind: str, name: str, target: Any) -> Iterator[str]:
    about = registry.describe(target)
    yield f"{_body(target)}\n"
    options = registry.options_of(target)
    if options:
        yield f"- options: {', '.join(_option(o, default) for o, (_, default) in options.items())}"
    if about["needs"]:
        yield f"- needs: {about['needs']}"
    if lacks := methods.of(target).lacks:
        yield f"- does not give: {', '.join(lacks)}"
    yield f"- source: {about['source']}"
    if used := recipes_with(kind, name):
        yield f"- recipes: {', '.join(used)}"
    if held := checks(kind, name):
        yield f"- checked: {'; '.join(held)}"
    for law, reason in exemptions().get(f"{kind}.{name}", {}).items():
        yield f"- exempt from the law {law}: {reason}"


def _body(target: Any) -> str:
    """A docstring without its sections of arguments, results and errors."""
    return re.split(r"^(?:Args|Returns|Raises):$|^-> ", inspect.getdoc(target) or "", flags=re.MULTILINE)[0].strip()


def _option(name: str, default: Any) -> str:
    return f"`{name}`" if default is ... else f"`{name}={default!r}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
