"""The state machine of a run: no order of answers, breaks and retries loses or doubles a line."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.scheduler.core.line_set import LineSet
from services.scheduler.core.run import Line, Outcome, RunLimits, RunState, Verdict, by_prefix

LIMITS = RunLimits(max_attempts=3, max_retry_s=100.0, backoff_s=1.0, max_backoff_s=8.0, low_water=2)


def line(number: int, key: bytes = b"") -> Line:
    return Line(line=number, offset=100 * number, length=99, prefix_key=key)


def run_of(total: int, done: tuple[int, ...] = (), limits: RunLimits = LIMITS) -> RunState:
    answered = LineSet()
    for number in done:
        answered.add(number)
    return RunState(total, answered, completed=len(done), limits=limits)


def numbers(sent: list[tuple[str, Line]]) -> list[int]:
    return [each.line for _, each in sent]


def test_lines_with_a_common_prefix_go_side_by_side() -> None:
    lines = [line(1, b"x"), line(2, b"y"), line(3, b"x"), line(4, b"z"), line(5, b"y")]
    assert [each.line for each in by_prefix(lines)] == [1, 3, 2, 5, 4]


def test_a_resumed_run_hands_out_only_what_has_no_outcome() -> None:
    run = run_of(5, done=(2, 4))
    run.feed([line(n) for n in range(1, 6)], last=True)
    assert numbers(run.hand_out(0.0, 10, ["r"])) == [1, 3, 5]


def test_no_more_than_the_window_is_unanswered() -> None:
    run = run_of(5)
    run.feed([line(n) for n in range(1, 6)], last=True)
    assert numbers(run.hand_out(0.0, 2, ["r"])) == [1, 2]
    assert run.hand_out(0.0, 2, ["r"]) == []
    assert run.answered("r", 1, Outcome.OUTPUT, 1.0) is Verdict.RECORD
    assert numbers(run.hand_out(1.0, 2, ["r"])) == [3]


def test_lines_are_spread_over_the_workers() -> None:
    run = run_of(4)
    run.feed([line(n) for n in range(1, 5)], last=True)
    assert [worker for worker, _ in run.hand_out(0.0, 4, ["r", "q"])] == ["q", "r", "q", "r"]


def test_only_the_worker_that_has_the_line_can_answer_it_and_only_once() -> None:
    run = run_of(1)
    run.feed([line(1)], last=True)
    run.hand_out(0.0, 1, ["r"])
    assert run.answered("other", 1, Outcome.OUTPUT, 0.0) is Verdict.IGNORED
    assert run.answered("r", 1, Outcome.ERROR, 0.0) is Verdict.RECORD
    assert run.answered("r", 1, Outcome.OUTPUT, 0.0) is Verdict.IGNORED
    assert (run.completed, run.failed, run.finished) == (0, 1, True)


def test_retries_end_by_number() -> None:
    run = run_of(1)
    run.feed([line(1)], last=True)
    now, verdicts = 0.0, []
    while not run.finished:
        run.hand_out(now, 1, ["r"])
        verdicts.append(run.answered("r", 1, Outcome.RETRY, now))
        now = run.next_retry_at() or now
    assert verdicts == [Verdict.RESTING, Verdict.RESTING, Verdict.GAVE_UP]
    assert run.failed == 1


def test_retries_end_by_time() -> None:
    run = run_of(1, limits=RunLimits(max_attempts=1000, max_retry_s=10.0))
    run.feed([line(1)], last=True)
    run.hand_out(0.0, 1, ["r"])
    assert run.answered("r", 1, Outcome.RETRY, 1.0) is Verdict.RESTING
    run.hand_out(5.0, 1, ["r"])
    assert run.answered("r", 1, Outcome.RETRY, 9.9, retry_after_s=5.0) is Verdict.GAVE_UP


def test_losses_end_by_a_number_of_their_own() -> None:
    run = run_of(1, limits=RunLimits(max_attempts=2, max_losses=3, max_retry_s=10.0))
    run.feed([line(1)], last=True)
    now, verdicts = 0.0, []
    for outcome in (Outcome.LOST, Outcome.RETRY, Outcome.LOST, Outcome.LOST):
        assert numbers(run.hand_out(now, 1, ["r"])) == [1]
        now += 9.0
        verdicts.append(run.answered("r", 1, outcome, now))
        run.losses_saved(run.losses)
        now = run.next_retry_at() or now
    assert verdicts == [Verdict.RESTING] * 3 + [Verdict.GAVE_UP]


def test_a_line_is_not_handed_out_again_before_its_loss_is_saved() -> None:
    run = run_of(2)
    run.feed([line(1), line(2)], last=True)
    run.hand_out(0.0, 1, ["r"])
    assert run.answered("r", 1, Outcome.LOST, 0.0) is Verdict.RESTING
    assert run.losses == {1: 1} and run.losses_unsaved
    assert numbers(run.hand_out(50.0, 2, ["r"])) == [2]
    run.losses_saved({1: 1})
    assert numbers(run.hand_out(50.0, 2, ["r"])) == [1]
    run.answered("r", 1, Outcome.LOST, 50.0)
    run.losses_saved({1: 1})  # what was written before
    assert run.losses_unsaved
    run.losses_saved({1: 2})
    assert numbers(run.hand_out(99.0, 2, ["r"])) == [1]
    assert run.answered("r", 1, Outcome.OUTPUT, 99.0) is Verdict.RECORD
    assert run.losses == {}


def test_losses_are_counted_on_by_the_next_leader() -> None:
    """A new leader after every loss: the line still meets its limit, and goes in small company."""
    limits, last = RunLimits(max_losses=3), Verdict.RESTING
    losses: dict[int, int] = {}
    for leader in range(1, 4):
        run = RunState(20, LineSet(), limits=limits, losses=losses)
        run.feed([line(n) for n in range(1, 21)], last=True)
        sent = numbers(run.hand_out(0.0, 8, ["r"]))
        assert (7 in sent) and len(sent) == 8
        last = run.answered("r", 7, Outcome.LOST, 0.0)
        losses = dict(run.losses)
        run.check_integrity()
        assert losses == ({7: leader} if leader < 3 else {})
    assert last is Verdict.GAVE_UP


@pytest.mark.parametrize("window", [4, 16, 64, 512])
def test_a_line_that_kills_its_server_ends_alone_and_no_other_is_given_up(window: int) -> None:
    """Whenever line 7 is in flight, all that is in flight is lost."""
    total, bad = 3 * window, 7
    run = run_of(total, limits=RunLimits())
    run.feed([line(n) for n in range(1, total + 1)], last=True)
    now, kills, given_up = 0.0, 0, []
    while not run.finished:
        out = [n for n in range(1, total + 1) if run.handed_out(n)]
        out += numbers(run.hand_out(now, window, ["r"]))
        if bad in out:
            kills += 1
            for n in out:
                if run.answered("r", n, Outcome.LOST, now) is Verdict.GAVE_UP:
                    given_up.append(n)
        else:
            for n in out:
                assert run.answered("r", n, Outcome.OUTPUT, now) is Verdict.RECORD
        run.losses_saved(run.losses)
        run.check_integrity()
        now = max(now + 1.0, run.next_retry_at() or 0.0)
    assert given_up == [bad]
    assert kills == RunLimits().max_losses
    assert (run.completed, run.failed) == (total - 1, 1)


def test_lines_that_were_in_no_loss_do_not_wait_for_those_that_were() -> None:
    run = run_of(8)
    run.feed([line(n) for n in range(1, 9)], last=True)
    assert numbers(run.hand_out(0.0, 4, ["r"])) == [1, 2, 3, 4]
    run.worker_lost("r", 0.0)
    run.losses_saved(run.losses)
    # A quarter of a window of 4 is one.
    assert numbers(run.hand_out(1.0, 4, ["r"])) == [1, 5, 6, 7]
    assert run.next_retry_at() is None
    assert run.answered("r", 1, Outcome.OUTPUT, 2.0) is Verdict.RECORD
    assert run.next_retry_at() == 1.0
    assert numbers(run.hand_out(2.0, 4, ["r"])) == [2]


def test_an_asked_for_rest_is_kept_within_bounds() -> None:
    run = run_of(1)
    run.feed([line(1)], last=True)
    run.hand_out(0.0, 1, ["r"])
    run.answered("r", 1, Outcome.RETRY, 0.0, retry_after_s=5.0)
    assert run.next_retry_at() == 5.0
    run.hand_out(5.0, 1, ["r"])
    run.answered("r", 1, Outcome.RETRY, 5.0, retry_after_s=1e9)
    assert run.next_retry_at() == 5.0 + LIMITS.max_backoff_s


def test_a_stopped_run_waits_for_what_is_out_and_takes_its_answers() -> None:
    run = run_of(3)
    run.feed([line(n) for n in range(1, 4)], last=True)
    run.hand_out(0.0, 2, ["r"])
    assert run.stop() == {"r": [1, 2]}
    assert not run.finished
    assert run.answered("r", 1, Outcome.OUTPUT, 1.0) is Verdict.RECORD
    assert run.answered("r", 2, Outcome.CANCELLED, 1.0) is Verdict.DROPPED
    assert run.finished and (run.completed, run.failed) == (1, 0)
    assert run.hand_out(2.0, 2, ["r"]) == []


# The life of one run as a script; `testdata/run.txt` has what must come of each command.

SCENARIO = Path(__file__).parent / "testdata" / "run.txt"


def play(script: str) -> str:
    """Each `> command` followed by what it does and the state after it."""
    run = run_of(6, done=(2,))
    now, out = 0.0, []
    for command in (row for row in script.splitlines() if row.startswith(("> ", "#"))):
        out.append(command)
        if command.startswith("#"):
            continue
        verb, *args = command[2:].split()
        if verb == "feed":
            run.feed(
                [line(int(a.split("/")[0]), a.encode()[-1:]) for a in args[:-1]], args[-1] == "last"
            )
        elif verb == "at":
            now = float(args[0])
        elif verb == "hand":
            sent = run.hand_out(now, int(args[0]), args[1:])
            out += [f"  {worker} <- line {each.line}" for worker, each in sent]
        elif verb == "lost":
            out += [f"  line {x.line}: {v.value}" for x, v in run.worker_lost(args[0], now)]
        elif verb == "saved":
            run.losses_saved(run.losses)
        elif verb == "stop":
            out += [f"  {worker} gives up {lines}" for worker, lines in run.stop().items()]
        else:
            verdict = run.answered(args[0], int(args[1]), Outcome(verb), now)
            out.append(f"  line {args[1]}: {verdict.value}")
        run.check_integrity()
        retry = run.next_retry_at()
        out.append(
            f"  = running {run.running} completed {run.completed} failed {run.failed}"
            + (f" retry at {retry:g}" if retry is not None else "")
            + (" finished" if run.finished else "")
        )
    return "\n".join(out) + "\n"


def test_the_golden_scenario() -> None:
    script = SCENARIO.read_text()
    assert play(script) == script


class RunMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.run = run_of(30, done=(5, 6))
        self.fed = 0
        self.now = 0.0
        self.ended: list[int] = [5, 6]
        self.held: dict[str, list[int]] = {"q": [], "r": []}
        self.saved: dict[int, int] = {}
        self.lost: Counter[int] = Counter()

    workers = st.sampled_from(["q", "r"])

    @rule(count=st.integers(1, 10))
    def feed(self, count: int) -> None:
        if self.run.wants_feed():
            upto = min(30, self.fed + count)
            window = [line(n, bytes([n % 3])) for n in range(self.fed + 1, upto + 1)]
            self.fed = upto
            self.run.feed(window, last=upto == 30)

    @rule(window=st.integers(0, 12))
    def hand_out(self, window: int) -> None:
        for worker, each in self.run.hand_out(self.now, window, ["q", "r"]):
            assert each.line not in self.ended, "an ended line was handed out"
            assert not any(each.line in lines for lines in self.held.values())
            assert self.saved.get(each.line, 0) == self.lost[each.line], "a loss may be forgotten"
            self.held[worker].append(each.line)
        assert sum(map(len, self.held.values())) == self.run.running

    @rule(worker=workers, outcome=st.sampled_from(Outcome), data=st.data())
    def answer(self, worker: str, outcome: Outcome, data: st.DataObject) -> None:
        if not self.held[worker]:
            return
        number = data.draw(st.sampled_from(self.held[worker]))
        verdict = self.run.answered(worker, number, outcome, self.now)
        self.held[worker].remove(number)
        self.lost[number] += outcome is Outcome.LOST
        if verdict in (Verdict.RECORD, Verdict.GAVE_UP):
            self.ended.append(number)

    @rule(worker=workers)
    def lose(self, worker: str) -> None:
        verdicts = self.run.worker_lost(worker, self.now)
        assert sorted(x.line for x, _ in verdicts) == sorted(self.held[worker])
        self.held[worker] = []
        self.lost.update(x.line for x, _ in verdicts)
        self.ended += [x.line for x, verdict in verdicts if verdict is Verdict.GAVE_UP]

    @rule()
    def save(self) -> None:
        self.saved = dict(self.run.losses)
        self.run.losses_saved(self.saved)

    @rule()
    def change_leader(self) -> None:
        """What was answered is recorded; what was out, and what was not saved, is forgotten."""
        answered = LineSet()
        for number in self.ended:
            answered.add(number)
        done, failed = self.run.completed, self.run.failed
        self.saved = {n: times for n, times in self.saved.items() if n not in answered}
        self.run = RunState(30, answered, done, failed, LIMITS, self.saved)
        self.lost = Counter(self.saved)
        self.fed = 0
        self.held = {"q": [], "r": []}

    @rule(seconds=st.floats(0, 30))
    def later(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def consistent(self) -> None:
        self.run.check_integrity()
        assert len(self.ended) == len(set(self.ended)) == self.run.completed + self.run.failed
        assert self.run.total == 30
        assert all(times < LIMITS.max_losses for times in self.run.losses.values())

    def teardown(self) -> None:
        """Whatever happened, the run can be brought to its end with each line ended once."""
        while not self.run.finished:
            if self.run.wants_feed():
                self.feed(10)
            self.save()
            self.now = max(self.now, self.run.next_retry_at() or 0.0)
            self.hand_out(12)
            for worker, lines in self.held.items():
                for number in list(lines):
                    if (
                        self.run.answered(worker, number, Outcome.OUTPUT, self.now)
                        is Verdict.RECORD
                    ):
                        self.ended.append(number)
                    lines.remove(number)
        assert sorted(self.ended) == list(range(1, 31))


RunMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRun = RunMachine.TestCase
