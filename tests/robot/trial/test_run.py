"""A whole trial: blind, repeated where void, taken up where it was left, noticed where it was changed."""

import json
import os
import signal
import subprocess
import sys
from itertools import cycle, islice
from pathlib import Path

import pytest
from small_trials import NAMES, Operator, by_chance, trial

from robot.trial import plan as plans
from robot.trial.plan import NAME, Journal
from robot.trial.run import Outcome, begin, by_hand, run
from vlrl.io import hold_folder
from vlrl.types import UserError

RATES = dict(zip((f"ws://{name}.local:8765" for name in NAMES), (0.95, 0.2), strict=True))
COMMAND = """
import argparse, sys
from robot.trial.run import main
given = argparse.Namespace(config=None, changes=[], manual=True, resume=None)
vars(given).update(config=sys.argv[2]) if sys.argv[1] == "new" else vars(given).update(resume=sys.argv[2])
sys.exit(main(given))
"""


def enters(n):
    return [""] * n


def verdicts(folder):
    return [row for line in (folder / NAME).read_text().splitlines() if (row := json.loads(line))["event"] == "verdict"]


def test_a_trial_stops_when_it_is_decided_and_says_so(tmp_path):
    """The point of the command: fewer episodes than planned, and the right policy named."""
    folder = begin(trial(tmp_path / "t", max_episodes=200), manual=False)
    result = run(folder, by_chance(RATES), Operator(*enters(300)).desk)
    assert result["ended"] == "decided" and result["episodes"] < 60
    assert result["sentences"][0].startswith("diffusion-v2 succeeds more often than act-baseline")
    shares = {each["name"]: each["success"]["value"] for each in result["policies"]}
    assert shares["diffusion-v2"] > shares["act-baseline"]
    assert json.loads((folder / "result.json").read_text()) == json.loads(json.dumps(result))
    assert plans.read(folder).checksum in (folder / "report.html").read_text()


def test_the_operator_sees_no_name_before_the_end(tmp_path):
    """A verdict by somebody who knows which policy ran is worth little."""
    folder = begin(trial(tmp_path / "t", max_episodes=12, starts=["left", "right"]), manual=False)
    operator = Operator(*islice(cycle(["", "s a note", "", "v bus lost", "", "f"]), 60))
    assert run(folder, lambda arm, start, number: Outcome(None), operator.desk)
    shown = "\n".join(operator.shown)
    assert "Episode 12" in shown and "start: left" in shown
    assert not any(word in shown for word in (*NAMES, "ws://", "local", "slot", "block", "round"))


def test_slots_are_letters_that_hang_on_the_seed(tmp_path):
    """In a manual trial the operator is told a letter; the same letter must not be the same policy in each trial."""
    drawn = {tuple(plans.draw(trial("x", seed=seed), True).slots.items()) for seed in range(20)}
    assert len(drawn) == 2
    folder = begin(trial(tmp_path / "t", max_episodes=4), manual=True)
    operator = Operator(*islice(cycle(["", "s"]), 8), "")
    result = run(folder, by_hand, operator.desk)
    plan, titles = plans.read(folder), [text for text in operator.shown if ", slot " in text]
    assert [plan.slots[title[-1]] for title in titles] == [each.policy for each in plan.order]
    assert not any(name in "\n".join(operator.shown) for name in NAMES) and result["manual"]


def test_voids_are_repeated_with_the_same_policy_and_counted(tmp_path):
    """A dropped episode would unbalance the order; a policy that crashes the robot must not get away with it."""
    folder, seen = begin(trial(tmp_path / "t", max_episodes=24), manual=False), []

    def play(arm, start, number):
        seen.append((number, arm.url))
        fault = arm.url == f"ws://{NAMES[1]}.local:8765" and seen.count(seen[-1]) == 1
        return Outcome(None, void="the bus was lost") if fault else Outcome(True)

    result = run(folder, play, Operator(*enters(60)).desk)
    order = [(each.episode, f"ws://{each.policy}.local:8765") for each in plans.read(folder).order]
    assert list(dict.fromkeys(seen)) == order and len(seen) == 24 + 12
    assert [each["voids"] for each in result["policies"]] == [0, 12] and result["episodes"] == 24
    assert len(result["warnings"]) == 1 and "act-baseline in 12 of 24" in result["warnings"][0]


def test_the_last_verdict_can_be_taken_back_until_the_next_episode_begins(tmp_path):
    """A slip of the finger must not stay; a verdict that was slept over must."""
    folder = begin(trial(tmp_path / "t", max_episodes=4), manual=True)
    lines = ["u", "", "s", "u", "f slipped", "", "s", "u", "v the cup fell", "", "s", "", "s", "", "s", "u", "f", ""]
    operator = Operator(*lines)
    result = run(folder, by_hand, operator.desk)
    rows = [(row["episode"], row["verdict"], row["note"]) for row in result["rows"]]
    assert rows[:3] == [(1, "failure", "slipped"), (2, "void", "the cup fell"), (2, "success", "")]
    assert rows[-1][:2] == (4, "failure") and result["undone"] == 3
    assert operator.shown[3] == "'u' is none of Enter, p, end"  # nothing to take back yet


