"""Tables to LaTeX: drawing, grading, hacks, ranking, files, and the guard around an installed LaTeX."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rewards.tables import latex as write_latex
from rewards.tables import read_table
from tasks.data.questions import TableTruth
from tasks.rendering import latex
from tasks.rendering.latex import MOST, looks, render_table
from tasks.table_to_latex import TableToLatex
from vlrl.evaluation.score import score_file
from vlrl.types import Data, Decision, Episode, Frame, Observation, Sample, Step, Turn, UserError

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "hacks"))  # scripts and helpers, no packages
sys.path.insert(0, str(Path(__file__).parents[1] / "rewards"))

from hostile_tables import hostile
from table_ranking import ranked

FRAME = Frame("original_px", (64, 64), (64, 64))
WHOLE = "\\begin{tabular}{cc}\n1 & 2 \\\\\n3 & 4 \\\\\n\\end{tabular}"
ALL = {"structure": 0.5, "content": 1.0, "format": 0.5, "visual": 0.5}


def truth(written):
    return TableTruth(written, read_table(written).value)


def scored(task, completion, answer):
    prompt = Observation(("?",))
    decision = Decision(completion, logprobs=None, entropy=None, truncated=False, frames=(FRAME,))
    return task.score(Episode(Sample("1", prompt, answer), 0, [Turn(prompt, decision, Step(prompt, terminated=True))]))


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("split", ["train", "test"])
def test_drawn_truths_are_what_their_latex_says(level, split):
    """A slip in the drawing's own LaTeX would pay nobody; looking at the picture is worth the same as the table."""
    task = TableToLatex(level=level, size=(192, 192), weights=ALL)
    for sample in task.samples(split)[:12]:
        assert read_table(sample.answer.latex).value.cells == sample.answer.table.cells
        score = scored(task, task.gold(sample, ()), sample.answer)
        assert set(score.parts.values()) == {1.0} and score.correct == 1.0
        assert np.ptp(np.asarray(sample.prompt.images[0].convert("L"), dtype=int)) > 100  # something is drawn


def test_no_test_table_holds_a_training_tables_texts():
    """Otherwise the reported accuracy is memory."""
    task = TableToLatex()
    train, test = ({sample.answer.latex for sample in task.samples(split)[:400]} for split in ("train", "test"))
    assert len(test) > 200 and not train & test


@pytest.mark.parametrize(
    ("said", "parts", "correct"),
    [
        (WHOLE, (1, 1, 1, 1), 1), (WHOLE.replace("{cc}", "{|r|l|}").replace("1", "\\hline 1"), (1, 1, 1, 1), 1),
        (WHOLE.replace("4", "$4$"), (1, 1, 1, 1), 1), (WHOLE.replace("4", "5"), (3 / 4, 1, 1 - 1 / 7, 1), 0),
        (WHOLE.replace("1 & 2 \\\\\n", ""), (1 / 4, 1 - 3 / 7, 1 - 3 / 7, 1), 0),
        (WHOLE.translate(str.maketrans(dict.fromkeys("1234", ""))), (0, 1, 3 / 7, 1), 0),
    ],
)  # fmt: skip
def test_an_answer_is_judged_as_a_table(said, parts, correct):
    """By its cells and spans; how its LaTeX is written, ruled and aligned does not count."""
    score = scored(TableToLatex(), f"<answer>{said}</answer>", truth(WHOLE))
    assert tuple(score.parts.values()) == pytest.approx(parts)
    assert score.correct == correct


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (WHOLE + WHOLE, "many_tables"), (f"The table: {WHOLE}", "outside_table"), 
        (WHOLE.replace("\n", "\n%"), "not_closed"),
        ("% " + WHOLE.replace("\n", " "), "no_table"), 
        (WHOLE.replace("1", "\\multicolumn{1000}{c}{1}"), "too_wide_row"),
        (WHOLE.replace("1", "\\multirow{1000}{*}{1}"), "bad_span"), 
        (WHOLE.replace("1", "1\\phantom{9}"), "unknown_command"),
        (WHOLE.replace("1", "\\textcolor{white}{1}"), "unknown_command"), 
        (WHOLE.replace("1", "1\u200b9"), "hidden_text"),
        (f"\\begin{{tabular}}{{cc}}{'& \\\\' * 4000}\\end{{tabular}}", "too_many_cells"),
        ("\\input{gold}", "no_table"), (WHOLE.replace("4", "\\input{gold}"), "unknown_command"), ("", "no_table"),
    ],
)  # fmt: skip
def test_hacks_earn_nothing(said, reason):
    """Two tables, one in text or comments, giant spans, what cannot be seen, thousands of empty cells."""
    score = scored(TableToLatex(weights=ALL), f"<answer>{said}</answer>", truth(WHOLE))
    assert (set(score.parts.values()), score.correct, score.reason) == ({0.0}, 0.0, reason)


