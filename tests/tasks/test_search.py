"""Agentic search: the engine's scores, questions with one answer, gold searchers that find it, and what is paid."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from tasks.check import compute_payoffs, play, prove
from tasks.context import LastImages, SummaryContext, write_call
from tasks.search import HEADS, Encyclopedia, Search, WikiPage, draw_page, draw_question, make_encyclopedia
from tests.tasks.test_visual_search import play as play_turns
from vlrl.types import UserError

PAGES = (
    WikiPage("Ana", "poet", {"birthplace": "Rom"}),
    WikiPage("Rom", "city", {"mayor": "Ana", "twin": "Bel"}),
    WikiPage("Bel", "city", {"mayor": "Ivo"}),
)


def test_the_engine_scores_by_bm25():
    """Golden: k1 = 1.5, b = 0.75, Lucene's idf, by hand; the pages have 6, 8 and 6 words."""
    book, mean = Encyclopedia(PAGES), 20 / 3

    def term(count: int, length: int, containing: int) -> float:
        idf = math.log(1 + (3 - containing + 0.5) / (containing + 0.5))
        return idf * count * 2.5 / (count + 1.5 * (0.25 + 0.75 * length / mean))

    assert book.score("Rom") == pytest.approx([term(1, 6, 2), term(1, 8, 2), 0.0])
    assert book.score("rom, ANA rom?") == pytest.approx(
        [2 * term(1, 6, 2) + term(1, 6, 2), 2 * term(1, 8, 2) + term(1, 8, 2), 0.0]
    )
    assert book.score("Ivo") == pytest.approx([0.0, 0.0, 1.02705], abs=1e-5)
    assert (book.find("city mayor Ivo", 3), book.find("city", 1), book.find("nobody", 3)) == ([2, 1], [2], [])


def answers_to(text: str, book: Encyclopedia) -> set[str]:
    """What a question asks for in all of a world, read from its words alone."""
    phrase = re.fullmatch(r"(?:Who|What) is (.*)\?", text)[1]
    relations = []
    names = "|".join({relation for page in book.pages for relation in page.facts})
    while step := re.match(rf"the ({names}) of ", phrase):
        relations.insert(0, step[1])
        phrase = phrase[step.end() :]
    described = re.fullmatch(r"the (.*) whose (.*) is (in the )?(.*)", phrase)
    pages = [page for page in book.pages if page.title == phrase]
    if described:
        head, relation, decade, value = described.groups()
        pages = [page for page in book.pages if page.head == head and relation in page.facts]
        pages = [p for p in pages if (p.facts[relation][:3] + "0s" if decade else p.facts[relation]) == value]
    values = {page.title for page in pages}
    for relation in relations:
        values = {page.facts[relation] for page in book.pages if page.title in values}
    return values


@pytest.mark.parametrize("fuzz", [0, 1, 2])
def test_a_question_has_one_answer_in_its_world(fuzz):
    """INJECT and FUZZ leave names out: what is left of the question must still lead to one answer."""
    rng = np.random.default_rng(fuzz)
    for seed in range(60):
        book = make_encyclopedia(seed, seed, 20)
        assert len(book.by_title) == len(book.pages) == 60
        for hops in (1, 2, 4):
            question = next(filter(None, (draw_question(rng, book, hops, fuzz, 5) for _ in range(500))))
            assert answers_to(question.text, book) == {question.answer}, question.text
            assert sum(tool == "search" for tool, _ in question.calls) == hops == len(question.relations)
            if fuzz:  # neither the first page's name nor those between are said
                opened = [book.pages[number - 1].title for tool, number in question.calls if tool == "visit"]
                assert not any(re.search(rf"\b{title}\b", question.text) for title in opened[-hops:]
                               if title not in question.start.text)  # fmt: skip


def test_blurred_questions_have_several_candidates():
    """A decade is on no page: who searches for what is said has to open pages that do not fit."""
    task = Search(hops=(1, 1), fuzz=(2, 2))
    opened = [len(sample.answer.calls) - 1 for sample in task.samples("test")[:60]]
    assert min(opened) == 1 and np.mean(opened) > 1.5


def test_worlds_are_stable_and_differ_in_their_facts():
    """A policy that learned one world by heart knows nothing of the next, whose names are the same."""
    first, again = make_encyclopedia(3, 5, 8), make_encyclopedia.__wrapped__(3, 5, 8)
    assert first.pages == again.pages
    other = make_encyclopedia(3, 6, 8)
    assert first.by_title.keys() == other.by_title.keys() and first.by_title != other.by_title
    assert {page.head for page in first.pages} <= {head for heads in HEADS.values() for head in heads}


