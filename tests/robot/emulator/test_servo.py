"""A servo alone: its memory, its angles, what it holds, how it protects itself, what it answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robot.emulator.faults import Trouble
from robot.emulator.servo import ACTION, BROADCAST, PING, REG_WRITE, TABLE, Packet, Registers, Servo
from robot.sim import so101 as arm


def servo(joint=0, mount=100, degrees=10.0, **trouble):
    made = Servo(joint, mount)
    made.suffer(Trouble(**trouble))
    made.sense(degrees, 0.0, 0.0, 0.0)
    return made


def write(made, name, value):
    register = TABLE[name]
    return made.write(register.address, value.to_bytes(register.size, "little"))


@given(st.sampled_from(sorted(TABLE)), st.integers(-(2**15) + 1, 2**16 - 1))
def test_registers_hold_what_they_can(name, value):
    """A number too large would spill into the next register."""
    registers, others = Registers(), [other for other in TABLE if other != name]
    before = {other: registers.get(other) for other in others}
    registers.put(name, value)
    register = TABLE[name]
    most = (1 << (register.sign or 8 * register.size)) - 1
    low = -most if register.sign else 0
    assert registers.get(name) == min(max(value, low), most)
    assert {other: registers.get(other) for other in others} == before


@given(st.integers(0, 255), st.binary(min_size=1, max_size=60))
def test_writes_stay_within_the_memory(address, data):
    """A hostile or garbled write would end the emulator, or make up a measurement."""
    registers = Registers()
    model, position = registers.get("Model_Number"), registers.get("Present_Position")
    registers.write(address, data)
    assert (registers.get("Model_Number"), registers.get("Present_Position")) == (model, position)
    assert len(registers.read(address, 250)) == 250


def test_what_is_locked_does_not_outlive_power():
    """A calibration would seem to be kept that the real servo forgets."""
    made = servo()
    write(made, "Lock", 1)
    write(made, "P_Coefficient", 5)
    made.restart()
    assert made.registers.get("P_Coefficient") == 32
    write(made, "Lock", 0)
    write(made, "P_Coefficient", 5)
    made.restart()
    assert made.registers.get("P_Coefficient") == 5 and made.registers.get("Homing_Offset") == 100


@given(st.integers(0, 5), st.integers(-400, 400), st.floats(0, 1))
def test_calibrated_steps_mean_lerobots_degrees(joint, mount, share):
    """The arm would stand elsewhere than lerobot says."""
    low, high = arm.LIMITS[joint]
    degrees, made = float(low + share * (high - low)), Servo(joint, mount)
    raw = made.raw(degrees)
    first, last = made.encoder.range
    assert first - 1 <= raw <= last + 1
    said = (raw - (first + last) / 2) * 360 / 4095 if joint < 5 else 100 * (raw - first) / (last - first)
    truly = degrees if joint < 5 else 100 * (degrees - low) / (high - low)
    assert abs(said - truly) < 0.2
    assert abs(made.encoder.degrees(raw, mount) - degrees) <= 360 / 4096


def test_torque_comes_on_where_the_arm_is():
    """The arm would leap to an old goal."""
    made = servo(degrees=40.0)
    write(made, "Torque_Enable", 1)
    assert abs(made.law(0.01).target - 40 * 3.14159 / 180) < 0.01
    assert made.registers.get("Goal_Position") == made.registers.get("Present_Position")


def test_a_goal_set_before_torque_is_kept():
    """A handover that first tells the goal would be forgotten."""
    made = servo(degrees=0.0)
    write(made, "Goal_Position", 2500)
    write(made, "Torque_Enable", 1)
    made.law(0.01)
    assert made.registers.get("Goal_Position") == 2500


def test_a_goal_velocity_slows_the_way():
    """A register that users set for safety would do nothing."""
    made = servo(degrees=0.0)
    write(made, "Torque_Enable", 1)
    write(made, "Goal_Velocity", 100)
    start = made.law(0.1).target
    write(made, "Goal_Position", 3000)
    assert abs(made.law(0.1).target - start) < 11 * 3.1416 * 2 / 4096


def test_limits_and_torque_are_the_firmwares():
    """A goal beyond the stop would be chased; a limit of torque would be none."""
    made = servo()
    write(made, "Torque_Enable", 1)
    write(made, "Goal_Position", 4000)
    write(made, "Max_Torque_Limit", 500)
    law = made.law(0.01)
    assert abs(law.target - 110 * 3.14159 / 180) < 0.01 and law.limit == arm.TORQUE / 2
    write(made, "Torque_Enable", 0)
    assert made.law(0.01).stiffness == 0


def test_heat_lets_go_and_stays_off_until_it_is_cool():
    """An overheated servo would be driven on."""
    made = servo(heating=50.0)
    write(made, "Torque_Enable", 1)
    said = [word for _ in range(4) for word in made.sense(10.0, 0.0, 0.0, 0.5)]
    assert said == ["overheated"] and not made.holds
    assert made.answer(Packet(1, PING))[0].code == 4
    write(made, "Torque_Enable", 1)
    made.sense(10.0, 0.0, 0.0, 0.01)
    assert not made.holds
    made.suffer(Trouble())
    made.sense(10.0, 0.0, 0.0, 0.01)
    write(made, "Torque_Enable", 1)
    made.sense(10.0, 0.0, 0.0, 0.01)
    assert made.holds


def test_a_long_load_cuts_the_torque_until_the_goal_leads_back():
    """A jammed gripper would burn; repeated goals must not hide it."""
    made = servo(degrees=0.0)
    write(made, "Torque_Enable", 1)
    goal = made.registers.get("Present_Position") + 500
    said = []
    for _ in range(30):
        write(made, "Goal_Position", goal)
        said += made.sense(0.0, 0.0, 0.9 * arm.TORQUE, 0.1)
    assert said == ["overloaded"] and made.law(0.01).limit == pytest.approx(0.2 * arm.TORQUE)
    assert made.answer(Packet(1, PING))[0].code == 32
    made.sense(0.0, 0.0, 0.1, 0.1)
    write(made, "Goal_Position", goal - 1000)
    assert made.error() == 0


def test_a_registered_write_waits_for_its_action():
    """Joints that are to start together would not."""
    made = servo()
    made.answer(Packet(1, REG_WRITE, bytes((42, 0x10, 0x08))))
    assert made.registers.get("Goal_Position") == 0
    said, written = made.answer(Packet(BROADCAST, ACTION))
    assert said is None and written == {"Goal_Position"} and made.registers.get("Goal_Position") == 0x810


@given(st.integers(0, 255), st.binary(max_size=20))
def test_no_instruction_raises(code, params):
    """A hostile packet would end the emulator."""
    servo().answer(Packet(1, code, params))
