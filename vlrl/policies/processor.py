"""Prompts as tokens, pixels and positions, a codec for each model family; no content becomes a template's own token."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken
from torch import Tensor

from vlrl.types import Frame, Message, Observation, OverlongError, UserError, Video, first_line

# Text to token ids: the one place where content is kept from becoming a chat template's own tokens.
#
# Content (instructions, answers, tool results, earlier turns) may spell a special token, such as `<|im_start|>`. Before
# the chat template is applied, the first character of each spelling is replaced by a private-use stand-in that the
# content does not use; after tokenization the text between special tokens that holds a stand-in is encoded again as
# plain text. Content that spells no special token gets exactly the ids of the tokenizer's own rendering.

PRIVATE_USE = range(0xF0000, 0xFFFFE)  # code points without a character; content that uses some gets others


class TextEncoder:
    """Plain text and rendered chats -> ids.

    Args:
        tokenizer: a fast tokenizer of transformers.
        reserved: ids that content must not become, besides the tokens that the tokenizer marks as special.
    """

    def __init__(self, tokenizer: Any, reserved: Iterable[int] = ()):
        self._tokenizer = tokenizer
        marked = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.special_ids = frozenset({*marked, *tokenizer.all_special_ids, *reserved})
        self._spellings = sorted(tokenizer.convert_ids_to_tokens(sorted(self.special_ids)), key=len, reverse=True)
        self._pattern = _pattern_of(self._spellings)

    def encode(self, text: str) -> list[int]:
        """The ids of plain text, in which no special token occurs whatever it spells."""
        return self._plain.encode(text, add_special_tokens=False).ids

    def protect(self, turns: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], dict[int, str]]:
        """Turns for a chat template in which no text spells a special token, and what the stand-ins stand for."""
        texts = [text for turn in turns for text in _texts(turn)]
        if not any(map(self._pattern.search, texts)):
            return [dict(turn) for turn in turns], {}
        used = set().union(*texts)
        free = (chr(code) for code in PRIVATE_USE if chr(code) not in used)
        stand_ins = dict(zip(sorted({spelling[0] for spelling in self._spellings}), free, strict=False))

        def protected(text: str) -> str:
            return self._pattern.sub(lambda match: stand_ins[match[0]], text)

        changed = [{key: _mapped(value, protected) for key, value in turn.items()} for turn in turns]
        return changed, {ord(new): old for old, new in stand_ins.items()}

    def restore(self, ids: Sequence[int], stand_ins: Mapping[int, str]) -> list[int]:
        """The ids of a rendered chat: text that holds stand-ins is encoded again as the plain text it stands for."""
        if not stand_ins:
            return list(ids)
        restored: list[int] = []
        for special, run in groupby(ids, key=self.special_ids.__contains__):
            part = list(run)
            text = "" if special else self._tokenizer.decode(part, clean_up_tokenization_spaces=False)
            restored += self.encode(text.translate(stand_ins)) if set(map(ord, text)) & set(stand_ins) else part
        return restored

    def find_special(self, text: str) -> str | None:
        """A special token that a text spells; None: it spells none."""
        return next((spelling for spelling in self._spellings if spelling in text), None)

    @cached_property
    def _plain(self) -> Any:
        """A copy of the tokenizer's backend that matches no special token. The flag is state: a copy needs no lock."""
        backend = copy.deepcopy(self._tokenizer.backend_tokenizer)
        backend.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in self._spellings])
        backend.encode_special_tokens = True
        backend.no_truncation()
        backend.no_padding()
        return backend


def _pattern_of(spellings: Sequence[str]) -> re.Pattern[str]:
    """The first character of each spelling, also of one that the next text might complete."""
    rests: dict[str, set[str]] = {}
    for spelling in spellings:
        complete, beginnings = spelling[1:], (rf"{re.escape(spelling[1:end])}\Z" for end in range(1, len(spelling)))
        rests.setdefault(spelling[0], set()).update((re.escape(complete), *beginnings))
    return re.compile("|".join(rf"{re.escape(first)}(?={'|'.join(sorted(rest))})" for first, rest in rests.items()))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(each)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(each, change) for key, each in value.items()}
    return [_mapped(each, change) for each in value] if isinstance(value, list | tuple) else value


