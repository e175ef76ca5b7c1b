"""Scores completions without a model: by a task, as in training, and by one reward function.

python examples/score_completions.py
"""

import vlrl

BUTTON = [912, 20, 960, 64]  # x1, y1, x2, y2, pixels
COMPLETIONS = [
    "<answer>[936, 42]</answer>",
    "<answer>[10, 10]</answer>",
    "It is at [936, 42].",
    "<answer>[NaN, 42]</answer>",
]


def main() -> None:
    rows = [{"completion": text, "answer": BUTTON, "image_size": [1280, 720]} for text in COMPLETIONS]
    for row, scored in zip(rows, vlrl.score_rows("gui_grounding", rows), strict=True):
        why = f", because: {scored['reason']}" if scored["reason"] else ""
        print(f"{row['completion']:30} earns {scored['reward']:.1f} {scored['parts']}{why}")
    overlap = {"inputs": {"first": [900, 20, 960, 64], "second": BUTTON}}
    print(f"boxes.iou alone: {vlrl.score_rows('boxes.iou', [overlap])[0]['value']:.2f}")


if __name__ == "__main__":
    main()