def test_what_the_test_asks_is_asked_in_no_training_question():
    """By the fact: its worlds say other things of it, and hops before it differ."""
    task = Search(worlds=20, size=8, hops=(1, 2), fuzz=(0, 0))

    def facts(split):
        for sample in task.samples(split)[:400]:
            question, book = sample.answer, make_encyclopedia(0, int(sample.tags["world"]), 8)
            yield book.follow(question.start.titles[0], question.relations[:-1]), question.relations[-1]

    train, test = set(facts("train")), set(facts("test"))
    assert not train & test and len(test) > 5 and len(train) > 20


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"worlds": 50, "size": 6, "fuzz": (0, 1), "thinking": True, "template": "short"},
        {"hops": (8, 8), "turns": 128, "pages": "picture"},
        {"context": SummaryContext(every=2)},
        {"pages": "picture", "context": LastImages(images=1)},
    ],
)
def test_gold_searches_find_every_answer(options):
    """Demonstrations would teach to give up, or to know what was not read."""
    task = Search(**options)
    for split in ("train", "test"):
        for sample in task.samples(split)[:30]:
            score, _ = play(task, sample, None, "original_px")
            assert (task.reward(score), score.correct, score.reason) == (1.0, 1.0, None), sample.prompt.text
    assert [finding for finding in prove(task, 4) if finding.problem] == []


def test_nothing_but_the_answer_is_paid():
    """Searching, guessing, listing all names and never answering earn nothing; a malformed call costs its share."""
    task = Search(hops=(1, 1), fuzz=(0, 0), turns=4)
    sample = task.samples("train")[0]
    right, names = sample.answer.answer, " ".join(make_encyclopedia(0, 0, 40).by_title)
    look, visit = write_call("search", {"query": "poet"}), write_call("visit", {"page": 3})
    replies = {
        "guess": [f"<answer>{right}</answer>"], "search": [look, visit, "<answer>nobody</answer>"],
        "names": [f"<answer>{names}</answer>"], "some": [f"<answer>{right} {names[:40]}</answer>"],
        "never": [look, visit, look, visit], "untagged": [right],
        "malformed": ["<tool_call>search</tool_call>", f"<answer>{right}</answer>"],
    }  # fmt: skip
    scores = {name: play_turns(task, sample, texts).score for name, texts in replies.items()}
    parts = {name: tuple(score.parts.values()) for name, score in scores.items()}
    assert parts == {
        "guess": (1.0, 1.0), "search": (0.0, 1.0), "names": (0.0, 1.0), "some": (0.0, 1.0), "never": (0.0, 0.0),
        "untagged": (0.0, 0.0), "malformed": (1.0, 0.5),
    }  # fmt: skip
    paid = compute_payoffs(task, samples=40)
    assert paid["gold"].reward == 1.0 and paid["constant"].reward <= paid["constant"].correct <= 0.15
    assert scores["never"].reason == "no_answer"


def test_tools_answer_in_text_or_in_pictures():
    """A page that is not there is refused; a picture holds what the text says."""
    task = Search(fuzz=(0, 0), hops=(1, 1), pages="picture", text_height=20)
    sample = task.samples("test")[0]
    search = write_call("search", {"query": "qqq"})
    calls = [search, *(write_call("visit", {"page": page}) for page in (999, 1))]
    episode = play_turns(task, sample, [*calls, "<answer>x</answer>"])
    shown = [turn.step.observation for turn in episode.turns[:3]]
    assert shown[0].text == "No page has these words." and "there is no page 999" in shown[1].text
    first = make_encyclopedia(0, 0, 40).pages[0]
    assert shown[2].images[0].tobytes() == draw_page(first.text, 20).tobytes()
    assert draw_page(f"{first.text}\nmore", 20).height > shown[2].images[0].height > 80
    assert task.metrics([episode]) | {"hops/1": 0.0, "fuzz/0": 0.0, "tool_calls": 3.0} == task.metrics([episode])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"turns": 129}, "task.turns: 129: must be 1 to 128"),
        ({"hops": (3, 2)}, "task.hops"),
        ({"hops": (0, 2)}, "task.hops"),
        ({"fuzz": (0, 3)}, "task.fuzz"),
        ({"size": 3}, "task.size: 3: must be"),
        ({"worlds": 0}, "task.pool, held_out, worlds"),
        ({"results": 0}, "task.results: 0"),
        ({"pages": "pdf"}, "task.pages: 'pdf': must be text or picture"),
        ({"text_height": 4}, "task.text_height"),
        ({"hops": (9, 9), "turns": 10}, "task.hops, task.fuzz: 9, 0: must be what a world has questions of"),
        ({"weights": {"tool": 1.0}}, "task.weights.tool"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    """In one line that names the option."""
    with pytest.raises(UserError, match=message) as caught:
        Search(**options)
    assert "\n" not in str(caught.value)
