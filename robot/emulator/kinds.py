"""Which faults there are."""

from __future__ import annotations

from dataclasses import dataclass

ARMS = ("follower", "leader")


@dataclass(frozen=True)
class Kind:
    """What a fault does. A fault of packets strikes one packet at a time and takes count and probability."""

    plane: str  # packet, bus, servo, camera
    summary: str
    amount: float | None = None  # of what `unit` says, unless told otherwise
    unit: str = ""  # the option that sets the amount, which is its unit


KINDS = {
    "drop": Kind("packet", "a servo's answer is lost"),
    "late": Kind("packet", "a servo's answer comes late, and all that follow it", 80, "ms"),
    "corrupt": Kind("packet", "bits of an answer are flipped", 1, "bits"),
    "duplicate": Kind("packet", "an answer comes twice"),
    "short": Kind("packet", "an answer lacks its last bytes", 2, "bytes"),
    "noise": Kind("packet", "bytes of noise come before an answer", 8, "bytes"),
    "deaf": Kind("packet", "an instruction is lost on its way to a servo"),
    "silent": Kind("bus", "nothing gets through; the servos hold on"),
    "power": Kind("bus", "the servos lose their power: limp and silent; then they start anew"),
    "unplug": Kind("bus", "the port is gone until it is plugged in again; the servos hold on"),
    "dead": Kind("servo", "a servo has lost its power: limp and silent"),
    "mute": Kind("servo", "a servo holds and obeys, but does not answer"),
    "overheat": Kind("servo", "the temperature rises past the limit; the servo lets go by itself", 20, "rate"),
    "torque": Kind("servo", "a servo lets go, and says so in Torque_Enable alone"),
    "limp": Kind("servo", "a gear is broken: no torque, and no register says so"),
    "overload": Kind("servo", "the overload bit is set, torque is cut to Protective_Torque"),
    "voltage": Kind("servo", "the supply sinks: the voltage bit, less torque", 5.0, "volts"),
    "stuck": Kind("servo", "the encoder says the same for ever; the servo runs away from it"),
    "jam": Kind("servo", "the joint is blocked from outside"),
    "reset": Kind("servo", "a servo restarts at once: torque off, volatile registers as at the factory"),
    "freeze": Kind("camera", "the same picture is sent again and again"),
    "black": Kind("camera", "black pictures"),
    "stop": Kind("camera", "no pictures"),
}
COMMON = {"packet": ("count", "probability", "seconds", "servo", "arm"), "bus": ("seconds", "arm"),
          "servo": ("seconds", "servo", "arm"), "camera": ("seconds", "camera")}  # fmt: skip
