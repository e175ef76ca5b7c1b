"""Agentic search: questions whose answer is some pages away; tools `search` and `visit` (ASearcher, arXiv 2508.07976).

The web is a small world that is drawn: people, companies and cities, a page each, whose facts name one another.
Questions are made as the paper's data agent makes them: from a simple fact on, INJECT replaces an entity's name by a
fact that leads to it, a hop more each time, and FUZZ describes what the first page is about instead of naming it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageDraw
from sklearn.feature_extraction.text import CountVectorizer

from rewards import parse
from rewards.text import TextTruth, grade
from tasks.base import FORM, THINK, Rendered, Task, answer_markup, check, check_weights, generator
from tasks.context import FULL, ContextStrategy, ToolEnvironment, tool_metrics, with_context, write_call
from tasks.data import questions
from tasks.metrics import accuracy_by, parse_failures
from tasks.rendering.figures import font, held_out, one
from tasks.tools import Tool, Toolbox, ToolError
from vlrl.types import Annotation, Environment, Episode, Frame, Message, Observation, Sample, Score, Split, UserError

WEIGHTS = {"accuracy": 1.0, **FORM}
ASKS = (
    "Find it in the encyclopedia: search shows the numbers of pages, visit opens one of them. "
    "Then answer inside <answer> </answer>."
)
MAX_TURNS = 128  # the paper's limit for its largest model
MAX_HOPS, MAX_SIZE = 20, 1_000
TRIES, WORLDS = 100, 10  # questions that are drawn in a world, and worlds, until one is sound
K1, B = 1.5, 0.75  # of BM25: how fast a term saturates, how much a page's length counts

# The world. A page has a fact of each relation of its kind: another page's title, or a year.

RELATIONS = {
    "person": {"birth year": "year", "birthplace": "city", "employer": "company"},
    "company": {"founding year": "year", "founder": "person", "seat": "city"},
    "city": {"charter year": "year", "mayor": "person", "largest company": "company"},
}
HEADS = {
    "person": ("glazier", "botanist", "painter", "surgeon", "violinist", "printer", "surveyor", "poet"),
    "company": tuple(f"maker of {each}" for each in ("kites", "clocks", "boats", "lamps", "pianos", "tents", "locks")),
    "city": tuple(f"city on the {each}" for each in ("Aun", "Brul", "Creth", "Drem", "Evel", "Fask")),
}
ONSETS, VOWELS, CODAS = "bdfgklmnprstvz", "aeiou", ("", "l", "n", "r", "s")


@dataclass(frozen=True)
class WikiPage:
    title: str
    head: str  # what it is: a glazier, a maker of kites
    facts: Mapping[str, str]  # relation -> the title of another page, or a year

    @property
    def summary(self) -> str:
        return f"{self.title} is a {self.head}."

    @property
    def text(self) -> str:
        return "\n".join([self.summary, *(f"{relation}: {value}" for relation, value in self.facts.items())])


class Encyclopedia:
    """The pages of one world, and a search engine over them: BM25 (Robertson and Zaragoza 2009, equations 3.15).

    A term's inverse document frequency is Lucene's, ln(1 + (N - n + 1/2) / (n + 1/2)), which is never negative.
    """

    def __init__(self, pages: Sequence[WikiPage]):
        self.pages = tuple(pages)
        self.by_title = {page.title: page for page in self.pages}
        self._terms = CountVectorizer(token_pattern=r"\w+")
        counts = self._terms.fit_transform([page.text for page in self.pages]).toarray().astype(float)
        length, containing = counts.sum(1, keepdims=True), (counts > 0).sum(0)
        idf = np.log1p((len(self.pages) - containing + 0.5) / (containing + 0.5))
        self._weights = idf * counts * (K1 + 1) / (counts + K1 * (1 - B + B * length / length.mean()))

    def score(self, query: str) -> np.ndarray:
        """The BM25 of each page, [pages]; a word counts as often as the query has it."""
        return self._weights @ self._terms.transform([query]).toarray()[0]

    def find(self, query: str, most: int) -> list[int]:
        """The numbers of the best pages that share a word with the query, from 0; of equal ones the first."""
        scores = self.score(query)
        return [int(i) for i in np.argsort(-scores, kind="stable")[:most] if scores[i] > 0]

    def follow(self, title: str, relations: Sequence[str]) -> str:
        """The value of the last relation, each looked up on the page that the one before names."""
        for relation in relations:
            title = self.by_title[title].facts[relation]
        return title


@lru_cache(maxsize=128)
def make_encyclopedia(seed: int, world: int, size: int) -> Encyclopedia:
    """A world with `size` pages of each kind; those of a seed have the same names. The same on every machine."""
    titles, rng = _make_titles(seed, size), np.random.default_rng([seed, size, world])
    pages = [
        WikiPage(title, one(rng, HEADS[kind]), {name: _make_fact(rng, of, titles) for name, of in relations.items()})
        for kind, relations in RELATIONS.items()
        for title in titles[kind]
    ]
    return Encyclopedia([pages[int(i)] for i in rng.permutation(len(pages))])


@lru_cache
def _make_titles(seed: int, size: int) -> Mapping[str, Sequence[str]]:
    """Titles that differ, by kind; several people have one first name."""
    rng = np.random.default_rng([seed, size])
    words = _make_words(rng, 3 * size + max(2, size // 3))
    last, companies, cities, first = words[:size], words[size : 2 * size], words[2 * size : 3 * size], words[3 * size :]
    return {"person": [f"{one(rng, first)} {each}" for each in last], "company": companies, "city": cities}


def _make_fact(rng: np.random.Generator, kind: str, titles: Mapping[str, Sequence[str]]) -> str:
    return str(rng.integers(1900, 2000)) if kind == "year" else one(rng, titles[kind])


def _make_words(rng: np.random.Generator, count: int) -> list[str]:
    """Names that differ."""
    words: dict[str, None] = {}
    while len(words) < count:
        syllables = [one(rng, ONSETS) + one(rng, VOWELS) for _ in range(2)]
        words[("".join(syllables) + one(rng, CODAS)).title()] = None
    return list(words)


# Questions about it.


@dataclass(frozen=True)
class PageDescription:
    """Where a chain begins: `text` describes each of `titles` and no other page, `query` finds them."""

    text: str
    query: str
    titles: tuple[str, ...]
    head: str = ""  # what each of them is, where `text` does not name it


@dataclass(frozen=True)
class ChainQuestion:
    """What the last of `relations`, followed in order, leads to. `calls` find it: a tool and its argument by turn."""

    start: PageDescription
    relations: tuple[str, ...]
    answer: str
    calls: tuple[tuple[str, str | int], ...]

    @property
    def text(self) -> str:
        phrase = self.start.text
        for relation in self.relations:
            phrase = f"the {relation} of {phrase}"
        return f"{'Who' if self.relations[-1] in ('founder', 'mayor') else 'What'} is {phrase}?"


def draw_question(
    rng: np.random.Generator, book: Encyclopedia, hops: int, fuzz: int, results: int, split: Split | None = None
) -> ChainQuestion | None:
    """A question of `hops` pages; None where the draw has more than one answer, or needs a page that no search shows.

    Args:
        fuzz: 0 names where the chain begins; 1 says what it is and one of its facts; 2 a decade in place of the fact
        results: pages that a search shows
        split: whose question it has to be: one fact in five is asked for in the test only
    """
    page = one(rng, book.pages)
    relations = [one(rng, tuple(page.facts))]
    if split is not None and held_out((page.title, relations[0])) != (split == "test"):
        return None
    path = {page.title}
    for _ in range(hops - 1):
        leads = [
            (each, relation) for each in book.pages for relation, value in each.facts.items()
            if value == page.title and each.title not in path
        ]  # fmt: skip
        if not leads:
            return None
        page, relation = one(rng, leads)
        relations.insert(0, relation)
        path.add(page.title)
    if fuzz == 2 and relations[0] == next(iter(page.facts)):  # its decade would be said
        return None
    start = _describe(rng, book, page, fuzz, relations[0])
    answers = {book.follow(title, relations) for title in start.titles}
    calls = _plan(book, start, relations, results)
    if len(answers) > 1 or calls is None:
        return None
    return ChainQuestion(start, tuple(relations), answers.pop(), calls)


def _describe(
    rng: np.random.Generator, book: Encyclopedia, page: WikiPage, fuzz: int, followed: str
) -> PageDescription:
    """The page by its name, or by a fact other than the one that is followed; a year as its decade alone."""
    if fuzz == 0:
        return PageDescription(page.title, page.title, (page.title,))
    year, *others = page.facts
    relation = year if fuzz == 2 else one(rng, [each for each in others if each != followed])
    known = slice(3 if fuzz == 2 else None)  # of the fact: 195 of 1956
    value = page.facts[relation][known]
    titles = tuple(e.title for e in book.pages if e.head == page.head and e.facts[relation][known] == value)
    if fuzz == 2:
        return PageDescription(f"the {page.head} whose {relation} is in the {value}0s", page.head, titles, page.head)
    return PageDescription(f"the {page.head} whose {relation} is {value}", f"{page.head} {value}", titles, page.head)


def _plan(
    book: Encyclopedia, start: PageDescription, relations: Sequence[str], results: int
) -> tuple[tuple[str, str | int], ...] | None:
    """The calls of a searcher that knows what the question says and opens what may fit; None: a page is not shown."""
    query, titles, head, calls = start.query, start.titles, start.head, []
    for relation in relations:
        calls.append(("search", query))
        for number in book.find(query, results):
            page = book.pages[number]
            if page.title in titles or page.head == head:
                calls.append(("visit", number + 1))
            if page.title in titles:
                break
        else:
            return None
        query = page.facts[relation]
        titles, head = (query,), ""
    return tuple(calls)


# The tools.


@dataclass(frozen=True)
class SearchTools:
    """What a model may call in one world."""

    book: Encyclopedia
    results: int
    pages: Literal["text", "picture"]
    text_height: int

    def search(self, query: str) -> str:
        """Finds pages of the encyclopedia by the words in them, the best first.

        Args:
            query: the words
        """
        numbers = self.book.find(query, self.results)
        return "\n".join(f"[{i + 1}] {self.book.pages[i].summary}" for i in numbers) or "No page has these words."

    def visit(self, page: int) -> str | Image.Image:
        """Opens a page of the encyclopedia.

        Args:
            page: its number, as search shows it
        """
        if not 1 <= page <= len(self.book.pages):
            raise ToolError(f"arguments.page: there is no page {page}; search shows numbers of pages")
        text = self.book.pages[page - 1].text
        return text if self.pages == "text" else draw_page(text, self.text_height)


@lru_cache(maxsize=128)
def make_toolbox(tools: SearchTools) -> Toolbox:
    return Toolbox([Tool(tools.search), Tool(tools.visit)])


def draw_page(text: str, height: int) -> Image.Image:
    """The text in black on white, `height` pixels a letter, in an image that it fills."""
    letters, margin = font(height), height
    box = ImageDraw.Draw(Image.new("RGB", (1, 1))).multiline_textbbox((margin, margin), text, font=letters)
    image = Image.new("RGB", (int(box[2]) + margin, int(box[3]) + margin), "white")
    ImageDraw.Draw(image).multiline_text((margin, margin), text, fill="black", font=letters)
    return image


class Search(Task):
    """Samples: a question about a drawn world -> a `ChainQuestion`; episodes of search, visit and an answer.

    A fact that the test asks for (the birthplace of one person) is asked for in no training question. A question has
    one answer, and searching for its words and opening what may fit finds it within `turns`.
    Parts: `accuracy`, 0 or 1, the same words as the answer (no F1, which pays for lists of names); `format`, 0 where
    the answer's tags are wrong, else the share of turns without a malformed call. No part pays for a search.

    Args:
        worlds: of the same names with other facts, so that no fact can be learned by heart
        size: pages of each kind in a world: people, companies, cities
        hops: pages to be read, least and most
        fuzz: least and most: 0 names what the first page is about; 1 says what it is and one of its facts; 2 says a
            decade instead of the fact, so that several pages may have to be opened
        results: pages that a search shows
        pages: how a page is shown, as text or as a rendered picture
        text_height: of a picture's letters, in pixels
        turns: of an episode at most
        context: what of the conversation is shown: full, last_images or summary (tasks/context.py)

    Raises UserError for options out of range, and where the worlds have no such question.
    """

    def __init__(
        self,
        *,
        pool: int = 100_000,
        held_out: int = 512,
        worlds: int = 1,
        size: int = 40,
        hops: tuple[int, int] = (1, 3),
        fuzz: tuple[int, int] = (0, 2),
        results: int = 5,
        pages: Literal["text", "picture"] = "text",
        text_height: int = 14,
        turns: int = 32,
        context: ContextStrategy = FULL,
        thinking: bool = False,
        template: Literal["short", "guided"] = "guided",
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        check(min(pool, held_out, worlds) > 0, "pool, held_out, worlds", (pool, held_out, worlds), "at least 1")
        check(4 <= size <= MAX_SIZE, "size", size, f"4 to {MAX_SIZE} pages of each kind")
        check(1 <= hops[0] <= hops[1] <= MAX_HOPS, "hops", hops, f"least and most, 1 to {MAX_HOPS}")
        check(0 <= fuzz[0] <= fuzz[1] <= 2, "fuzz", fuzz, "least and most, 0 to 2")
        check(1 <= results <= 50, "results", results, "1 to 50")
        check(pages in ("text", "picture"), "pages", pages, "text or picture")
        check(7 <= text_height <= 100, "text_height", text_height, "7 to 100 pixels")
        check(1 <= turns <= MAX_TURNS, "turns", turns, f"1 to {MAX_TURNS}")
        check(template in ("short", "guided"), "template", template, "short or guided")
        check(seed >= 0, "seed", seed, "at least 0")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self.worlds, self.size, self.hops, self.fuzz = worlds, size, tuple(hops), tuple(fuzz)
        self.results, self.turns, self.context, self.thinking, self.seed = results, turns, context, thinking, seed
        self._asks = [*([ASKS] if template == "guided" else []), *([THINK] if thinking else [])]
        self._tools = partial(SearchTools, results=results, pages=pages, text_height=text_height)
        self._sizes: dict[Split, int] = {"train": pool, "test": held_out}
        for blur in range(self.fuzz[0], self.fuzz[1] + 1):
            for split in self._sizes:
                self._draw(generator(seed, split, 0), split, self.hops[1], blur)

    def samples(self, split: Split) -> Sequence[Sample]:
        return Rendered(self._sizes[split], partial(self._sample, split))

    def _sample(self, split: Split, index: int) -> Sample:
        rng = generator(self.seed, split, index)
        hops, fuzz = _draw_between(rng, self.hops), _draw_between(rng, self.fuzz)
        world, question = self._draw(rng, split, hops, fuzz)
        message = Message("user", (" ".join([question.text, *self._asks]),))
        prompt = Observation.from_messages([message], self._toolbox(world).schemas)
        tags = {"world": str(world), "hops": str(hops), "fuzz": str(fuzz)}
        return Sample(f"search/{split}/{index:06d}", prompt, question, tags=tags)

    def _draw(self, rng: np.random.Generator, split: Split, hops: int, fuzz: int) -> tuple[int, ChainQuestion]:
        """A world and a question about it."""
        for _ in range(WORLDS):
            world = int(rng.integers(self.worlds))
            book = make_encyclopedia(self.seed, world, self.size)
            for _ in range(TRIES):
                question = draw_question(rng, book, hops, fuzz, self.results, split)
                if question and len(question.calls) < self.turns:
                    return world, question
        need = "what a world has questions of: take fewer hops, less fuzz, more size, results or turns"
        raise UserError(f"task.hops, task.fuzz: {hops}, {fuzz}: must be {need}")

    def _toolbox(self, world: int) -> Toolbox:
        return make_toolbox(self._tools(make_encyclopedia(self.seed, world, self.size)))

    def environment(self, sample: Sample) -> Environment:
        script = [*(partial(self._call, *call) for call in sample.answer.calls), partial(self.gold, sample)]
        toolbox = self._toolbox(int(sample.tags["world"]))
        return with_context(ToolEnvironment(sample.prompt, toolbox, self.turns, script=script), self.context)

    def _call(self, tool: str, argument: str | int, frames: Sequence[Frame]) -> str:
        thought = "<think>I look for it.</think>\n" if self.thinking else ""
        return thought + write_call(tool, {"query" if tool == "search" else "page": argument})

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The answer; an episode's environment calls the tools before."""
        return answer_markup(sample.answer.answer, self.thinking, "I read it on the page.")

    def score(self, episode: Episode) -> Score:
        """Parts `accuracy` and `format`; what is no answer in its tags earns nothing."""
        truth = TextTruth("text", episode.sample.answer.answer)
        marks = (Annotation("truth", "text", label=truth.answer),)
        parsed = parse.answer_text(episode.completion, self.thinking)
        if parsed.reason or not parsed.value.strip():
            parts = {"accuracy": 0.0, "format": 0.0}
            return Score(parts, 0.0, reason=parsed.reason or "empty_answer", marks=marks)
        malformed = sum(turn.step.info.get("malformed_calls", 0.0) > 0 for turn in episode.turns)
        right = grade(parsed.value, truth).correct
        marks += (Annotation("prediction", "text", label=parsed.value),)
        parts = {"accuracy": right, "format": 1 - malformed / len(episode.turns)}
        return Score(parts, right, answer=parsed.value.strip(), marks=marks)

    def truth(self, value: Any) -> TextTruth:
        """The right words from JSON, as `questions.read_truth`."""
        return questions.read_truth(value)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """How tools are used (`tool_metrics`), accuracy by hops and by fuzz, parse failures."""
        return {
            **tool_metrics(episodes),
            **{
                f"{key}/{name}": value for key in ("hops", "fuzz") for name, value in accuracy_by(episodes, key).items()
            },
            "parse_fail": parse_failures(episodes),
        }


def _draw_between(rng: np.random.Generator, ends: tuple[int, int]) -> int:
    return int(rng.integers(ends[0], ends[1] + 1))