# Rotary positions in three dimensions, of prompts that hold text, images and videos.


def positions_of(types: Tensor, grids: Sequence[tuple[int, int, int]], ticks: Sequence[Sequence[int]]) -> Tensor:
    """Rotary positions (time, height, width) of a prompt, as the Qwen2.5-VL report (2502.13923, 2.1.3) has them.

    Text counts on; a medium starts where the text before it ends, and what follows starts behind its largest position.
    (transformers 5 lets the text behind a Qwen2.5-VL video start amid the video's times, unlike 4 and the model.)

    Args:
        types: [P], 0 text, 1 placeholder. A medium's layers may stand apart, with text between them.
        grids: tokens (time, height, width) of each medium.
        ticks: by how much each layer of a medium lies behind its first one, where they stand together.

    Returns:
        int64 [3, P]
    """
    places = [
        torch.stack(torch.meshgrid(torch.tensor(tick), torch.arange(h), torch.arange(w), indexing="ij")).flatten(1)
        for (_, h, w), tick in zip(grids, ticks, strict=True)
    ]
    positions = torch.cat(places, 1) if places else torch.empty((3, 0), dtype=torch.int64)
    parts, start = [], 0
    for kind, run in groupby(types.tolist()):
        length = len(list(run))
        if kind:
            part, positions = positions[:, :length], positions[:, length:]
        else:
            part = torch.arange(length).expand(3, -1)
        parts.append(part - part[:, :1] + start)
        start = int(parts[-1].max()) + 1
    return torch.cat(parts, 1)


# One codec per model family: how an observation becomes tokens and pixels, and how tokens become text.
#
# A codec owns everything that is private to a family: resizing, chat template, placeholders, rotary positions, the
# coordinate space its answers are written in, and the tokens it must never sample.

# the names under which a processor gives patches and grids
MADE = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}


@dataclass(frozen=True, eq=False)
class Prompt:
    """A preprocessed observation, made once and shared by rollout and update. P prompt tokens, M patches.

    Images and videos are media alike from here on: a video's placeholders are written as an image's.
    """

    ids: Tensor  # int64 [P]
    types: Tensor  # int32 [P], 0 text, 1 image or video
    positions: Tensor  # int64 [3, P], rotary positions (time, height, width)
    pixels: Tensor | None  # float32 [M, patch values]
    grid: Tensor | None  # int64 [media, 3], patches (time, height, width), in reading order
    frames: tuple[Frame, ...]  # one per medium
    # what the model's own forward takes beside `input_ids`, where a processor of no known family made the prompt: as
    # that made it, of one row
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    ticks: tuple[tuple[int, ...], ...] = ()  # of each own medium, by how much its layers lie behind its first one
    # of a conversation the prompt of the turn before: `ids`, `types`, `positions`, `frames` and `inputs` begin with its
    # own and what was written then; `pixels`, `grid` and `ticks` are of the media that this turn adds
    parent: Prompt | None = None
    is_conversation: bool = False  # whether a later prompt may go on where this one and its completion end

    @property
    def lineage(self) -> tuple[Prompt, ...]:
        """The conversation's prompts from its first to this one."""
        chain = [self]
        while chain[-1].parent is not None:
            chain.append(chain[-1].parent)
        return tuple(reversed(chain))

    @property
    def num_patches(self) -> int:
        """Of all media that it shows."""
        return sum(len(prompt.pixels) for prompt in self.lineage if prompt.pixels is not None)

    @property
    def nbytes(self) -> int:
        """What it holds in memory, pixels above all."""
        own = (self.ids, self.types, self.positions, self.pixels, self.grid, *self.inputs.values())
        return sum(v.nbytes for v in own if v is not None)


def going_on(prompt: Prompt, tokens: Sequence[int]) -> Prompt:
    """The prompt with text tokens behind it, from which a completion goes on."""
    if not tokens:
        return prompt
    behind = prompt.positions.max() + 1 + torch.arange(len(tokens))
    length, new = len(prompt.ids), len(tokens)
    inputs = {name: _extended(name, value, length, new) for name, value in prompt.inputs.items()}
    return replace(
        prompt, inputs=inputs, ids=torch.cat([prompt.ids, torch.as_tensor(tokens)]),
        types=torch.cat([prompt.types, prompt.types.new_zeros(len(tokens))]),
        positions=torch.cat([prompt.positions, behind.expand(3, -1)], 1),
    )  # fmt: skip


