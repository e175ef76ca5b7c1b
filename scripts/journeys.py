"""A stranger's first hour: what README and docs say, typed in an empty folder and an empty home without a network.

    python scripts/journeys.py [--only NAME]     # a table: each journey's outcome, seconds, the page it is from

What runs is a fresh clone of this checkout, of what git knows and as it is now: a file that was not added is not there.
Each command stands in its page as it is here; what follows ` + ` only makes it smaller, and one that begins with `$` is
in no page. A journey ends with a check of what a reader would look at. Exit code 1 where one does not arrive.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from PIL import Image, ImageDraw

ROOT = Path(__file__).parents[1]
SMALL = "train.steps=2 train.prompts_per_step=2 train.group_size=2 eval.num_samples=8 eval.every_steps=null"
FIRST = f"vlrl train configs/gui_grounding.yaml + {SMALL} out=runs/tour"
LIMIT_S = 300  # of a journey, on an idle machine
TRIES = 3  # at an answer within seconds: the machine may have been busy
# where this user may make no network of its own, nothing is reached all the same
NOWHERE = {"HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1,localhost"} | dict.fromkeys(
    ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9"
)
QUESTION = """
import base64, io, json, time, urllib.request
from PIL import Image
file = io.BytesIO()
Image.new("RGB", (56, 56), "red").save(file, "PNG")
url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
image = {"type": "image_url", "image_url": {"url": url}}
content = [image, {"type": "text", "text": "Click the red square"}]
body = json.dumps({"model": "embedded", "max_tokens": 8, "messages": [{"role": "user", "content": content}]}).encode()
request = urllib.request.Request(
    "http://127.0.0.1:8000/v1/chat/completions", body, {"Content-Type": "application/json"}
)
for _ in range(300):  # the server loads its model first
    try:
        print(json.load(urllib.request.urlopen(request))["choices"][0]["message"])
        break
    except urllib.error.URLError:
        time.sleep(0.2)
"""
LOOK = """
import json, time, urllib.request
def get(path):
    return urllib.request.urlopen("http://127.0.0.1:8300/" + path).read().decode()
for _ in range(300):  # the server starts first
    try:
        print("a page" if "<title>" in get("") else "no page", "of the run", json.loads(get("runs/0/curves"))["name"])
        break
    except urllib.error.URLError:
        time.sleep(0.2)
