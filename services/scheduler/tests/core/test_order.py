from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.order import PATIENCE_S, WaitingSteps, turn
from services.scheduler.core.step import Step, Window


def step(name: str, arrived: float, window: Window = Window.STANDARD) -> Step:
    return Step(step_id=name, arrived=arrived, prompt_tokens=1, window=window)


def drained(waiting: WaitingSteps) -> list[str]:
    names = []
    while (first := waiting.first()) is not None:
        names.append(first.step_id)
        waiting.remove(first.step_id)
    return names


def test_interactive_work_passes_batch_work_that_came_before() -> None:
    waiting = WaitingSteps()
    waiting.push(step("batch", 0.0, Window.BATCH))
    waiting.push(step("flex", 1.0, Window.FLEX))
    waiting.push(step("asap", 100.0, Window.ASAP))
    assert drained(waiting) == ["asap", "flex", "batch"]


def test_batch_work_is_not_starved_by_interactive_work() -> None:
    waiting = WaitingSteps()
    waiting.push(step("batch", 0.0, Window.BATCH))
    for n in range(100):
        waiting.push(step(f"asap-{n}", 60.0 * n, Window.ASAP))
    assert drained(waiting).index("batch") == PATIENCE_S[Window.BATCH] / 60.0


def test_equal_turns_go_in_the_order_of_asking() -> None:
    waiting = WaitingSteps()
    for name in "cab":
        waiting.push(step(name, 5.0))
    assert drained(waiting) == ["c", "a", "b"]


def test_a_step_that_left_and_came_back_waits_anew() -> None:
    waiting = WaitingSteps()
    waiting.push(step("a", 0.0))
    waiting.push(step("b", 1.0))
    assert waiting.remove("a") and not waiting.remove("a")
    waiting.push(step("a", 2.0))
    assert drained(waiting) == ["b", "a"]


@given(
    st.lists(st.tuples(st.floats(0, 5000), st.sampled_from(Window), st.booleans()), max_size=200)
)
def test_the_order_is_by_turn_whatever_leaves_in_between(
    arrivals: list[tuple[float, Window, bool]],
) -> None:
    waiting = WaitingSteps()
    staying = []
    for n, (arrived, window, leaves) in enumerate(arrivals):
        waiting.push(step(str(n), arrived, window))
        if leaves:
            waiting.remove(str(n))
        else:
            staying.append(step(str(n), arrived, window))
    assert len(waiting) == len(staying)
    assert drained(waiting) == [s.step_id for s in sorted(staying, key=turn)]