def is_per_token(name: str, value: Tensor, length: int) -> bool:
    """Whether an input has an entry for each of a prompt's tokens, [1, P] or (a mask) [1, P, ...]."""
    return value.shape[:2] == (1, length) and (value.ndim == 2 or name.endswith("mask"))


def _extended(name: str, value: Tensor, length: int, new: int) -> Tensor:
    """An input of a prompt, with as many text tokens behind it: they are attended to, and of type 0."""
    if not is_per_token(name, value, length):
        return value
    of_text = value.new_full((1, new), int(name == "attention_mask"))
    return torch.cat([value, of_text if value.ndim == 2 else value[:, -1:].expand(1, new, *value.shape[2:])], 1)


# names under which configurations and processors give the tokens that stand for media, and those around them
PLACEHOLDER = re.compile(r"^(image|video)_token_(id|index)$")
MEDIA = re.compile(r"(image|video|vision|audio|boi|eoi|boa|eoa|bov|eov)\w*_token_(id|index)$")


def token_ids(names: re.Pattern[str], processor: Any, config: Any) -> set[int]:
    """The tokens that a processor and a configuration have under such names."""
    named = {**config.to_dict(), **vars(processor)}
    return {value for name, value in named.items() if names.search(name) and isinstance(value, int)}


REPLY = "A reply, in a word."  # stands for what a policy wrote where a template is asked what it writes around it


def own_space(config: Any) -> str | None:
    """The coordinates that a model's config.json itself names (`coordinate_space`); None: it names none."""
    return getattr(config, "coordinate_space", None)


