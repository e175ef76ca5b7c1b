"""The catalogue of reward hacks (docs/rewards.md): each is worth 0, or less than the honest answer beside it."""

import pytest

from rewards import boxes, parse
from rewards import text as rewards_text
from rewards.detection import (
    cls_rl_accuracy,
    vision_r1_dual_format,
    vision_r1_precision,
    vision_r1_recall,
    vision_r1_stage,
    vlm_r1_cosine,
    vlm_r1_format,
    vlm_r1_iou,
    vlm_r1_od_ap,
    vlm_r1_od_ap50,
    vlm_r1_od_length,
    vlm_r1_repetition,
    vlm_r1_weighted_sum,
)
from rewards.gui import (
    gui_g1_edges,
    gui_g1_hit,
    gui_g1_iou,
    gui_odyssey_step,
    gui_r1_overall,
    ui_r1_action,
    ui_r1_coordinate,
    ui_r1_format,
)
from rewards.parse import MAX_CHARS, MAX_LITERAL_CHARS, Object
from rewards.text import default, multiple_choice, yes_no
from vlrl.algorithms.length_penalties import brevity

BOX, ORIGIN = (100, 200, 300, 260), (0, 0, 50, 50)
SCREEN = (1000, 800)
THOUGHT = "<think>I look.</think>"


def ui(answer, action="click", box=BOX, said="", thought=THOUGHT):
    """UI-R1's sum."""
    completion = f"{thought}<answer>{answer}</answer>"
    parts = ui_r1_action(completion, action), ui_r1_coordinate(completion, action, box, said)
    return sum(parts) + ui_r1_format(completion)


def r1(answer, action="click", place=BOX, said=""):
    return gui_r1_overall(f"{THOUGHT}<answer>{answer}</answer>", action, place, said)


def g1(answer, box=BOX):
    """GUI-G1's sum."""
    return gui_g1_hit(answer, box) + gui_g1_iou(answer, box) + gui_g1_edges(answer, box, SCREEN)


def acts(action, point="[-100, -100]", said="no input text"):
    return f"[{{'action': '{action}', 'point': {point}, 'input_text': '{said}'}}]"


def saying(action, right, wrong):
    """GUI-R1's reward of the right text and of another."""
    return tuple(r1(acts(action, said=text), action, (), right) for text in (right, wrong))


def box(*sides):
    return f'[{{"bbox_2d": {list(sides)}}}]'


CAT, CAT2 = Object("cat", (10, 10, 60, 60)), Object("cat", (200, 20, 260, 90))
DOG, ELSEWHERE = Object("dog", (100, 100, 180, 160)), Object("cat", (300, 300, 340, 340))
SEEN = [CAT, DOG, CAT2]
FLOOD = [Object("cat", (7.0 * i, 7.0 * i, 7.0 * i + 50, 7.0 * i + 50)) for i in range(43)]
DETECTED = {
    "f1": boxes.f1, "AP": vlm_r1_od_ap, "AP50": vlm_r1_od_ap50, "odLength": vlm_r1_od_length,
    "weighted sum": vlm_r1_weighted_sum,
    "Vision-R1": lambda predicted, truths: vision_r1_recall(predicted, truths) + vision_r1_precision(predicted, truths),
}  # fmt: skip
SURPLUS = {
    "H6 each box twice": SEEN * 2, "H6 each box ten times": SEEN * 10, "H6 a box elsewhere": [*SEEN, ELSEWHERE],
    "H6 a flood after": SEEN + FLOOD, "H7 unknown labels": SEEN + [Object("unicorn", ELSEWHERE.box)] * 20,
    "H8 a flood before": FLOOD + SEEN, "H8 a box elsewhere first": [ELSEWHERE, *SEEN],
    "H19 all labels wrong": [Object("cow", each.box) for each in SEEN],
    "H19 labels swapped": [Object("dog", CAT.box), Object("cat", DOG.box), Object("dog", CAT2.box)],
}  # fmt: skip


def listed(answer, truths=(), reward=vlm_r1_od_length):
    """A list as tasks read it: what cannot be read is worth 0."""
    parsed = parse.answer(f"{THOUGHT}<answer>{answer}</answer>", True, parse.objects)
    return 0.0 if parsed.reason else reward(parsed.value, list(truths))


def objects(*sides, label="cat"):
    return f'[{{"bbox_2d": [{", ".join(map(str, sides))}], "label": "{label}"}}]'


def referred(answer, thought=THOUGHT):
    completion = f"{thought}<answer>{answer}</answer>"
    return vlm_r1_iou(completion, BOX) + vlm_r1_format(completion)


def named(answer, truth, thought=THOUGHT):
    return cls_rl_accuracy(f"{thought}<answer>{answer}</answer>", truth)


