"""What is there to be found in a picture, and which predictions say nothing for or against a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rewards.boxes import Box, Object
from rewards.matching import ious, normal

INSIDE = 0.5  # a box counts as inside a crowd from this share of its area on
FOUND = 0.5  # and as an attempt at a single truth from this IoU on


@dataclass(frozen=True)
class Truth:
    """The objects of the labels asked for, boxes in pixels of the image.

    `crowd` (one per object, or empty): it is a region of many, as COCO marks them. `areas`: the annotation's, for
    COCO's ranges. `unsure`: labels of which not every object is marked, as LVIS has them.
    """

    objects: tuple[Object, ...]
    labels: tuple[str, ...]
    crowd: tuple[bool, ...] = ()
    areas: tuple[float, ...] = ()
    unsure: tuple[str, ...] = ()

    @property
    def single(self) -> tuple[Object, ...]:
        """The objects that must be found."""
        return tuple(o for i, o in enumerate(self.objects) if not (self.crowd and self.crowd[i]))

    def counted(self, predicted: Sequence[Object]) -> tuple[Object, ...]:
        """The predictions without those that hit no single truth, but lie in a crowd or have an unsure label."""
        crowds = [o for i, o in enumerate(self.objects) if self.crowd and self.crowd[i]]
        if not crowds and not self.unsure:
            return tuple(predicted)
        unsure = set(map(normal, self.unsure))
        return tuple(p for p in predicted if self._hits(p) or not (normal(p.label) in unsure or _within(p, crowds)))

    def _hits(self, predicted: Object) -> bool:
        boxes = [o.box for o in self.single if normal(o.label) == normal(predicted.label)]
        return bool(boxes) and ious([predicted.box], boxes).max() >= FOUND


def _within(predicted: Object, crowds: Sequence[Object]) -> bool:
    return any(normal(c.label) == normal(predicted.label) and _share(predicted.box, c.box) >= INSIDE for c in crowds)


def _share(box: Box, region: Box) -> float:
    """How much of the box's area lies in the region."""
    sides = [min(box[i + 2], region[i + 2]) - max(box[i], region[i]) for i in (0, 1)]
    area = (box[2] - box[0]) * (box[3] - box[1])
    return sides[0] * sides[1] / area if min(sides) > 0 and area > 0 else 0.0
