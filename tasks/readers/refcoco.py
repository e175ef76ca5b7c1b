"""RefCOCO, RefCOCO+ and RefCOCOg (1608.00272) as JSON lines and parquet files have them. MDETR's JSON: coco.py.

Sources: Shikra (2306.15195; github.com/shikras/shikra, REC_refcoco_unc_val.jsonl and its like); Qwen-VL and InternVL
(evaluate_grounding.py, refcoco_val.jsonl); VLM-R1 (2504.07615, rec_jsons_processed); lmms-eval and the data sets
lmms-lab/RefCOCO, jxu124/refcoco of Hugging Face.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.readers import fields
from tasks.readers.rows import BadRowError, Form, Place
from tasks.readers.scene import Scene, referred

TAGS = ("dataset_name", "dataset", "split")


def _shikra(values: Mapping[str, Any], place: Place) -> Scene:
    """`{img_path, expression, bbox, dataset_name, height, width}`, corners in pixels."""
    return referred(values, place, "img_path", "expression", "bbox", tags=fields.tags(values, *TAGS))


def _shikra_shares(values: Mapping[str, Any], place: Place) -> Scene:
    """The same with corners in shares of the image, which some conversions have."""
    _, size = fields.image(values, "img_path", place)
    return _shikra({**values, "bbox": list(fields.box(values.get("bbox"), "bbox", size, fields.per(size, 1)))}, place)


def _qwen_vl(values: Mapping[str, Any], place: Place) -> Scene:
    """`{image, sent, bbox, height, width}`, corners in pixels; `text` is Qwen-VL's own prompt and not used."""
    return referred(values, place, "image", "sent", "bbox", tags=fields.tags(values, *TAGS))


def _vlm_r1(values: Mapping[str, Any], place: Place) -> Scene:
    """`{image, problem, solution, normal_caption, height, width}`, corners in pixels; `problem` asks in a sentence."""
    question = fields.text(values, "problem").replace("<image>", "").strip()
    return referred(
        values, place, "image", "normal_caption", "solution", question=question, tags=fields.tags(values, *TAGS)
    )


def _hugging_face(values: Mapping[str, Any], place: Place) -> Scene:
    """lmms-lab: `{question_id, image, answer, bbox}`, [x, y, width, height]; `question` asks for a caption."""
    return referred(values, place, "image", "answer", "bbox", fields.XYWH)


def _answers(values: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return _each(values, fields.texts(values.get("answer"), "answer"), "answer", values.get("question_id"))


def _sentences(values: Mapping[str, Any], place: Place) -> Scene:
    """jxu124: `{image_path, sentences: [{raw, sent}], bbox, ref_id}`, corners in pixels."""
    return referred(values, place, "image_path", "sent", "bbox", tags=fields.tags(values, *TAGS))


def _all_sentences(values: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    listed = values.get("sentences")
    if not isinstance(listed, list) or not all(isinstance(item, Mapping) for item in listed):
        raise BadRowError("sentences: must be a list of {raw, sent}")
    told = fields.texts([item.get("sent") for item in listed], "sentences")
    return _each(values, told, "sent", values.get("ref_id"))


def _each(values: Mapping[str, Any], phrases: Sequence[str], key: str, name: Any) -> Sequence[Mapping[str, Any]]:
    """A row for each phrase, numbered behind the row's name."""
    if not phrases or not isinstance(name, int | str):
        raise BadRowError("a row needs its name (question_id or ref_id) and a phrase")
    return [{**values, key: phrase, "id": f"{name}/{i}"} for i, phrase in enumerate(phrases, start=1)]


FORMS = {
    "shikra": Form(frozenset({"img_path", "expression", "bbox"}), _shikra),
    "shikra_rel1": Form(frozenset({"img_path", "expression", "bbox"}), _shikra_shares),
    "qwen_vl": Form(frozenset({"image", "sent", "bbox"}), _qwen_vl),
    "vlm_r1_rec": Form(frozenset({"image", "normal_caption", "solution"}), _vlm_r1),
    "refcoco_hf": Form(frozenset({"question_id", "image", "answer", "bbox"}), _hugging_face, each=_answers),
    "refcoco_sentences": Form(frozenset({"image_path", "sentences", "bbox"}), _sentences, each=_all_sentences),
}