CLICK = "[{'action': 'click', 'coordinate': [150, 230]}]"
AT_ORIGIN = "[{'action': 'click', 'coordinate': [10, 10]}]"
# catalogue number and name, honest answer's reward, hack's reward
HACKS = [
    ("H1 no coordinate", ui(AT_ORIGIN, box=ORIGIN), ui("[{'action': 'click'}]", box=ORIGIN)),
    ("H1 no point", r1(acts("click", "[10, 10]"), place=(20, 30)), r1("[{'action': 'click'}]", place=(20, 30))),
    ("H1 negative", ui(AT_ORIGIN, box=ORIGIN), ui("[{'action': 'click', 'coordinate': [-9, 9]}]", box=(-20, 0, 5, 50))),
    ("H1 a box for a point", ui(AT_ORIGIN, box=ORIGIN), ui("[{'action': 'click', 'coordinate': [0, 0, 9, 9]}]")),
    ("H2 truth without area", ui(CLICK), ui("[{'action': 'click', 'coordinate': [0, 0]}]", box=(0, 0, 0, 0))),
    ("H2 truth without box", ui(CLICK), ui("[{'action': 'click'}]", box=())),
    ("H2 float truth", ui(CLICK, box=(99.5, 200, 300, 260.5)), ui("[{'action': 'click'}]", box=(0.5, 0.5, 9.0, 9.0))),
    (
        "H3 scroll anywhere",
        ui("[{'action': 'scroll', 'input_text': 'down'}]", "scroll", said="down"),
        ui("[{'action': 'scroll'}]", "scroll", said="down"),
    ),
    ("H3 any app", *saying("open_app", "Gmail", "Maps")),
    ("H3 any place", r1(acts("moveto", "[150, 230]"), "moveto"), r1(acts("moveto", "[1, 1]"), "moveto")),
    ("H3 any keys", *saying("hotkey", "ctrl c", "ctrl v")),
    ("H4 tiny box", g1(box(*BOX)), g1(box(199, 229, 201, 231))),
    ("H4 whole screen", g1(box(*BOX)), g1(box(0, 0, *SCREEN))),
    ("H4 box without area", g1(box(*BOX)), g1(box(200, 230, 200, 230))),
    ("H4 inverted box", g1(box(*BOX)), g1(box(300, 260, 100, 200))),
    ("H5 far edge", g1(box(*BOX)), g1(box(100, 200, 1635, 260))),
    ("H6 two boxes", g1(box(*BOX)), g1(f'[{{"bbox_2d": {list(BOX)}}}, {{"bbox_2d": [1, 1, 2, 2]}}]')),
    ("H6 two actions", ui(CLICK), ui(CLICK[:-1] + ", {'action': 'scroll'}]")),
    ("H9 empty list", r1(acts("click", "[150, 230]")), r1("[]")),
    ("H9 broken JSON", g1(box(*BOX)), g1(box(*BOX)[:-2])),
    ("H10 NaN", g1(box(*BOX)), g1('[{"bbox_2d": [NaN, 0, Infinity, 260]}]')),
    ("H10 overflow", g1(box(*BOX)), g1('[{"bbox_2d": [100, 200, 1e999, 260]}]')),
    ("H11 answer in the thoughts", ui(CLICK), ui(CLICK, thought=f"<think><answer>{CLICK}</answer></think>")),
    ("H11 two answers", ui(CLICK), ui(f"{CLICK}</answer><answer>{CLICK}")),
    ("H11 no thoughts", ui(CLICK), ui(CLICK, thought="")),
    ("H11 text after the answer", ui(CLICK), ui(f"{CLICK}</answer> or so")),
    ("H12 computed point", r1(acts("click", "[150, 230]")), r1(acts("click", "[75*2, 230]"))),
    ("H12 call", r1(acts("click", "[150, 230]")), r1("__import__('os').getcwd()")),
    ("H13 letter", *saying("scroll", "up", "u")),
    ("H13 all directions", *saying("scroll", "up", "updown")),
    ("H13 part of a word", *saying("type", "red", "r")),
    ("H13 verdict", rewards_text.verdict("Status: success"), rewards_text.verdict("Status: unsuccessful")),
    ("H13 echoed verdict", rewards_text.verdict("Status: success"), rewards_text.verdict("Status: success or failure")),
    ("H13 repeated word", rewards_text.token_f1("red", "red"), rewards_text.token_f1("red red red", "red")),
    ("H14 empty text", rewards_text.similar("hello", "hello"), rewards_text.similar("", "hello")),
    ("H14 empty step", gui_odyssey_step("TYPE", "a", "TYPE", "a"), gui_odyssey_step("TYPE", "", "TYPE", "a")),
    ("H14 empty typing", *saying("type", "red", "")),
    ("H16 padding", max(brevity([True, True], [10, 512])), brevity([True, True], [10, 512])[1]),
    ("H20 centre of the screen", boxes.near((100, 100), (90, 90), SCREEN), boxes.near((500, 400), (90, 90), SCREEN)),
    *((f"{hack}: {name}", reward(SEEN, SEEN), reward(predicted, SEEN))
      for hack, predicted in SURPLUS.items() for name, reward in DETECTED.items()),
    ("H6 two boxes for one", referred(box(*BOX)), referred(f"{box(*BOX)[:-1]}, {box(1, 1, 2, 2)[1:]}")),
    ("H6 repeated objects", 1 + vlm_r1_repetition(SEEN), 1 + vlm_r1_repetition(SEEN * 10)),
    *((f"H9 negative image, {hack}", listed("[]"), listed(answer)) for hack, answer in [
        ("broken JSON", objects(1, 1, 5, 5)[:-2]), ("a number", "5"), ("prose", "I see no cat"), ("nothing", ""),
        ("a box", objects(1, 1, 5, 5)), ("half a box", objects(1, 1, 5)), ("a list in a list", "[[]]"),
    ]),
    ("H9 negative image, None", listed("None"), listed("None of them, or perhaps a cat")),
    ("H9 Vision-R1, broken JSON", vision_r1_dual_format("[]", 0), vision_r1_dual_format("[{", 0)),
    ("H9 Vision-R1, boxes", vision_r1_dual_format("None", 0), vision_r1_dual_format(objects(1, 1, 5, 5), 0)),
    *((f"H10 {side}", listed(objects(*CAT.box), [CAT]), listed(objects(side, 10, 60, 60), [CAT]))
      for side in ("NaN", "-Infinity", "1e400", "null", '"10"', "true", "9" * 400)),
    ("H10 NaN, negative image", listed("[]"), listed(objects("NaN", 10, 60, 60))),
    ("H10 NaN, referring", referred(box(*BOX)), referred('{"bbox_2d": [NaN, 200, 300, 260]}')),
    ("H11 two lists", listed(objects(*CAT.box), [CAT]), listed(f"{objects(1, 1, 5, 5)}\n{objects(*CAT.box)}", [CAT])),
    ("H11 two answers", listed("[]"), listed("[]</answer><answer>[]")),
    ("H11 box in the thoughts", referred(box(*BOX)), referred("", f"<think><answer>{box(*BOX)}</answer></think>")),
    ("H11 no thoughts", referred(box(*BOX)), referred(box(*BOX), "")),
    ("H11 two classes", named("cat", "cat"), named("cat</answer><answer>dog", "cat")),
    ("H12 call in a list", listed("[]"), listed("[].__class__")),
    ("H13 all letters", multiple_choice("A", "A"), multiple_choice("A. B. C. D.", "A")),
    ("H13 a word's letter", multiple_choice("A", "A"), multiple_choice("A cat", "A")),
    ("H13 no in know", yes_no("no", "no"), yes_no("I do not know", "no")),
    ("H13 yes and no", yes_no("yes", "yes"), yes_no("yes and no", "yes")),
    ("H13 neither yes nor no", yes_no("yes", "yes"), yes_no("maybe", "maybe")),
    ("H13 a number in a text", named("Boeing 747", "Boeing 747"), named("I count 747 reasons", "Boeing 747")),
    ("H13 a number with words", default("3", "3"), default("3 of the 5", "3")),
    ("H14 no name", named("cat", "cat"), named("", "")),
    ("H15 twice as long", vlm_r1_cosine(0, 1.0), vlm_r1_cosine(2048, 1.0)),
    ("H15 a wrong answer", vlm_r1_cosine(0, 1.0), vlm_r1_cosine(0, 0.0)),
    ("H15 longer is no better", vlm_r1_cosine(1023, 1.0), vlm_r1_cosine(1500, 1.0)),
    ("H21 good enough", vision_r1_precision([CAT], [CAT], vision_r1_stage(1500).precision_band),
     vision_r1_precision([Object("cat", (10, 10, 60, 45))], [CAT], vision_r1_stage(1500).precision_band)),
    ("a hundred thousand objects", listed(objects(*CAT.box), [CAT]),
     listed(f"[{', '.join([objects(*CAT.box)[1:-1]] * 100_000)}]", [CAT])),
    ("a megabyte of answer", referred(box(*BOX)), referred(box(*BOX) + " " * 1_000_000)),
    ("long completion", ui(CLICK), ui(CLICK, thought=f"<think>{'a' * MAX_CHARS}</think>")),
    ("long answer", ui(CLICK), ui(CLICK + " " * MAX_LITERAL_CHARS + ".")),
    ("a hundred thousand boxes", g1(box(*BOX)), g1(f"[{', '.join([box(*BOX)[1:-1]] * 100_000)}]")),
    ("a megabyte", g1(box(*BOX)), g1(box(*BOX) + " " * 1_000_000)),
]  # fmt: skip


@pytest.mark.parametrize(("honest", "hack"), [row[1:] for row in HACKS], ids=[row[0] for row in HACKS])
def test_a_hack_is_worth_less(honest, hack):
    """A policy finds every way to be paid without doing the task, and then does nothing else."""
    assert honest > 0
    assert hack == 0 or hack < honest


def test_completions_run_no_code(tmp_path):
    """The published reward evaluates the model's text: a completion could delete the user's files."""
    file = tmp_path / "written"
    for code in (f"open({str(file)!r}, 'w')", f"[{{'action': open({str(file)!r}, 'w'), 'point': [1, 2]}}]"):
        assert ui(code) == r1(code) == g1(code) == 0.0
    assert not file.exists()
