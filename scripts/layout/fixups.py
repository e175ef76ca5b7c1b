"""What no rule does: edits by hand that go before or follow the moves, each tied to a target folder."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

MISSED: list[str] = []


def swap(root: Path, name: str, old: str, new: str, count: int = 1) -> None:
    path = root / name
    text = path.read_text() if path.exists() else ""
    if old not in text:
        MISSED.append(f"FIXUP MISSED {name}: {old[:70]!r}")
        return
    path.write_text(text.replace(old, new) if count == 0 else text.replace(old, new, count))


def touches(only: list[str], folder: str) -> bool:
    return any(o == folder or o.startswith(folder + "/") or folder.startswith(o + "/") for o in only)


def before(root: Path, only: list[str]) -> None:
    """In the words of today's layout."""
    if "rewards" in only:
        properties_by_name(root)
        swap(root, "bench/exploit.py", '    prefix = "gui_g1_" if module is published else ""\n', "")
        swap(root, "bench/exploit.py", "getattr(module, prefix + part)", 'getattr(module, f"gui_g1_{part}")')

    if "vlrl" in only or "vlrl/cli" in only:
        cli = root / "vlrl/cli.py"
        text = cli.read_text()
        head, mark, tail = text.partition("    learning, rest = ")
        line, _, tail = tail.partition("\n")
        line = re.sub(r"\b([a-z]+)(?=[,)])", r"\1.add", line)
        tail = tail.replace(
            "for subject in (*learning, *rest, sharing, looking):\n        subject.add(commands)",
            "for add in (*learning, *rest, sharing.add, looking.add):\n        add(commands)",
        )
        cli.write_text(f"{head}{mark}{line}\n{tail}")
    if any(o.startswith("vlrl") for o in only):
        quiet_in_api(root)
        swap(
            root,
            "tests/vlrl/test_listing.py",
            'if " group " in line)',
            'if line.split()[:2] == ["advantages", "group"])',
        )
        swap(root, "bench/step.py", "optimizers = {arm: optimizers.build(", "by_arm = {arm: optimizers.build(")
        swap(
            root,
            "bench/step.py",
            "step(policies[arm], optimizers[arm], made)",
            "step(policies[arm], by_arm[arm], made)",
        )
        swap(
            root,
            "tests/vlrl/test_listing.py",
            "own = (control, actor, arsq, corrected, flow, residual, steered)",
            "own = (\n        control.FAMILY, actor.FAMILY, arsq.FAMILY, corrected.FAMILY, flow.FAMILY, residual.FAMILY, steered.FAMILY,\n    )  # fmt: skip",
        )
        swap(root, "tests/vlrl/test_listing.py", "*(module.FAMILY for module in own)", "*own")
        for name in ("docs/methods.md", "vlrl/method_docs.py"):
            if (root / name).exists():
                text = (root / name).read_text()
                (root / name).write_text(
                    text.replace("train with, by kind. This page", "train with, by kind.\nThis page", 1)
                )
        if (root / "robot/serving/server.py").exists():
            swap(
                root,
                "robot/serving/server.py",
                "(native if ours else openpi).converse(service, connection)",
                "(native.converse if ours else openpi.converse)(service, connection)",
            )


def quiet_in_api(root: Path) -> None:
    """`quiet` of the commands is the API's, which they call: the API does not import the command line."""
    base = root / "vlrl/commands/base.py"
    text = base.read_text() if base.exists() else ""
    if "def quiet() -> None:" not in text:
        return
    at = text.index("def quiet() -> None:")
    function = text[at:].strip("\n")
    base.write_text(text[:at].rstrip("\n") + "\n")
    swap(root, "vlrl/commands/base.py", "import os\n", "")
    swap(root, "vlrl/api.py", "from vlrl.commands.base import quiet\n", "")
    swap(root, "vlrl/api.py", "from collections.abc import", "import os\nfrom collections.abc import")
    swap(
        root,
        "vlrl/api.py",
        "\n\n@dataclass(frozen=True)\nclass Run:",
        f"\n\n{function}\n\n\n@dataclass(frozen=True)\nclass Run:",
    )

    def one(m: re.Match) -> str:
        names = [n for n in m[2].split(", ") if n != "quiet"]
        own = f"{m[1]}from vlrl.commands.base import {', '.join(names)}\n" if names else ""
        return f"{m[1]}from vlrl.api import quiet\n{own}"

    for path in (root / "vlrl").rglob("*.py"):
        old = path.read_text()
        new = re.sub(r"^( *)from vlrl\.commands\.base import ((?:\w+, )*quiet(?:, \w+)*)\n", one, old, flags=re.M)
        if new != old:
            path.write_text(new)