"""
KILLED = """until [ -e runs/tour/checkpoints/step_000003 ]; do kill -0 $!; sleep 0.02; done
kill -9 $!; wait $! 2>/dev/null || true; test ! -e runs/tour/summary.json"""
TINY_TASK = "base: gui_grounding\neval: {num_samples: 8}\n"
TINY_STUDY = (
    "task=tiny.yaml budget.rollouts=32 budget.rollouts_per_update=16 budget.passes=1 budget.group_size=4 "
    "jobs=2 seeds.each=2 seeds.looks=1 evaluations=1 'pass_at={samples: 2, k: [1]}'"
)
OPEN = 'from transformers import AutoModelForImageTextToText as M; print(M.from_pretrained("my-model"))'
LOOPBACK = (
    "python -c 'import fcntl, socket, struct; "  # `ip link set lo up`, without iproute2
    'fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh", b"lo", 0x41))\''
)
TRL = "output_dir: out\nlearning_rate: 1.0e-6\nnum_generations: 8\nper_device_train_batch_size: 8\nbeta: 0.0\n"


@dataclass(frozen=True)
class Journey:
    """Commands of a page, one after the other, and what the last of them has to print or leave.

    Args:
        page: where the commands stand.
        commands: of the shell.
        servers: commands that run until the journey has ended.
        files: written first; `page:NAME` is the page's block that is to be written into NAME, `clicks` six screens,
            `copy` a folder of the checkout.
        shows: what the output has to hold, a regular expression.
        leaves: files that have to be there.
        refused_s: seconds on an idle machine within which the command refuses, in one line and with exit code 2; none:
            it does its work.
    """

    page: str
    commands: tuple[str, ...]
    servers: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    shows: str = "held-out samples"
    leaves: tuple[str, ...] = ()
    refused_s: float | None = None


JOURNEYS = {
    "install": Journey("docs/tour.md", ("vlrl doctor", "$ vlrl --version", "vlrl list methods"), shows="grpo"),
    "demo": Journey("README.md", (f"vlrl demo + {SMALL}",), leaves=("runs/demo/report.html",)),
    "first run": Journey(
        "docs/tour.md",
        (FIRST, "vlrl view runs/tour + > view.log &", "$ python look.py", "vlrl advise runs/tour",
         "vlrl eval configs/gui_grounding.yaml --model runs/tour + eval.num_samples=16"),
        files={"look.py": LOOK},
        shows=r"(?s)a page of the run tour\s+runs/tour: 2 steps.*\saccuracy 0\.\d+ .* on 16 samples",
        leaves=("runs/tour/report.html", "runs/tour/summary.json"),
    ),
    "resume after a kill": Journey(
        "docs/tour.md",
        (f"{FIRST} train.steps=500 log.checkpoint_every=1 &", f"$ {KILLED}",
         "vlrl train --resume runs/tour + train.steps=12"),
        shows=r"(?s)resumed at step \d+ with train.steps 500 -> 12\n.*step 12/12",
    ),
    "a typo": Journey(
        "docs/guides/own_data.md", ("$ vlrl train configs/gui_grounding.yaml train.stepz=10",),
        shows=r"train\.stepz: unknown key; did you mean 'steps'\?", refused_s=2.0,
    ),
    "a file for another": Journey(
        "docs/guides/own_data.md", ("$ vlrl train configs/models/embedded_push.yaml",),
        shows="`vlrl clone configs/models/embedded_push.yaml`", refused_s=2.0,
    ),
    "no network": Journey(
        "README.md",
        ("$ env -u HF_HUB_OFFLINE vlrl train gui_grounding policy.model=Qwen/Qwen2.5-VL-3B-Instruct",),
        shows="cannot be reached, and there is no copy in the cache: check the network", refused_s=2.0,
    ),
    "own data": Journey(
        "README.md",
        (f"vlrl train clicks.jsonl + policy.model=embedded {SMALL} out=runs/clicks",
         f"vlrl train clicks.yaml configs/recipes/mssr.yaml + {SMALL} sampler.limit=8 out=runs/single"),
        files={"clicks.jsonl": "clicks"}, leaves=("clicks.yaml", "runs/single/report.html"),
    ),
    "own data on a CPU": Journey(
        "docs/guides/own_data.md",
        (f"vlrl train examples/pages/clicks.jsonl --imitate 300 train.steps=30 train.lr=1e-4 + --imitate 2 {SMALL}",),
        files={"examples/pages": "copy"}, shows=r"(?s)imitation: 0\.\d+ .*held-out samples",
        leaves=("clicks.yaml", "runs/clicks/report.html", "runs/clicks_start/report.html"),
    ),
    "check data": Journey(
        "docs/guides/own_data.md",
        ("vlrl check-task gui_grounding --data clicks.jsonl", "vlrl init --data clicks.jsonl + --out mine.yaml",
         "$ vlrl show mine.yaml"),
        files={"clicks.jsonl": "clicks"}, shows="name: gui_grounding",
    ),
    "own task": Journey(
        "docs/guides/own_task.md", (f"$ vlrl train gui_grounding task=digit_sum:DigitSum {SMALL} out=runs/sum",),
        files={"digit_sum.py": "page:tasks/digit_sum.py"},
    ),
    "own method": Journey(
        "docs/guides/own_method.md",
        ("$ vlrl train gui_grounding 'advantages=[{name: \"my_methods:leave_one_out\", scale: 0.5}]' "
         f"'losses=[{{name: \"my_losses:bounded_reinforce\", most: 0.1}}]' {SMALL} out=runs/mine",),
        files={"my_methods.py": "page:my_methods.py", "my_losses.py": "page:my_losses.py"},
    ),
    "own reward": Journey(
        "docs/guides/own_reward.md",
        ("vlrl check-task near_clicks:NearClicks",
         "vlrl train configs/gui_grounding.yaml 'task={name: \"near_clicks:NearClicks\", near: 0.2}' "
         f"out=runs/near_clicks + {SMALL}",
         "$ vlrl train gui_grounding 'process_rewards=[{name: \"short_answers:brief\", amount: 0.2}]' "
         f"{SMALL} out=runs/brief",),
        files={"near_clicks.py": "page:near_clicks.py", "short_answers.py": "page:short_answers.py"},
        leaves=("runs/near_clicks/report.html", "runs/brief/report.html"),
    ),
    "compare": Journey(
        "docs/guides/own_method.md",
        ("vlrl compare loo_or_grpo.yaml --plan", f"vlrl compare loo_or_grpo.yaml + {TINY_STUDY}"),
        files={"my_methods.py": "page:my_methods.py", "loo.yaml": "page:loo.yaml",
               "loo_or_grpo.yaml": "page:loo_or_grpo.yaml", "tiny.yaml": TINY_TASK},
        shows="LOO", leaves=("runs/compare/loo/report.html", "runs/compare/loo/result.json"),
    ),
    "from TRL": Journey(
        "docs/coming_from.md",
        ("vlrl import-config trl.yaml --task visual_reasoning --out mine.yaml", "$ vlrl show mine.yaml",
         "vlrl list --search num_generations"),
        files={"trl.yaml": TRL}, shows="group_size: 8",
    ),
    "real size": Journey(
        "docs/guides/qwen.md",
        ("vlrl reproduce ui_r1 published/memory/24gb --dry-run",
         "$ vlrl plan published/ui_r1 published/memory/24gb --gpu 4090",
         "vlrl plan qwen_3b.yaml --gpu 4090 --visual 1280 --text 100"),
        files={"qwen_3b.yaml": "page:qwen_3b.yaml"}, shows="(?is)licence.*together.*it fits.*it fits",
    ),
    "model for others": Journey(
        "docs/interop.md",
        (f"$ vlrl train gui_grounding {SMALL} out=RUN", "vlrl export RUN --out my-model",
         f"$ python -c '{OPEN}'"),
        shows="Qwen3VLText",
    ),
    "server": Journey(
        "docs/engines.md", ("$ python question.py",), servers=("vlrl serve-model embedded --port 8000",),
        files={"question.py": QUESTION}, shows="assistant",
    ),
    "simulated robot": Journey(
        "docs/tour.md", ("vlrl simulate configs/manipulation.yaml --against expert --episodes 5",), shows="expert"
    ),
    "emulated arm": Journey(
        "docs/tour.md",
        ("$ until [ -e arm/so101 ]; do sleep 0.2; done",
         "vlrl deploy configs/deploy/so101_emulator.yaml robot.port=arm/so101 robot.calibration_dir=arm "
         "scene.socket=arm/control episodes=2 record=none + episodes=1",),
        servers=("vlrl emulate so101 --camera top=64x64:5555 --link arm --calibration arm",
                 "vlrl serve --policy embedded_so101"),
        shows="episode 1: ", leaves=("runs/deploy_so101_emulator/report.html",),
    ),
}  # fmt: skip


@cache
def make_clone() -> tempfile.TemporaryDirectory | None:
    """A clone of the checkout with what is changed in it but not committed; None where git has none."""

    def git(*words: str, folder: Path = ROOT) -> str:
        return subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=False).stdout.strip()

    if not (shutil.which("git") and (ROOT / ".git").exists()) or not (
        commit := git("stash", "create") or git("rev-parse", "HEAD")
    ):
        return None
    clone = tempfile.TemporaryDirectory(prefix="journeys_")
    git("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), clone.name)
    git("checkout", "--quiet", "--detach", commit, folder=Path(clone.name))
    return clone


def find_checkout() -> Path:
    """Whose commands and pages a newcomer has."""
    clone = make_clone()
    return Path(clone.name) if clone else ROOT


def find_broken_promises(journey: Journey) -> list[str]:
    """Commands that its page does not show."""
    page = re.sub(r"\s*\\\n\s*|\s+", " ", (find_checkout() / journey.page).read_text(encoding="utf-8"))
    promises = [each.split(" + ")[0] for each in (*journey.servers, *journey.commands) if not each.startswith("$ ")]
    return [f"{journey.page} does not show: {promise}" for promise in promises if promise not in page]


def write_files(journey: Journey, folder: Path) -> None:
    page = (find_checkout() / journey.page).read_text(encoding="utf-8")
    for name, text in journey.files.items():
        if text == "copy":
            shutil.copytree(find_checkout() / name, folder / name)
            continue
        if text == "clicks":
            text = write_screens(folder)
        elif text.startswith("page:"):
            block = re.search(rf"```\w+\n(# {re.escape(text[5:])}\n.*?)```", page, re.DOTALL)
            text = block[1] if block else ""
        (folder / name).write_text(text, encoding="utf-8")


def write_screens(folder: Path) -> str:
    """Six screens of a button each -> the lines that ask for it."""
    lines = []
    for number, color in enumerate(("red", "green", "blue", "orange", "purple", "black")):
        screen, left = Image.new("RGB", (112, 112), "white"), 10 + 12 * number
        ImageDraw.Draw(screen).rectangle((left, 30, left + 24, 54), fill=color)
        screen.save(folder / f"{color}.png")
        row = {"image": f"{color}.png", "instruction": f"the {color} button", "box": [left, 30, left + 24, 54]}
        lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"


def take(journey: Journey) -> str:
    """Takes a journey in a folder and a home of its own -> '' or what went wrong."""
    if problems := find_broken_promises(journey):
        return problems[0]
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "work"
        folder.mkdir()
        write_files(journey, folder)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"HOME": home, "PATH": path, "PYTHONPATH": str(find_checkout()), "XDG_CACHE_HOME": home}
        environment = os.environ | own | NOWHERE
        script = [f"{command} >> server.log 2>&1 &" for command in journey.servers]
        script += [re.sub(r"^\$ ", "", command).replace(" + ", " ") for command in journey.commands]
        script = ["trap 'kill $(jobs -p) 2>/dev/null || true' EXIT", "set -e", *script]
        for _ in range(1 if journey.refused_s is None else TRIES):
            start = time.monotonic()
            done = run_offline("\n".join(script), folder, environment)
            problem = find_problem(journey, done, time.monotonic() - start, folder)
            if not problem:
                break
        return problem


def find_problem(journey: Journey, done: subprocess.CompletedProcess, seconds: float, folder: Path) -> str:
    """What a journey that has ended misses."""
    if done.returncode != (0 if journey.refused_s is None else 2):
        return f"exit code {done.returncode}: {(done.stderr or done.stdout)[-1500:]}"
    missing = [name for name in journey.leaves if not (folder / name).exists()]
    if missing or not re.search(journey.shows, done.stdout + done.stderr):
        return f"misses {missing or journey.shows}; it printed: {(done.stdout + done.stderr)[-1500:]}"
    limit_s = (journey.refused_s or 0.0) * compute_load()
    if journey.refused_s is not None and (seconds > limit_s or done.stderr.count("\n") != 1):
        return f"took {seconds:.1f} s of {limit_s:.1f}, and said: {done.stderr}"
    return ""


def compute_load() -> float:
    """How much slower the machine is than idle, at least 1: others run as well."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def run_offline(script: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess:
    """Runs a script of bash in a network of its own, which has the loopback alone, where this user may make one."""
    alone = ["unshare", "--net", "--map-root-user"]
    can = shutil.which("unshare") and subprocess.run([*alone, "true"], capture_output=True, check=False).returncode == 0
    limit_s = LIMIT_S * compute_load()
    command = [*alone, "bash", "-c", f"{LOOPBACK}\n{script}"] if can else ["bash", "-c", script]
    with subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            err = f"not done in {limit_s:.0f} s; {err}"
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", choices=JOURNEYS, metavar="NAME", help=", ".join(JOURNEYS))
    chosen = parser.parse_args().only or list(JOURNEYS)
    arrived, begin = 0, time.monotonic()
    print(
        f"| {'journey':20} | {'s':>4} | {'page':24} | outcome\n|{'-' * 22}|{'-' * 6}|{'-' * 26}|{'-' * 9}", flush=True
    )
    for name in chosen:
        start = time.monotonic()
        problem = take(JOURNEYS[name])
        arrived += not problem
        seconds = time.monotonic() - start
        print(f"| {name:20} | {seconds:4.0f} | {JOURNEYS[name].page:24} | {problem or 'arrived'}", flush=True)
    pages = [find_checkout() / "README.md", *(find_checkout() / "docs").rglob("*.md")]
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
    broken = sum(len(find_broken_promises(JOURNEYS[name])) for name in chosen)
    print(
        f"{arrived} of {len(chosen)} arrived, {time.monotonic() - begin:.0f} s in all; {words:,} words on {len(pages)} "
        f"pages; commands that their page does not show: {broken}"
    )
    return int(arrived < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