def test_hostile_completions_are_graded():
    """With pictures and all: every part stays in its range, and each failure has a reason."""
    task, right = TableToLatex(level=2, size=(96, 96), weights=ALL), truth(WHOLE)
    for number in range(600):
        score = scored(task, f"<answer>{hostile(number)}</answer>", right)
        assert all(0 <= part <= 1 for part in score.parts.values())
        assert (score.answer is None) == (score.reason is not None)


def test_a_lesser_corruption_ranks_above_a_greater_one():
    """200 tables with 1 to 3 edits, and with 1 to 3 more: else the reward points away from the truth."""
    found = ranked(200, weights={**ALL, "visual": 0.0})
    assert np.mean(found["reward"] > 0) >= 0.99
    assert np.mean(found["content"] > 0) >= 0.98


def test_pictures_tell_tables_apart():
    """The picture of another rule is less alike, that of other content less still; a huge table has a bounded one."""
    ruled = WHOLE.replace("{cc}", "{|c|c|}").replace("1 &", "\\hline 1 &").replace("4 \\\\", "4 \\\\ \\hline")
    plain, lined = truth(WHOLE).table, truth(ruled).table
    assert looks(plain, plain, render_table) == looks(lined, lined, render_table) == 1.0
    assert looks(plain, lined, render_table) < 0.7
    wide = truth(f"\\begin{{tabular}}{{*{{20}}{{c}}}}{' & '.join(['w' * 400] * 20)}{chr(92) * 2}\\end{{tabular}}").table
    assert max(render_table(wide).size) == MOST and looks(wide, plain, render_table) < 0.9


# ---- an installed LaTeX


def test_latex_is_run_without_a_shell_and_in_its_own_folder(tmp_path):
    """A model's text must not read, write or run anything on the user's machine."""
    assert "-no-shell-escape" in latex.command("pdflatex") and "--untrusted" in latex.command("tectonic")
    assert not any("shell-escape" in part and "no" not in part for part in latex.command("pdflatex"))
    settings = latex.environment(tmp_path)
    assert settings["openin_any"] == settings["openout_any"] == "p" and settings["shell_escape"] == "f"
    assert set(settings) == {"PATH", "HOME", "TMPDIR", *latex.SAFE}


def test_latex_is_given_only_what_is_written_here():
    """Of an answer that was read the document has known commands alone: none reads, writes, defines or loops."""
    for number in range(2000):
        read = read_table(hostile(number))
        if read.value is None:
            continue
        source = latex.document(read.value).removeprefix(latex.PREAMBLE)
        assert read_table(source.removesuffix("\\end{document}\n")).reason is None
        for word in ("\\input", "\\write", "\\openout", "\\csname", "\\def", "\\loop", "\\catcode", "^^", "%%"):
            assert word not in source.replace("\\%", "")


def test_limits_bound_what_is_run(tmp_path):
    """A document that computes for hours, or fills the disk or the memory, ends by itself."""
    say = "import resource as r; print([r.getrlimit(k)[0] for k in (r.RLIMIT_CPU, r.RLIMIT_AS, r.RLIMIT_FSIZE)])"
    done = subprocess.run([*latex.limits(), sys.executable, "-c", say], capture_output=True, text=True)
    assert json.loads(done.stdout) == [10, 2 << 30, 16 << 20]
    write = f"open({str(tmp_path / 'big')!r}, 'wb').write(bytes(17 << 20))"
    assert subprocess.run([*latex.limits(), sys.executable, "-c", write], capture_output=True).returncode != 0
    tight = (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (32, 32)); "
        "from tasks.rendering import latex; print(latex.limits())"
    )
    done = subprocess.run([sys.executable, "-c", tight], capture_output=True, text=True, check=True)
    assert "--nofile=32" in done.stdout and "--cpu=10" in done.stdout  # raising a limit would fail every table


