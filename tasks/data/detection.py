"""Readers of objects on images: CLS-RL, COCO, RefCOCO, Vision-R1, VLM-R1."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from rewards import parse
from rewards.parse import Object
from tasks.data import records
from tasks.data import rows as data_rows
from tasks.data.images import BadRowError
from tasks.data.records import LabelledScene, identity, referred
from tasks.data.rows import Form, Place

# CLS-RL's few-shot sets (2503.16188; github.com/minglllli/CLS-RL): R1-V's columns, the class in answer tags.


def _cls_rl_row(values: Mapping[str, Any], place: Place) -> LabelledScene:
    """`{image, problem, solution}`: `problem` asks and lists the choices, `solution` is the class, perhaps in tags."""
    question = data_rows.text_field(values, "problem").replace("<image>", "").strip()
    image, _ = data_rows.image(values, "image", place)
    answer = data_rows.text_field(values, "solution").removeprefix("<answer>").removesuffix("</answer>").strip()
    if not answer:
        raise BadRowError("solution: must name a class")
    return LabelledScene(identity(values, place), (image,), question, answer=answer)


LABELLED = {"cls_rl": Form(frozenset({"image", "problem", "solution"}), _cls_rl_row)}


# COCO's JSON (1405.0312) and what extends it: LVIS (1908.03195), ODinW (2204.08790), OVDEval (2308.13177), MDETR.
#
# Sources: cocodataset.org/#format-data; lvisdataset.org/dataset; github.com/om-ai-lab/OVDEval; MDETR's files of RefCOCO
# (2104.12763; github.com/ashkamath/mdetr), where each image entry is one phrase, its `caption`.

COCO_KEYS = frozenset({"images", "annotations", "categories"})


def _rows(document: Mapping[str, Any]) -> list[Any]:
    """A row for each image, with `annotations` and `names` of categories; then one for each image that is not there.

    Images keep the file's order, annotations too. BadRowError: the file is not COCO's.
    """
    listed = {key: document.get(key) for key in COCO_KEYS}
    for key, value in listed.items():
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise BadRowError(f"{key}: must be a list of objects")
    names = _names(listed["categories"], listed["annotations"])
    annotations: dict[Any, list[Mapping[str, Any]]] = {}
    for annotation in listed["annotations"]:
        annotations.setdefault(str(annotation.get("image_id")), []).append(annotation)
    rows = [
        {**image, "annotations": annotations.pop(str(image.get("id")), []), "names": names}
        for image in listed["images"]
    ]
    return [
        *rows,
        *({"problem": f"image_id: {image} has annotations, but is not among images"} for image in annotations),
    ]


def _names(categories: list[Mapping[str, Any]], annotations: list[Mapping[str, Any]]) -> dict[Any, str]:
    """Category id -> name. Roboflow's first category, a parent of others that nothing is marked as, is left out."""
    used = {str(annotation.get("category_id")) for annotation in annotations}
    parents = {str(category.get("supercategory")) for category in categories}
    names = {}
    for category in categories:
        number, name = category.get("id"), category.get("name")
        if not isinstance(number, int) or not isinstance(name, str) or not name.strip() or number in names:
            raise BadRowError(f"categories: {dict(category)}: needs an id of its own and a name")
        if str(number) in used or name not in parents or category.get("supercategory") != "none":
            names[number] = name.strip()
    return names


def _coco_row(values: Mapping[str, Any], place: Place) -> LabelledScene:
    """`images`: {id, file_name or coco_url, width, height}; `annotations`: {bbox xywh, category_id, iscrowd, area}.

    Asked for are all categories of the file; in LVIS the image's own and `neg_category_ids`; in OVDEval its `text` and
    `neg_text`.
    """
    image, size = _image(values, place)
    names = values["names"]
    marked = [_marked(each, names, size) for each in values["annotations"]]
    objects = tuple(thing for thing, _, _ in marked)
    labels = _read_labels(values, objects, names)
    if not labels:
        raise BadRowError("nothing is asked for: no category, text or neg_text for this image")
    return LabelledScene(
        records.identity(values, place), (image,), objects=objects, labels=labels,
        crowd=tuple(crowd for _, crowd, _ in marked), areas=tuple(area for _, _, area in marked),
        unsure=_named(values, "not_exhaustive_category_ids", names),
    )  # fmt: skip