def properties_by_name(root: Path) -> None:
    """tests/rewards/test_properties.py: what a module has of its own is what its rewards have, by name."""
    path = root / "tests/rewards/test_properties.py"
    text = path.read_text()
    init = ast.parse((root / "rewards/__init__.py").read_text())
    names = [k.value for n in ast.walk(init) if isinstance(n, ast.Dict) for k in n.keys]

    def key(module: str) -> str:
        those = [n for n in names if n.startswith(module + ".")]
        return ", ".join(f'"{n}"' for n in those)

    start, end = text.index("OWN = {"), text.index("\nOF_TEXT")
    own = re.sub(r"^    (\w+): \{", lambda m: f"    ({key(m[1])},): {{", text[start:end], flags=re.M)
    text = text[:start] + own + text[end:]
    text = re.sub(
        r"OWN_SEEDS( \|)?= dict\.fromkeys\(\[([\w, ]+)\], (\w+)\)",
        lambda m: (
            f"OWN_SEEDS{m[1] or ''}= dict.fromkeys([{', '.join(key(x.strip()) for x in m[2].split(','))}], {m[3]})"
        ),
        text,
    )
    text = text.replace(
        "OWN_SEEDS = dict.fromkeys([answers, cls_rl, video_r1, words], SHORT)",
        f"OWN_SEEDS = dict.fromkeys([{', '.join(key(x) for x in ('answers', 'cls_rl', 'video_r1', 'words'))}], SHORT)",
    )
    text = text.replace(
        "OWN_SEEDS |= dict.fromkeys([choices, numbers, sets, texts], OPEN)",
        f"OWN_SEEDS |= dict.fromkeys([{', '.join(key(x) for x in ('choices', 'numbers', 'sets', 'texts'))}], OPEN)",
    )
    text = text.replace(
        "OWN_SEEDS |= dict.fromkeys([temporal_r1, time_r1, videochat_r1], TIMED)",
        f"OWN_SEEDS |= dict.fromkeys([{', '.join(key(x) for x in ('temporal_r1', 'time_r1', 'videochat_r1'))}], TIMED)",
    )
    text = re.sub(
        r"^OWN_SEEDS\[(\w+)\] = (\[.*?\])$",
        lambda m: f"OWN_SEEDS |= {{name: {m[2]} for name in ({key(m[1])},)}}",
        text,
        flags=re.M | re.S,
    )
    text = text.replace(
        "def drawn(rng: random.Random, reward) -> dict:", "def drawn(rng: random.Random, name: str, reward) -> dict:"
    )
    text = text.replace(
        "    given = GIVEN | OWN.get(inspect.getmodule(reward), {})\n    return {name: rng.choice(given[name]) for name in names}",
        "    given = GIVEN | next((own for those, own in OWN.items() if name in those), {})\n    return {each: rng.choice(given[each]) for each in names}",
    )
    text = text.replace('startswith("gui_odyssey.")', 'startswith("gui.gui_odyssey_")')
    text = text.replace("OWN_SEEDS.get(inspect.getmodule(reward), SEEDS)", "OWN_SEEDS.get(name, SEEDS)")
    text = text.replace("drawn(rng, reward)", "drawn(rng, name, reward)")
    path.write_text(text)


def run(root: Path, only: list[str], project) -> Iterator[str]:
    """After the moves."""
    if "rewards" in only:
        text = (root / "rewards/__init__.py").read_text()
        head, _, tail = text.partition("RANGES: dict[str, tuple[float, float]] = {\n")
        entries, brace, rest = tail.partition("}\n")
        (root / "rewards/__init__.py").write_text(
            head
            + "RANGES: dict[str, tuple[float, float]] = {\n"
            + "".join(sorted(entries.splitlines(True)))
            + brace
            + rest
        )
    if "tasks" in only:
        swap(
            root,
            "vlrl/registry.py",
            "for module in pkgutil.iter_modules(tasks.__path__)]",
            "for module in pkgutil.iter_modules(tasks.__path__) if not module.ispkg]",
        )
        swap(
            root,
            "vlrl/registry.py",
            "for m in pkgutil.iter_modules(importlib.import_module(package).__path__)]",
            "for m in pkgutil.iter_modules(importlib.import_module(package).__path__) if not m.ispkg]",
        )
        swap(root, "tasks/latex_rendering.py", '"table_typeset_worker.py"', '"latex_rendering_worker.py"')
    if "robot" in only:
        robot_commands(root, project)
        swap(
            root, "pyproject.toml", '"robot/control/**",', '"robot/control/**", "robot/drivers/**", "robot/safety/**",'
        )
    if "vlrl" in only:
        layers(root)
        swap(root, "tests/robot/test_pool.py", '"robot.workers.unpack"', '"robot.workers.wire_unpack"')
        swap(
            root,
            "tests/vlrl/test_decoders.py",
            '    "robot.emulator.control": "answers of an emulator that the tester started",\n',
            "",
        )
        swap(root, "vlrl/registry.py", "    import tasks\n\n", "")
        swap(
            root,
            "vlrl/registry.py",
            "iter_modules(tasks.__path__)",
            'iter_modules(importlib.import_module("tasks").__path__)',
        )
        swap(root, "vlrl/tools/listing.py", "Path(__file__).parents[1]", "Path(__file__).parents[2]")
        swap(root, "vlrl/policies/tiny.py", "Path(__file__).parent /", "Path(__file__).parents[1] /")
    if "vlrl" in only or "vlrl/cli" in only:
        (root / "vlrl/cli/__main__.py").write_text(
            '"""`python -m vlrl.cli`."""\n\nimport sys\n\nfrom vlrl.cli import main\n\nif __name__ == "__main__":\n    sys.exit(main())\n'
        )
        homes(root)
    once_each(root / "docs/reference")
    yield from MISSED


