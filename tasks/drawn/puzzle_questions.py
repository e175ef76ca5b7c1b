"""What a jigsaw task asks and how it is answered: an order of places, in numbers or words, or how two pieces lay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rewards import order, parse
from tasks.base import THINK, check
from tasks.drawn.puzzles import Grid

KINDS, PLACES = ("full", "pair"), ("numbers", "words")
CUT = "The image was cut into {rows}x{columns} pieces, which were shuffled. "
TEMPLATES = {  # kind, or `backward` for full questions in reverse
    "short": {
        "full": "Solve the {rows}x{columns} jigsaw{words}.",
        "backward": "Solve the {rows}x{columns} jigsaw backward{words}.",
        "pair": "Where is {a} from {b}? {options}",
    },
    "jigsaw_r1": {
        "full": CUT + "For each place of the shuffled image, row by row, give the index of the place its piece came "
        "from.",
        "backward": CUT + "For each place of the original image, row by row, give the index of the place its piece "
        "lies at now.",
        "pair": CUT + "In the original image, where was the piece now at place {a}, seen from the one now at {b}? "
        "{options}",
    },
}  # fmt: skip
# The ends of Jigsaw-R1's prompts, byte for byte (its utils/prompt.py).
TAIL_THINK = (
    "First, output the thinking process within <think> </think> tags. "
    "Then, provide the final answer within <answer> </answer> tags. "
)
TAIL_DIRECT = "Directly output the final answer. "
TAILS = {
    "full": "The final answer should be the position indexes arranged in a {rows}x{columns} grid.",
    "pair": "The final answer should be a single letter.",
}
Answer = tuple[int, ...] | str  # places, row by row; `pair`: the right option's letter


@dataclass(frozen=True)
class Questions:
    """The options of a task that concern its questions. UserError for one that is unknown or fits no other."""

    kind: str = "full"
    backward: bool = False
    places: str = "numbers"
    repeats: bool = False  # whether an order may name a place twice, as Jigsaw-R1 lets it
    thinking: bool = False
    template: str = "short"

    def __post_init__(self):
        check(self.kind in KINDS, "kind", self.kind, "full or pair")
        check(self.places in PLACES, "places", self.places, "numbers or words")
        check(self.template in TEMPLATES, "template", self.template, f"one of {', '.join(TEMPLATES)}")
        check(not (self.backward and self.kind == "pair"), "backward", True, "false where pairs are asked for")
        fits = self.places == "numbers" or self.template == "short"
        check(fits, "places", self.places, "numbers with that template, which asks for indexes")

    def ask(self, rng: np.random.Generator, grid: Grid, origins: tuple[int, ...]) -> tuple[str, Answer, str | None]:
        """Text and answer of a puzzle's question; of a pair also the relation that the answer's letter stands for."""
        if self.kind == "full":
            return self._text(grid), tuple(order.inverse(origins)) if self.backward else origins, None
        a, b = rng.choice(len(origins), size=2, replace=False).tolist()
        truth = grid.relation(origins[a], origins[b])
        options = [grid.relations[i] for i in rng.permutation(len(grid.relations))]
        listed = " ".join(f"({chr(ord('A') + i)}) {option}" for i, option in enumerate(options))
        first, second = (grid.names[place] if self.places == "words" else place + 1 for place in (a, b))
        return self._text(grid, a=first, b=second, options=listed), chr(ord("A") + options.index(truth)), truth

    def _text(self, grid: Grid, **named: object) -> str:
        text = TEMPLATES[self.template]["backward" if self.backward else self.kind]
        if self.template == "jigsaw_r1":
            tags = "" if self.thinking else " Write it within <answer> </answer> tags."
            text += f"{tags} {TAIL_THINK if self.thinking else TAIL_DIRECT}{TAILS[self.kind]}"
        elif self.thinking:
            text += f" {THINK}"
        words = " in words" if self.places == "words" else ""
        return text.format(rows=grid.rows, columns=grid.columns, words=words, **named)

    def read(self, grid: Grid, text: str) -> parse.Parsed:
        """The places or the letter. Reasons: those of the readers, wrong_count, repeated (a place named twice)."""
        if self.kind == "pair":
            return parse.letter(text, len(grid.relations))
        parsed = order.named(text, grid.names) if self.places == "words" else parse.integers(text, 1, grid.pieces)
        if parsed.reason:
            return parsed
        if len(parsed.value) != grid.pieces:
            return parse.Parsed(reason="wrong_count")
        repeated = not self.repeats and len(set(parsed.value)) < grid.pieces
        return parse.Parsed(reason="repeated") if repeated else parsed

    def written(self, grid: Grid, answer: Answer) -> str:
        """The answer as a model writes it."""
        if self.kind == "pair":
            return answer
        if self.places == "words":
            return ", ".join(grid.names[place - 1] for place in answer)
        return " ".join(map(str, answer))

    def origins(self, answer: tuple[int, ...]) -> list[int]:
        """For each place of the shuffled image its piece's origin, from the true answer of a full question."""
        return order.inverse(answer) if self.backward else list(answer)

    def chance(self, grid: Grid) -> float:
        """What a guess among all answers gets right."""
        return 1 / len(grid.relations) if self.kind == "pair" else 1 / grid.orders