def _image(values: Mapping[str, Any], place: Place) -> tuple[Any, data_rows.Size]:
    if "problem" in values:
        raise BadRowError(values["problem"])
    if not isinstance(values.get("id"), int | str):
        raise BadRowError("id: an image needs one")
    name = values.get("file_name")
    if name is None and isinstance(values.get("coco_url"), str):
        name = "/".join(PurePosixPath(values["coco_url"]).parts[-2:])  # train2017/000000000001.jpg
    image, size = data_rows.image({"file_name": name}, "file_name", place)
    data_rows.same_size(values, size)
    return image, size


def _marked(
    annotation: Mapping[str, Any], names: Mapping[Any, str], size: data_rows.Size
) -> tuple[Object, bool, float]:
    """The object, whether it is a crowd, and its area."""
    key = f"annotation {annotation.get('id')}"
    label = _name(annotation.get("category_id"), f"{key}: category_id", names)
    thing = records.read_object(label, data_rows.corners(annotation.get("bbox")), f"{key}: bbox", size, data_rows.XYWH)
    area = annotation.get("area", records.areas([thing])[0])
    if not isinstance(area, int | float) or not 0 <= area < 1e18:
        raise BadRowError(f"{key}: area {area!r}: must be a number of at least 0")
    return thing, bool(annotation.get("iscrowd", 0)), float(area)


def _read_labels(values: Mapping[str, Any], objects: tuple[Object, ...], names: Mapping[Any, str]) -> tuple[str, ...]:
    marked = dict.fromkeys(thing.label for thing in objects)
    if "neg_category_ids" in values:
        names_in_question = {*marked, *_named(values, "neg_category_ids", names)}
        names_in_question |= set(_named(values, "not_exhaustive_category_ids", names))
        return tuple(name for name in names.values() if name in names_in_question)
    if "text" in values:
        labels = [data_rows.texts(values.get(key) or [], key) for key in ("text", "neg_text")]
        return tuple(dict.fromkeys([*labels[0], *marked, *labels[1]]))
    return tuple(dict.fromkeys(names.values()))


def _named(values: Mapping[str, Any], key: str, names: Mapping[Any, str]) -> tuple[str, ...]:
    numbers = values.get(key, [])
    if not isinstance(numbers, list):
        raise BadRowError(f"{key}: must be a list of ids of categories")
    return tuple(_name(number, key, names) for number in numbers)


def _name(number: Any, key: str, names: Mapping[Any, str]) -> str:
    if not isinstance(number, int) or number not in names:
        raise BadRowError(f"{key}: {number!r} is not among categories")
    return names[number]


def _caption(values: Mapping[str, Any], place: Place) -> LabelledScene:
    """MDETR: `images` have a `caption`, the phrase, and one annotation each."""
    image, size = _image(values, place)
    phrase = data_rows.text_field(values, "caption")
    if len(values["annotations"]) != 1:
        raise BadRowError(f"annotations: {len(values['annotations'])} of one phrase; it must have one box")
    box = data_rows.corners(values["annotations"][0].get("bbox"))
    thing = records.read_object(phrase, box, "bbox", size, data_rows.XYWH)
    named = data_rows.tags(values, "dataset_name")
    return records.scene(records.identity(values, place), image, [thing], tags=named)


COCO_SCENES = {"coco": Form(COCO_KEYS, _coco_row, rows=_rows)}
COCO_REFERRING = {"mdetr": Form(COCO_KEYS, _caption, rows=_rows)}


# RefCOCO, RefCOCO+ and RefCOCOg (1608.00272) as JSON lines and parquet files have them. MDETR's JSON: coco.py.
#
# Sources: Shikra (2306.15195; github.com/shikras/shikra, REC_refcoco_unc_val.jsonl and its like); Qwen-VL and InternVL
# (evaluate_grounding.py, refcoco_val.jsonl); VLM-R1 (2504.07615, rec_jsons_processed); lmms-eval and the data sets
# lmms-lab/RefCOCO, jxu124/refcoco of Hugging Face.

TAGS = ("dataset_name", "dataset", "split")


def _shikra(values: Mapping[str, Any], place: Place) -> LabelledScene:
    """`{img_path, expression, bbox, dataset_name, height, width}`, corners in pixels."""
    return referred(values, place, "img_path", "expression", "bbox", tags=data_rows.tags(values, *TAGS))