LAYERS = """LAYERS = {
    "vlrl.types": (),
    "vlrl.system": ("vlrl.system",),
    **dict.fromkeys(("vlrl.decoders", "vlrl.media"), ("vlrl.types", "vlrl.decoders")),
    **dict.fromkeys(("vlrl.io", "vlrl.serving.protocol"), ("vlrl.types", "vlrl.decoders", "vlrl.media", "vlrl.system")),
    "vlrl": ("vlrl",),
    "rewards": ("rewards",),
    "robot": (
        "robot", "vlrl.decoders", "vlrl.io", "vlrl.media", "vlrl.types", "vlrl.config", "vlrl.serving", "vlrl.system",
    ),
    "tasks": ("tasks", "rewards", "robot", "vlrl.types", "vlrl.decoders", "vlrl.media", "vlrl.io", "vlrl.system"),
}"""


def layers(root: Path) -> None:
    """The directions of the new layout."""
    path = root / "tests/test_layers.py"
    text = path.read_text()
    path.write_text(re.sub(r"LAYERS = \{\n.*?\n\}", lambda m: LAYERS, text, count=1, flags=re.S))


def robot_commands(root: Path, project) -> None:
    """`_robot("deploy.command", "main")`: modules of `robot` that the command line loads by name."""
    for name in ("vlrl/commands/bridge.py", "vlrl/cli/robots.py"):
        path = root / name
        if not path.exists():
            continue

        def one(m: re.Match) -> str:
            part = project.parts.get(f"robot.{m[1]}")
            if part is None:
                return m[0]
            function = m[2] or "main"
            final = project.final.get((part.module, function), function)
            more = f', "{final}"' if final != "main" else ""
            return f'_robot("{part.new_module.removeprefix("robot.")}"{more})'

        path.write_text(re.sub(r'_robot\("([\w.]+)"(?:, "(\w+)")?\)', one, path.read_text()))


HOMES = {
    "advantages": ("advantages", "single_rollout", "multi_turn", "gae"),
    "losses": ("policy_losses", "auxiliary_losses"),
    "weighing": ("loss_aggregation",),
    "sampler": ("samplers", "curriculum"),
    "rollouts": ("rollout_filtering", "vlrl.contrib.rollouts"),
    "process": ("vlrl.contrib.process_rewards",),
    "shaping": ("reward_shaping", "length_penalties", "common"),
    "replay": ("vlrl.contrib.replay_mixing",),
    "hooks": ("schedules",),
    "agent": ("vlrl.offpolicy.agents",),
    "source": ("vlrl.offpolicy.datasets", "vlrl.contrib.preferences.source"),
    "judge": ("vlrl.contrib.preferences.labelling",),
}


def homes(root: Path) -> None:
    """The registry's table of modules."""
    path = root / "vlrl/registry.py"
    text = path.read_text()
    lines = []
    for kind, modules in HOMES.items():
        names = ", ".join(f'"{m if "." in m else "vlrl.algorithms." + m}"' for m in modules)
        lines.append(f'    "{kind}": ({names},),')
    path.write_text(
        re.sub(r"HOMES = \{\n.*?\n\}", lambda m: "HOMES = {\n" + "\n".join(lines) + "\n}", text, count=1, flags=re.S)
    )


def once_each(folder: Path) -> None:
    """A merged module stands once on a page of the reference."""
    for page in folder.glob("*.md"):
        visited: set[str] = set()
        out: list[str] = []
        blocks = re.split(r"\n(?=::: |#)", page.read_text())
        for block in blocks:
            name = re.match(r"::: (\S+)", block)
            if name and name[1] in visited and "options" not in block:
                continue
            if name:
                visited.add(name[1])
            out.append(block)
        text = "\n".join(out)
        text = re.sub(r"\n## [^\n]+\n+(?=## |\Z)", "\n", text)
        page.write_text(re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n")


def after(root: Path, only: list[str], project) -> None:
    """What is generated."""
    if "vlrl" in only:
        subprocess.run(
            [str(root / ".venv/bin/python"), "-m", "vlrl.tools.listing"],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            check=False,
        )