class ChatProcessor:
    """A model's own processor and chat template: how an observation becomes a prompt, and how tokens become text.

    What a family does otherwise its subclass says; this one takes the processor of any model.
    """

    def __init__(self, processor, model, max_prompt: int | None = None, space: str | None = None):
        self.processor, self.tokenizer, config = processor, processor.tokenizer, model.config
        self.space = space or own_space(config) or frame_of(config.model_type)
        self.max_prompt = max_prompt or getattr(config.get_text_config(), "max_position_embeddings", None) or 2**31
        ends = model.generation_config.eos_token_id if model.generation_config else None
        self.stop_ids = tuple(ends if isinstance(ends, list) else [ends]) if ends is not None else ()
        self.stop_ids = self.stop_ids or (self.tokenizer.eos_token_id,)
        self.placeholder_ids = self.find_placeholders(config)
        special = self.placeholder_ids | token_ids(MEDIA, processor, config) | set(self.tokenizer.all_special_ids)
        # A sampled placeholder would claim image features that do not exist when the reply is evaluated.
        self.banned_ids = tuple(sorted(special.difference(self.stop_ids)))
        self.text_encoder = TextEncoder(self.tokenizer, special.union(self.stop_ids))
        self.pad_id = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.stop_ids[0]

    def find_placeholders(self, config: Any) -> set[int]:
        """The tokens that stand for images and videos: those that are named so, and what an image adds to a prompt."""
        image, text_part = {"type": "image"}, {"type": "text", "text": "?"}
        text = self.render([{"role": "user", "content": [image, text_part]}])
        ids = self.process(text, [Image.new("RGB", (64, 64))], ())["input_ids"][0].tolist()
        bare = self.tokenizer(self.render([{"role": "user", "content": [text_part]}]))["input_ids"]
        added = set(ids).difference(bare) & set(self.tokenizer.added_tokens_decoder)
        return added | token_ids(PLACEHOLDER, self.processor, config)

    def see(self, image: Image.Image) -> Image.Image:
        """The image as the model will be shown it."""
        return image.convert("RGB")

    def encode(self, observation: Observation) -> Prompt:
        """Tokens of one user turn or of a conversation's beginning, and all that the processor makes of it.

        Raises:
            UserError: the prompt is longer than the model takes (it is never cut: a cut could go through an image), or
                the processor cannot take what is shown.
        """
        prompt = self._encode(observation)
        self.check_length(prompt.ids)
        return prompt

    def _encode(self, observation: Observation) -> Prompt:
        ids, inputs = self.tokenize(to_turns(observation), observation.images, observation.videos, observation.tools)
        return replace(self.assemble(ids, inputs, observation.media), is_conversation=bool(observation.messages))

    def append(self, before: Prompt, written: Sequence[int], observation: Observation) -> Prompt:
        """A conversation's next prompt: what was shown and written keeps its tokens, the new messages follow.

        Args:
            before: the prompt of the turn before.
            written: the tokens of its completion.

        Raises:
            UserError: as `encode`.
        """
        prompt = self._append(before, written, observation)
        self.check_length(prompt.ids, len(prompt.lineage))
        return prompt

    def _append(self, before: Prompt, written: Sequence[int], observation: Observation) -> Prompt:
        turns = to_turns(observation)
        ids, inputs = self.tokenize(turns, observation.images, observation.videos, continues=True)
        if written and len(ids) and int(ids[0]) == written[-1]:  # the token that ends a reply was sampled
            inputs = {name: v[:, 1:] if _is_row(name, v, len(ids)) else v for name, v in inputs.items()}
            ids = ids[1:]
        prompt = self.assemble(ids, inputs, observation.media, going_on(before, written))
        return replace(prompt, parent=before, is_conversation=True)

    def assemble(
        self, ids: Tensor, made: Mapping[str, Any], media: Sequence[Image.Image | Video], before: Prompt | None = None
    ) -> Prompt:
        """A prompt of the tokens and inputs that the processor made, behind those of `before`."""
        inputs = {name: value for name, value in made.items() if name != "input_ids" and isinstance(value, Tensor)}
        if before is not None:
            inputs = self._joined_inputs(before, inputs, len(ids))
            ids = torch.cat([before.ids, ids])
        types = torch.isin(ids, torch.tensor(sorted(self.placeholder_ids), dtype=ids.dtype)).int()
        frames = tuple(Frame(self.space, medium.size, medium.size) for medium in media)
        earlier = before.frames if before else ()
        return Prompt(ids, types, torch.arange(len(ids)).expand(3, -1), None, None, earlier + frames, inputs)

    def _joined_inputs(self, before: Prompt, inputs: Mapping[str, Tensor], new: int) -> dict[str, Tensor]:
        """The inputs of two parts of a conversation, the second of as many tokens, as those of one row."""
        length, joined = len(before.ids), dict(before.inputs)
        across = next((name for name, v in before.inputs.items() if is_per_token(name, v, length) and v.ndim > 2), None)
        if across:  # which tokens see which image: only its processor knows, of all turns at once
            raise ValueError(f"{across} is made for all turns at once")
        for name, value in inputs.items():
            if is_per_token(name, value, new):
                absent = value.new_full((1, length), int(name == "attention_mask"))
                joined[name] = torch.cat([before.inputs.get(name, absent), value], 1)
            elif name in joined:
                joined[name] = torch.cat([joined[name], value], self.media_axes.get(name, 0))
            else:
                joined[name] = value
        for name in joined.keys() - inputs.keys():
            joined[name] = _extended(name, joined[name], length, new)
        return joined

    @cached_property
    def media_axes(self) -> dict[str, int]:
        """Along which axis each input of the processor grows with the number of images."""
        image, axes = Image.new("RGB", (64, 64)), {}
        one, two = (self._encode(Observation((*[image] * n, "?"))).inputs for n in (1, 2))
        for name in one.keys() & two.keys():
            grown = [i for i, (a, b) in enumerate(zip(one[name].shape, two[name].shape, strict=False)) if a != b]
            axes[name] = grown[0] if grown else 0
        return axes

    def check_length(self, ids: Tensor, turn: int = 1) -> None:
        if len(ids) <= self.max_prompt:
            return
        if turn > 1:
            raise OverlongError(
                f"turn {turn} of a conversation makes it {len(ids)} tokens long, more than the {self.max_prompt} that "
                "the model takes: allow fewer turns, show smaller images (policy.max_pixels), or keep fewer of them "
                "(task.context: {name: last_images})"
            )
        raise OverlongError(
            f"a prompt of {len(ids)} tokens is longer than the {self.max_prompt} that the model takes: "
            "show smaller images (policy.max_pixels) or fewer frames, or shorten the text"
        )

    def tokenize(
        self, turns: Sequence[Mapping[str, Any]], images: Sequence[Image.Image] = (), videos: Sequence[Video] = (),
        tools: Sequence[Mapping[str, Any]] = (), continues: bool = False,
    ) -> tuple[Tensor, dict[str, Any]]:  # fmt: skip
        """Token ids of turns in the chat template, and what the processor makes of them and of their media.

        All that the turns say is plain text: a special token's spelling does not become that token.

        Args:
            continues: the turns follow a reply, whose end comes first (`render_continuation`).
        """
        protected, stand_ins = self.text_encoder.protect(turns)
        text = self.render_continuation(protected) if continues else self.render(protected, tools)
        inputs = self.process(text, [self.see(image) for image in images], videos, continues)
        before = inputs["input_ids"][0].tolist()
        ids = self.text_encoder.restore(before, stand_ins)
        if stand_ins:
            inputs = {name: _follow(value, before, ids) for name, value in inputs.items()}
        return torch.tensor(ids), inputs

    def process(
        self, text: str, images: Sequence[Image.Image], videos: Sequence[Video], continues: bool = False
    ) -> dict[str, Any]:
        """The processor's outputs for one rendered prompt, as `apply_chat_template` of transformers calls it."""
        options: dict[str, Any] = {"return_tensors": "pt"}
        if "mm_token_type_ids" in self.processor.model_input_names:
            options["return_mm_token_type_ids"] = True
        if continues or (self.tokenizer.bos_token and text.startswith(self.tokenizer.bos_token)):
            options["add_special_tokens"] = False
        if videos and getattr(self.processor, "video_processor", None) is None:
            raise UserError(f"{type(self.processor).__name__} takes no videos: show frames as images")
        if images:
            options["images"] = [list(images)]
        inputs = dict(self.processor(text=[text], **options, **self._clips(videos)))
        inputs.pop("labels", None)  # of PaliGemma's: there is nothing to learn yet
        return {name: _as_tensor(value) for name, value in inputs.items()}

    def text(self, observation: Observation) -> str:
        """The user turn in the chat template, for servers that take text; `check_sendable` first."""
        return self.render(to_turns(observation), observation.tools)

    def check_sendable(self, observation: Observation) -> None:
        """A server that takes text, not ids, reads the prompt as the trainer does.

        Raises:
            UserError: the content spells a special token, which the server would take for the token itself.
        """
        if special := self.text_encoder.find_special("".join(p for p in observation.content if isinstance(p, str))):
            raise UserError(
                f"policy.engine: a prompt spells the special token {special!r}, which a server that is sent text takes "
                "for the token itself: use api: vlrl or engine: local, which take token ids"
            )

    def render(
        self, turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), prompts: bool = True
    ) -> str:
        """Turns in the chat template, one placeholder per image and video; `prompts`: up to where a reply begins."""
        options = {"tools": list(tools)} if tools else {}
        return self.processor.apply_chat_template(list(turns), add_generation_prompt=prompts, tokenize=False, **options)

    def render_continuation(self, turns: Sequence[Mapping[str, Any]]) -> str:
        """What stands between a reply's last word and the next reply: its end, the turns, and a reply's beginning."""
        whole = self.render([*_text_message("user", "?"), *_text_message("assistant", REPLY), *turns])
        return whole[whole.index(REPLY) + len(REPLY) :]

    @cached_property
    def appends(self) -> str:
        """Why a conversation must be rendered anew at each turn; '': its template only ever appends."""
        image = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Where is it?"}]}
        observation = Observation((Image.new("RGB", (64, 64)), "Where is it?"))
        try:
            rewrite = self._find_rewrite(image, REPLY)
            first, reply = self._encode(observation), self.tokens(REPLY)
            second = self._append(first, reply, observation)
            self._append(second, reply, observation)
            question = Message("user", observation.content)
            whole = self._encode(Observation.from_messages([question, Message("assistant", (REPLY,)), question]))
        except Exception as error:  # a template or a processor may fail in any way
            return f"it takes no second turn: {first_line(error)}"
        return rewrite or _find_difference(second, whole)

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the template writes the schemas of tools into a prompt."""
        function = {"name": "look_closer", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
        return "look_closer" in self.render(_text_message("user", "?"), [{"type": "function", "function": function}])

    @cached_property
    def keeps_thoughts(self) -> bool:
        """Whether the template leaves the thoughts of earlier replies where they are."""
        return not self.appends and not self._find_rewrite(
            _text_message("user", "And?")[0], f"<think>\nWhy.\n</think>\n\n{REPLY}"
        )

    def _find_rewrite(self, question: Mapping[str, Any], reply: str) -> str:
        """Why two turns rendered at once are not the first, a reply and a continuation; '': they are."""
        turns = [question]
        text = self.render(turns)
        for _ in range(2):
            text += reply + self.render_continuation([question])
            turns += [*_text_message("assistant", reply), question]
        if self.render(turns) == text:
            return ""
        return "its chat template writes earlier turns in another way once later ones follow"

    def _clips(self, videos: Sequence[Video]) -> dict[str, Any]:
        """The processor's arguments for videos, each frame of which is shown as an image would be."""
        if not videos:
            return {}
        clips = [np.stack([self.see(Image.fromarray(frame)) for frame in video.frames]) for video in videos]
        # A clock of a thousand frames a second: real times, whether or not the source's frames come evenly.
        clocks = [[round(1000 * time) for time in video.times] for video in videos]
        metadata = [{"fps": 1000, "frames_indices": ms, "total_num_frames": ms[-1] + 1} for ms in clocks]
        # Given, because its absence is warned of; it concerns a resizing that is not done.
        cap = {"cap_pixels_per_frame": False} if hasattr(self.processor.video_processor, "cap_pixels_per_frame") else {}
        # `return_metadata`: some processors write the times into the prompt, and read them from what they return
        return {
            "videos": clips, "video_metadata": metadata, "do_sample_frames": False, "return_metadata": True, **cap
        }  # fmt: skip

    def decode(self, ids: Sequence[int]) -> str:
        """Completion tokens -> text, without the stop token."""
        return self.tokenizer.decode([i for i in ids if i not in self.stop_ids], skip_special_tokens=False)

    def tokens(self, text: str) -> list[int]:
        """A completion's text -> tokens with the stop token, as the model would have sampled it."""
        return [*self.text_encoder.encode(text), self.stop_ids[0]]