def _shikra_shares(values: Mapping[str, Any], place: Place) -> LabelledScene:
    """The same with corners in shares of the image, which some conversions have."""
    _, size = data_rows.image(values, "img_path", place)
    return _shikra(
        {**values, "bbox": list(data_rows.box(values.get("bbox"), "bbox", size, data_rows.per(size, 1)))}, place
    )


def _qwen_vl(values: Mapping[str, Any], place: Place) -> LabelledScene:
    """`{image, sent, bbox, height, width}`, corners in pixels; `text` is Qwen-VL's own prompt and not used."""
    return referred(values, place, "image", "sent", "bbox", tags=data_rows.tags(values, *TAGS))


def _vlm_r1(values: Mapping[str, Any], place: Place) -> LabelledScene:
    """`{image, problem, solution, normal_caption, height, width}`, corners in pixels; `problem` asks in a sentence."""
    question = data_rows.text_field(values, "problem").replace("<image>", "").strip()
    return referred(
        values, place, "image", "normal_caption", "solution", question=question, tags=data_rows.tags(values, *TAGS)
    )


def _hugging_face(values: Mapping[str, Any], place: Place) -> LabelledScene:
    """lmms-lab: `{question_id, image, answer, bbox}`, [x, y, width, height]; `question` asks for a caption."""
    return referred(values, place, "image", "answer", "bbox", data_rows.XYWH)