def test_latex_that_is_not_installed_is_said_at_once(monkeypatch):
    """And not at the first answer, hours later."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match=r"task\.renderer: latex: needs pdflatex or tectonic"):
        TableToLatex(renderer="latex", weights=ALL)
    TableToLatex(renderer="latex")  # makes no picture


@pytest.mark.skipif(
    not (shutil.which("pdftoppm") and any(map(shutil.which, latex.ENGINES))), reason="no LaTeX is installed"
)
def test_an_installed_latex_typesets_drawn_tables():
    """Of every level; and a table with another text looks different."""
    for level in (1, 2, 3):
        table = TableToLatex(level=level, size=(192, 192)).samples("test")[0].answer.table
        assert looks(table, table, latex.typeset) == 1.0
    assert looks(truth(WHOLE).table, truth(WHOLE.replace("4", "WWW")).table, latex.typeset) < 1.0


# ---- options and files


@pytest.mark.parametrize(
    ("options", "needle"),
    [
        ({"level": 4}, "task.level"), ({"level": 3}, "task.size"), ({"measure": "bleu"}, "task.measure"),
        ({"pool": 0}, "task.pool"), ({"renderer": "word"}, "task.renderer"), ({"weights": {"visal": 1.0}}, "visal"),
        ({"template": "long"}, "task.template"), ({"seed": -1}, "task.seed"),
    ],
)  # fmt: skip
def test_options_out_of_range_stop_with_one_line(options, needle):
    """Before anything is drawn or trained."""
    with pytest.raises(UserError, match=needle):
        TableToLatex(**options)


def test_pictures_with_their_latex_are_read_from_a_file(tmp_path):
    """As Table2LaTeX-RL pairs them; the gold is the file's own LaTeX."""
    Image.new("RGB", (80, 60), "white").save(tmp_path / "a.png")
    rows = [{"image": "a.png", "latex": WHOLE, "id": 7, "difficulty": "simple"}, {"image": "a.png", "latex": WHOLE}]
    file = tmp_path / "tables.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    task = TableToLatex(data=Data(test=str(file)), measure="cells")
    sample = task.samples("test")[0]
    assert (sample.id, sample.answer, dict(sample.tags)) == ("tables/7", truth(WHOLE), {"difficulty": "simple"})
    assert sample.prompt.images[0].size == (80, 60)
    score = scored(task, task.gold(sample, ()).replace("4", "5"), sample.answer)
    assert score.parts["content"] == 3 / 4


@pytest.mark.parametrize(
    ("row", "needle"),
    [
        ({"latex": ""}, "latex: must be a text"), ({"latex": "1 & 2"}, "no table"), ({"latex": 3}, "must be a text"),
        ({"latex": WHOLE.replace("1", "\\input{a}")}, "unknown command"), 
        ({"latex": WHOLE, "image": "no.png"}, "no such image"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_before_anything_runs(tmp_path, row, needle):
    """H2: a truth that cannot be read pays everybody, or nobody."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    file = tmp_path / "bad.jsonl"
    file.write_text(json.dumps({"image": "a.png", **row}))
    with pytest.raises(UserError, match=r"bad\.jsonl, row 1: ") as raised:
        TableToLatex(data=Data(test=str(file)))
    assert needle in str(raised.value) and "\n" not in str(raised.value)


def test_rows_are_scored_without_a_model(tmp_path):
    """`vlrl score table_to_latex FILE`: LaTeX beside LaTeX."""
    rows = [{"completion": f"<answer>{said}</answer>", "answer": WHOLE} for said in (WHOLE, WHOLE.replace("4", "5"))]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, [*rows, {"completion": "x", "answer": "1 & 2"}])))
    out = []
    with pytest.raises(UserError, match="1 of 3 rows"):
        out.extend(score_file("table_to_latex", str(file)))
    assert [line.get("correct") for line in out] == [1.0, 0.0, None]


def test_an_evaluation_reports_the_parts():
    """Beside accuracy and reward, how much of structure and content is right."""
    task = TableToLatex()
    episodes = []
    for said in (WHOLE, "nothing"):
        score = scored(task, f"<answer>{said}</answer>", truth(WHOLE))
        episodes.append(Episode(Sample("1", Observation(("?",)), truth(WHOLE)), 0, [], score=score))
    assert task.metrics(episodes) == dict.fromkeys(
        ("content_gain", "structure", "content", "format", "parse_fail"), 0.5
    )
    assert write_latex(truth(WHOLE).table) == WHOLE