def test_the_operator_may_pause_and_end(tmp_path):
    """The test is valid whenever one stops, so a broken robot need not waste what was seen."""
    folder = begin(trial(tmp_path / "t"), manual=True)
    assert run(folder, by_hand, Operator("", "s", "p").desk) is None
    result = run(folder, by_hand, Operator("", "f", "END").desk)
    assert (result["ended"], result["episodes"]) == ("operator", 2) and "undecided" in result["sentences"][0]
    operator = Operator("u", "")  # ended and unblinded: nothing can be added any more
    assert run(folder, by_hand, operator.desk) == result and len(operator.shown) == 1


def test_three_policies_share_alpha(tmp_path):
    """Three comparisons at 5 % each would make more than 5 % of false claims."""
    folder = begin(trial(tmp_path / "t", ("a", "b", "c"), max_episodes=9), manual=True)
    result = run(folder, by_hand, Operator(*islice(cycle(["", "s"]), 18), "").desk)
    assert [(pair["a"], pair["b"]) for pair in result["pairs"]] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [pair["threshold"] for pair in result["pairs"]] == pytest.approx([60, 60, 60])
    assert [pair["rounds"] for pair in result["pairs"]] == [3, 3, 3]


def test_a_changed_plan_is_noticed_even_with_a_new_checksum(tmp_path):
    """Whoever changes the order after the first verdict can compute a checksum too."""
    folder = begin(trial(tmp_path / "t"), manual=True)
    run(folder, by_hand, Operator("", "s").desk)
    plans.save(plans.draw(trial(tmp_path / "t", seed=8), True), folder)
    with pytest.raises(UserError, match="put back the frozen plan"):
        run(folder, by_hand, Operator().desk)


@pytest.mark.parametrize("change", [lambda t: t.replace("verdict", "verdikt"), lambda t: t.split("\n", 1)[1]])
def test_a_changed_journal_is_noticed(tmp_path, change):
    """A line that cannot have been written by a trial must not be read as one."""
    folder = begin(trial(tmp_path / "t"), manual=True)
    run(folder, by_hand, Operator("", "s", "", "f").desk)
    (folder / NAME).write_text(change((folder / NAME).read_text()))
    with pytest.raises(UserError, match="not as it was written"):
        run(folder, by_hand, Operator().desk)


def test_a_folder_that_holds_something_is_not_overwritten(tmp_path):
    """A trial is hours of work on a bench."""
    folder = begin(trial(tmp_path / "t"), manual=True)
    with pytest.raises(UserError, match=r"go on with --resume"):
        begin(trial(tmp_path / "t"), manual=True)
    with hold_folder(folder), pytest.raises(UserError, match="is in use by"):
        run(folder, by_hand, Operator().desk)


def test_an_episode_that_could_not_be_run_is_void(tmp_path):
    """The trial must go on with the same episode once the cause is mended."""

    def play(arm, start, number):
        raise UserError("no such thing")

    folder = begin(trial(tmp_path / "t"), manual=False)
    with pytest.raises(UserError, match="no such thing"):
        run(folder, play, Operator("").desk)
    state = Journal(folder, plans.read(folder)).state
    assert (state.next, state.is_running, state.verdicts[0].verdict) == (1, False, "void")


def _process(*arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    given = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", COMMAND, *map(str, arguments)], env=environment, **given)


def _until(process, text):
    """What was shown up to this text."""
    shown = ""
    while text not in shown:
        letter = process.stdout.read(1)
        assert letter, shown + process.stderr.read()
        shown += letter
    return shown


def test_a_killed_trial_goes_on_exactly(tmp_path):
    """A power cut on episode 3 of 40 must cost nothing but that episode's verdict, which is asked for again."""
    config = tmp_path / "trial.yaml"
    config.write_text(
        f"policies: {{fast-net: {{}}, slow-net: {{}}}}\nseed: 5\nmax_episodes: 6\nout: {tmp_path / 't'}\n"
    )
    first = _process("new", config)
    for verdict in ("s", "f fell"):
        _until(first, "now: ")
        first.stdin.write(f"\n{verdict}\n")
        first.stdin.flush()
    _until(first, "Episode 3, ")
    first.stdin.write("\n")
    first.stdin.flush()
    _until(first, "Episode 3: ")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    with (tmp_path / "t" / NAME).open("a") as journal:
        journal.write('{"event": "verd')  # a line that was half written
    second = _process("resume", tmp_path / "t")
    shown, errors = second.communicate("s\n" + "\ns\n" * 3 + "\n")
    assert second.returncode == 0, errors
    blind, _, unblinded = shown.partition("The trial is over.")
    assert blind.index("Episode 3: ") < blind.index("Episode 4, ") and "Episode 1" not in blind
    assert "-net" not in blind and "fast-net" in unblinded
    rows = [(row["episode"], row["verdict"], row["note"]) for row in verdicts(tmp_path / "t")]
    assert rows == [(1, "success", ""), (2, "failure", "fell"), *((i, "success", "") for i in range(3, 7))]
    result = json.loads((tmp_path / "t" / "result.json").read_text())
    assert result["plan"] == plans.read(tmp_path / "t").checksum and result["episodes"] == 6


def test_the_page_shows_names_as_text(tmp_path):
    """A policy's name or a note with a tag in it must not become part of the page."""
    folder = begin(trial(tmp_path / "t", ("<b>x", "y"), max_episodes=4), manual=True)
    run(folder, by_hand, Operator("", "s <script>", *islice(cycle(["", "s"]), 6), "").desk)
    page = Path(folder / "report.html").read_text()
    assert "<b>x" not in page and "&lt;b&gt;x" in page and "<script>" not in page and page.count("<svg") == 2
