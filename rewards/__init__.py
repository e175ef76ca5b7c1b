"""Rule-based rewards: pure functions of text and plain data that never raise on model output. See docs/rewards.md."""

# lowest and highest value of every reward, which property tests hold it to
RANGES: dict[str, tuple[float, float]] = {
    "boxes.edges": (0, 1),
    "boxes.iou": (0, 1),
    "format.tagged": (0, 1),
    "gui_g1.edges": (0, 0.125),
    "gui_g1.hit": (0, 1),
    "gui_g1.iou": (0, 0.25),
    "gui_odyssey.click": (0, 1),
    "gui_odyssey.step": (0, 1),
    "gui_r1.accuracy": (0, 1),
    "gui_r1.format": (0, 1),
    "gui_r1.overall": (0, 1),
    "order.adjacencies": (0, 1),
    "order.exact": (0, 1),
    "order.index_accuracy": (0, 1),
    "points.in_box": (0, 1),
    "points.near": (0, 1),
    "steps.advances": (0, 1),
    "text.direction": (0, 1),
    "text.similar": (0, 1),
    "text.token_f1": (0, 1),
    "text.verdict": (0, 1),
    "ui_r1.action": (0, 1),
    "ui_r1.coordinate": (0, 1),
    "ui_r1.format": (0, 1),
}