class QwenProcessor(ChatProcessor):
    """What Qwen2.5-VL and Qwen3-VL have in common. Patch sizes differ; they are read from the processor."""

    def __init__(self, processor, model, max_prompt: int | None = None, space: str | None = None):
        super().__init__(processor, model, max_prompt, space)
        # Positions that a second of video counts for; where videos tell their times in words, none are counted.
        self.time_rate = getattr(model.config.vision_config, "tokens_per_second", 0)
        self.image_id, self.video_id = model.config.image_token_id, model.config.video_token_id

    def find_placeholders(self, config: Any) -> set[int]:
        return token_ids(PLACEHOLDER, self.processor, config)

    def see(self, image: Image.Image) -> Image.Image:
        """The image as the model will be shown it (`resized`)."""
        return resized(image, self.processor)

    def assemble(
        self, ids: Tensor, made: Mapping[str, Any], media: Sequence[Image.Image | Video], before: Prompt | None = None
    ) -> Prompt:
        """Tokens, pixels and positions."""
        ids[ids == self.video_id] = self.image_id
        ids = ids if before is None else torch.cat([before.ids, ids])
        types = (ids == self.image_id).int()
        pixels, grid = _in_order(made, media)
        layers = [] if grid is None else [tuple(row) for row in grid.tolist()]
        ticks = tuple(tuple(self._ticks(medium)) for medium in media)
        patch, merge = self.processor.image_processor.patch_size, self.processor.image_processor.merge_size
        frames = tuple(
            Frame(self.space, medium.size, (w * patch, h * patch))
            for medium, (_, h, w) in zip(media, layers, strict=True)
        )
        earlier = () if before is None else before.lineage
        grids = [tuple(row) for prompt in earlier if prompt.grid is not None for row in prompt.grid.tolist()] + layers
        every = [each for prompt in earlier for each in prompt.ticks] + [*ticks]
        positions = positions_of(types, [(t, h // merge, w // merge) for t, h, w in grids], every)
        frames = frames if before is None else before.frames + frames
        return Prompt(ids, types, positions, pixels, grid, frames, ticks=ticks)

    def process(
        self, text: str, images: Sequence[Image.Image], videos: Sequence[Video], continues: bool = False
    ) -> dict[str, Any]:
        return dict(
            self.processor(
                text=[text], images=list(images) or None, **self._clips(videos), do_resize=False, return_tensors="pt"
            )
        )

    def _ticks(self, medium: Image.Image | Video) -> list[int]:
        """How far each layer of a medium lies behind its first one, in positions of time."""
        if not isinstance(medium, Video):
            return [0]
        times = medium.times[:: self.processor.video_processor.temporal_patch_size]
        return [int(self.time_rate * (time - times[0]) + 1e-6) for time in times]  # 1e-6: thirds do not add up


class Qwen3VL(QwenProcessor):
    """Qwen3-VL reads the seconds before each pair of frames."""

    def render(
        self, turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), prompts: bool = True
    ) -> str:
        # Each pair of frames gets its own start and end. Around all of them the model knows none, but transformers 5
        # leaves the template's there (vllm-project/vllm#46817), where 4.57, as published, replaced them.
        wrapped, bare = "{0.vision_start_token}{0.video_token}{0.vision_end_token}", "{0.video_token}"
        return (
            super().render(turns, tools, prompts).replace(wrapped.format(self.processor), bare.format(self.processor))
        )


def resized(image: Image.Image, processor: Any) -> Image.Image:
    """RGB, resized to whole patches within the processor's limits: how a model of the family is shown it.

    Raises:
        UserError: no size within the limits keeps the image's proportions.
    """
    from qwen_vl_utils import fetch_image

    settings = processor.image_processor
    limits = {"min_pixels": settings.size["shortest_edge"], "max_pixels": settings.size["longest_edge"]}
    try:
        return fetch_image({"image": image, **limits}, image_patch_size=settings.patch_size)
    except ValueError:  # its sides differ by a factor of more than 200, or one would shrink to nothing
        raise UserError(f"an image of {image.width}x{image.height} pixels is too thin for the model") from None


def to_turns(observation: Observation) -> list[dict[str, Any]]:
    """What is shown as turns for a chat template: the observation's messages, else one turn of the user."""
    messages = observation.messages or (Message("user", observation.content),)
    turns = []
    for message in messages:
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": kind_of(part)}
            for part in message.content
        ]
        calls = [{"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
                 for c in message.tool_calls]  # fmt: skip
        turns.append({"role": message.role, "content": content, **({"tool_calls": calls} if calls else {})})
    return turns


def _find_difference(appended: Prompt, whole: Prompt) -> str:
    """Why two turns have other inputs one by one than at once, as indices into all images have; '': they have not."""
    for name, value in whole.inputs.items():
        if not is_per_token(name, value, len(whole.ids)) and not value.equal(appended.inputs[name]):
            return f"its processor makes another {name} of two turns at once than of each"
    return ""


def _text_message(role: str, text: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": [{"type": "text", "text": text}]}]


def _is_row(name: str, value: Any, length: int) -> bool:
    return isinstance(value, Tensor) and is_per_token(name, value, length)


def _as_tensor(value: Any) -> Any:
    """Float32 of any float (bfloat16 fits weights of no other type), and a tensor of integers in lists."""
    if isinstance(value, list):
        try:
            numbers = np.asarray(value)
        except ValueError:  # of unequal lengths
            return value
        return torch.as_tensor(numbers) if numbers.dtype.kind == "i" else value
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _follow(value: Any, before: Sequence[int], ids: Sequence[int]) -> Any:
    """An input of the processor, of text [1, P] that has got other ids since: what it says of each id it still says."""
    if not isinstance(value, Tensor) or value.shape != (1, len(before)):
        return value
    lengths = dict(zip(before, value[0].tolist(), strict=True))
    usual = 1 if bool(value.all()) else 0
    return torch.tensor([[lengths.get(token, usual) for token in ids]], dtype=value.dtype)


def kind_of(medium: Image.Image | Video) -> str:
    return "video" if isinstance(medium, Video) else "image"


def _in_order(made: dict[str, Tensor], media: Sequence[Image.Image | Video]) -> tuple[Tensor | None, Tensor | None]:
    """Patches and grids of all media in reading order; the processor gives images and videos apart."""
    if not media:
        return None, None
    of = {
        kind: zip(made[pixels].split(made[grid].prod(-1).tolist()), made[grid].split(1), strict=True)
        for kind, (pixels, grid) in MADE.items()
        if grid in made
    }
    parts = [next(of[kind_of(medium)]) for medium in media]
    return torch.cat([pixels for pixels, _ in parts]), torch.cat([grid for _, grid in parts])


CODECS: dict[str, type[QwenProcessor]] = {"qwen2_5_vl": QwenProcessor, "qwen3_vl": Qwen3VL}


def codec_for(processor, model, max_prompt: int | None = None, space: str | None = None) -> ChatProcessor:
    """The codec of a loaded model's family, else the one that any model's processor and chat template make."""
    return CODECS.get(model.config.model_type, ChatProcessor)(processor, model, max_prompt, space)


# The coordinates in which each family of models writes, and where that is documented.
#
# A space is one of `vlrl.types.Frame`. `policy.frame` and a checkpoint's `coordinate_space` come before this table; a
# family that is not in it writes, for all we know, thousandths of the image's sides, as most of those since 2024 do.
# A source marked `unchecked` was not read beside this table: `vlrl doctor --model` tries the frame on answers.


@dataclass(frozen=True)
class Convention:
    """space: as `vlrl.types.Frame` has it; source: the document that says so."""

    space: str
    source: str


UNKNOWN = Convention("rel1000", "not documented: the most common convention; see policy.frame")
QWEN3 = "Qwen3-VL technical report (2511.21631), 2D grounding: coordinates scaled to 0-1000"
GLM = "GLM-V's grounding skill (zai-org/glm-skills): x and y rounded to thousandths of width and height"
INTERN = "OpenGVLab/InternVL, internvl_chat/eval/refcoco/evaluate_grounding.py: what is read is divided by 1000"
LLAVA = "LLaVA-1.5 (haotian-liu/LLaVA#606): fractions of the image padded to a square; exact for square images"
LFM = "Liquid AI's guide to LFM2.5-VL (docs.liquid.ai, vision capabilities): integers of 0-1000"
MOLMO = "Molmo2's code (olmo/preprocessing/point_formatter.py): x and y as thousandths of width and height"
QWEN35 = "as Qwen3-VL: 0-1000, as QwenLM says of its successor (QwenLM/Qwen3.8-Flash-Next#4)"
# Gemini's documents ask for [y, x] of 0-1000 in the prompt itself (ai.google.dev, robotics-spatial)
GEMMA = "thousandths, in the order that the prompt names; by itself y first, as Gemini: rel1000_yx (unchecked)"
CONVENTIONS = {
    "qwen2_vl": Convention("rel1000", "Qwen2-VL report (2409.12191): coordinates in [0, 1000)"),
    "qwen2_5_vl": Convention("resized_px", "Qwen2.5-VL report (2502.13923), 2.2: pixels of the image as resized"),
    "qwen3_vl": Convention("rel1000", QWEN3),
    "qwen3_vl_moe": Convention("rel1000", QWEN3),
    "qwen3_5": Convention("rel1000", QWEN35),
    "qwen3_5_moe": Convention("rel1000", QWEN35),
    "glm4v": Convention("rel1000", GLM),
    "glm4v_moe": Convention("rel1000", GLM),
    "glm46v": Convention("rel1000", GLM),
    "internvl": Convention("rel1000", INTERN),
    "llava": Convention("rel1", LLAVA),
    "llava_next": Convention("rel1", LLAVA),
    "lfm2_vl": Convention("rel1000", LFM),
    "molmo2": Convention("rel1000", MOLMO),
    "gemma4": Convention("rel1000", GEMMA),
    "gemma4_unified": Convention("rel1000", GEMMA),
}


def convention(family: str) -> Convention:
    """The convention of a family, `model_type` in its config.json."""
    return CONVENTIONS.get(family, UNKNOWN)


def frame_of(family: str) -> str:
    return convention(family).space