def _answers(values: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return _each(values, data_rows.texts(values.get("answer"), "answer"), "answer", values.get("question_id"))


def _sentences(values: Mapping[str, Any], place: Place) -> LabelledScene:
    """jxu124: `{image_path, sentences: [{raw, sent}], bbox, ref_id}`, corners in pixels."""
    return referred(values, place, "image_path", "sent", "bbox", tags=data_rows.tags(values, *TAGS))


def _all_sentences(values: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    listed = values.get("sentences")
    if not isinstance(listed, list) or not all(isinstance(item, Mapping) for item in listed):
        raise BadRowError("sentences: must be a list of {raw, sent}")
    sentences = data_rows.texts([item.get("sent") for item in listed], "sentences")
    return _each(values, sentences, "sent", values.get("ref_id"))


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


# Vision-R1's columns (2503.18013; github.com/jefferyZhan/Griffon, Vision-R1/vision_r1/visionr1_qwen.py).

MOST_CHARS = 100_000  # of a row's list


def _vision_r1_row(values: Mapping[str, Any], place: Place) -> LabelledScene:
    """`{problem, image, solution, width, height, num_instances, target_id_maps}`.

    `solution`: `[[label, [x1, y1, x2, y2]], ..]` in pixels, as JSON; `target_id_maps`: `{label: id}`, all that is
    asked for. An id of 0 is the background.
    """
    question = data_rows.text_field(values, "problem").replace("<image>", "").strip()
    image, size = data_rows.image(values, "image", place)
    data_rows.same_size(values, size)
    listed = _json(values, "solution")
    if not isinstance(listed, list) or not all(isinstance(item, list) and len(item) == 2 for item in listed):
        raise BadRowError("solution: must be a list of [label, [x1, y1, x2, y2]]")
    if values.get("num_instances", len(listed)) != len(listed):
        raise BadRowError(f"num_instances: {values['num_instances']}, but solution has {len(listed)}")
    objects = [records.read_object(label, box, f"solution[{i}]", size) for i, (label, box) in enumerate(listed)]
    return records.scene(
        records.identity(values, place), image, objects, question=question, labels=_labels(values, objects)
    )


def _labels(values: Mapping[str, Any], objects: list[Any]) -> tuple[str, ...]:
    """The labels of the map, less its background; each object's must be there, whatever its case."""
    ids = _json(values, "target_id_maps")
    if not isinstance(ids, Mapping) or not all(isinstance(number, int) for number in ids.values()):
        raise BadRowError("target_id_maps: must be an object of label: id")
    labels = tuple(label.strip() for label, number in ids.items() if number != 0)
    unknown = {o.label for o in objects if o.label.lower() not in map(str.lower, labels)}
    if unknown:
        raise BadRowError(f"target_id_maps: lacks {', '.join(sorted(unknown))}, which solution has")
    return labels


def _json(values: Mapping[str, Any], key: str) -> Any:
    """The value, read if it is a text."""
    value = values.get(key)
    return parse.literal(value, MOST_CHARS).value if isinstance(value, str) else value


VISION_R1_SCENES = {"vision_r1": Form(frozenset({"problem", "image", "solution", "target_id_maps"}), _vision_r1_row)}


# VLM-R1's JSON lines (2504.07615; github.com/om-ai-lab/VLM-R1, grpo_jsonl.py): any question, any reward.

REC = "Please provide the bounding box coordinate of the region this sentence describes: "
MARK = "<image>"


def turns(values: Mapping[str, Any]) -> tuple[str, str]:
    """`conversations`: the question without image marks, the truth without answer tags."""
    listed = values.get("conversations")
    texts = (
        [turn.get("value") for turn in listed or () if isinstance(turn, Mapping)] if isinstance(listed, list) else []
    )
    if len(texts) != 2 or not isinstance(texts[0], str) or not isinstance(texts[1], str | int | float):
        raise BadRowError("conversations: must be two turns with a value, the question and the answer")
    question, answer = (
        texts[0].replace(MARK, ""),
        str(texts[1]).replace("<answer>", "").replace("</answer>", "").strip(),
    )
    if not question.strip() or not answer:
        raise BadRowError("conversations: the question and the answer must not be empty")
    return question, answer


def marked(answer: str, size: data_rows.Size) -> tuple[Object, ...]:
    """The boxes of an answer: a ```json list of {bbox_2d, label}, or the word None."""
    read = parse.objects(answer)
    if read.reason:
        problem = read.reason.replace("_", " ")
        raise BadRowError(f"answer: {problem}; must be a ```json list of {{bbox_2d, label}}, or None")
    return tuple(records.read_object(o.label, list(o.box), "answer", size) for o in read.value)


def _vlm_r1_row(values: Mapping[str, Any], place: Place) -> LabelledScene:
    """`{id, image: name or list of names, conversations, accu_reward_method?}`: question and truth as they stand."""
    question, answer = turns(values)
    images, _ = data_rows.images(values, "image", place)
    method = values.get("accu_reward_method") or ""
    if not isinstance(method, str):
        raise BadRowError(f"accu_reward_method: {method!r}: must be a name")
    return LabelledScene(records.identity(values, place), images, question, answer=answer, method=method)


def _detection(values: Mapping[str, Any], place: Place) -> LabelledScene:
    """The answer is a list of objects; what else is looked for stands in the question only."""
    return _with_objects(_vlm_r1_row(values, place), place)


def _with_objects(row: LabelledScene, place: Place) -> LabelledScene:
    return _one_image(row, marked(row.answer, place.images.size(row.images[0])))


def _rec(values: Mapping[str, Any], place: Place) -> LabelledScene:
    """The answer is `[x1, y1, x2, y2]`; the phrase is what follows the usual sentence, else the whole question."""
    row = _vlm_r1_row(values, place)
    question = row.question.strip()
    phrase = question.partition(REC)[2].strip().removesuffix(".") or question
    box = parse.literal(row.answer).value
    return _one_image(row, (records.read_object(phrase, box, "answer", place.images.size(row.images[0])),))


def make_vlm_r1_forms(method: str, lists: Collection[str]) -> dict[str, Form[LabelledScene]]:
    """The format, where rows without a method have `method`, and answers of the methods of `lists` are objects."""

    def one(values: Mapping[str, Any], place: Place) -> LabelledScene:
        row = _vlm_r1_row({**values, "accu_reward_method": values.get("accu_reward_method") or method}, place)
        return _with_objects(row, place) if row.method in lists else row

    return {"vlm_r1": Form(VLM_R1_KEYS, one)}


def _one_image(row: LabelledScene, objects: tuple[Object, ...]) -> LabelledScene:
    if len(row.images) != 1:
        raise BadRowError(f"image: {len(row.images)} images; boxes need exactly one")
    fields = {"question": row.question, "answer": row.answer, "method": row.method}
    return records.scene(row.id, row.images[0], objects, **fields)


VLM_R1_KEYS = frozenset({"image", "conversations"})
VLM_R1_SCENES = {"vlm_r1": Form(VLM_R1_KEYS, _detection)}
VLM_R1_REFERRING = {"vlm_r1": Form(VLM_R1_KEYS, _rec)}
