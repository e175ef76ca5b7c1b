"""What training teaches: tables of accuracy before and after, studies, robot policies, sheets of what tasks draw."""

from programs import run

COMMANDS = (
    "tables",
    "jigsaw_study",
    "detection_study",
    "mixture",
    "vla",
    "hil",
    "reward_model",
    "sheets",
    "robot_videos",
)

if __name__ == "__main__":
    run(__file__, COMMANDS)
