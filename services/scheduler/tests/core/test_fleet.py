"""Any order of what may happen to a fleet leaves it consistent and leaks no place."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.scheduler.core.admission import AdmissionLimits
from services.scheduler.core.fleet import FleetLimits, FleetState
from services.scheduler.core.server import SERVING, Server
from services.scheduler.core.step import Step, Window

LIMITS = FleetLimits(
    admission=AdmissionLimits(overcommit=1.5, expected_output_tokens=32),
    start_within_s=10.0,
    grace_s=2.0,
    prefix_blocks=8,
    decisions=8,
)


def server(name: str = "a", life: int = 1, running: int = 0, seen_at: float = 0.0) -> Server:
    return Server(
        member_id=name,
        address=f"{name}:1",
        incarnation=f"{name}-{life}",
        phase=SERVING,
        max_steps=4,
        block_tokens=32,
        total_blocks=1000,
        running=running,
        seen_at=seen_at,
    )


def step(name: str, arrived: float = 0.0, **fields: object) -> Step:
    return replace(Step(step_id=name, arrived=arrived, prompt_tokens=64), **fields)  # type: ignore[arg-type]


def fleet(*servers: Server) -> FleetState:
    state = FleetState(7, LIMITS)
    for each in servers or (server(),):
        state.server_seen(each)
    return state


def test_a_step_has_one_grant_however_often_it_asks() -> None:
    state = fleet()
    state.ask(step("s"))
    state.ask(step("s"))
    (grant,) = state.dispatch(0.0)
    assert state.held(step("s"), 9.9) == grant
    assert state.dispatch(9.9) == []


def test_a_grant_that_is_of_no_use_is_replaced() -> None:
    state = fleet(server("a"), server("b"))
    state.ask(step("s"))
    (first,) = state.dispatch(0.0)
    refused = step("s", exclude_member=first.member_id)
    assert state.held(refused, 1.0) is None
    state.ask(refused)
    (second,) = state.dispatch(1.0)
    assert {first.member_id, second.member_id} == {"a", "b"}
    assert state.held(refused, 11.0) is None, "its time to start is over"
    assert len(state.grants) == 0


def test_a_server_is_filled_to_its_capacity_and_no_further() -> None:
    state = fleet()
    for n in range(10):
        state.ask(step(str(n)))
    assert [g.step.step_id for g in state.dispatch(0.0)] == ["0", "1", "2", "3", "4", "5"]
    state.finished("a", state.grants.of_step("0").grant_id, ())  # type: ignore[union-attr]
    assert [g.step.step_id for g in state.dispatch(0.0)] == ["6"]


def test_nobody_overtakes_a_large_step_that_finds_no_room() -> None:
    state = fleet()
    state.ask(step("first"))
    state.dispatch(0.0)
    state.ask(step("large", choices=6))
    state.ask(step("small", arrived=1.0))
    assert state.dispatch(1.0) == []
    state.finished("a", state.grants.of_step("first").grant_id, ())  # type: ignore[union-attr]
    assert [g.step.step_id for g in state.dispatch(2.0)] == ["large"]


def test_a_restarted_server_holds_none_of_its_grants_and_none_of_its_prefixes() -> None:
    state = fleet()
    state.ask(step("s", hashes=(b"h" * 16,)))
    (grant,) = state.dispatch(0.0)
    assert state.server_seen(server(life=2)) == [grant]
    state.ask(step("s", hashes=(b"h" * 16,)))
    (again,) = state.dispatch(1.0)
    assert (again.incarnation, again.cached_tokens) == ("a-2", 0)
    assert again.grant_id != grant.grant_id


def test_an_unused_grant_returns_its_place_once_the_server_shows_no_work() -> None:
    state = fleet()
    state.ask(step("s"))
    (grant,) = state.dispatch(0.0)
    state.server_seen(server(seen_at=11.0))
    assert state.tick(11.0) == []
    state.server_seen(server(seen_at=12.5))
    assert state.tick(12.5) == [grant]
    assert len(state.grants) == 0


def test_a_step_that_runs_long_keeps_its_place() -> None:
    state = fleet()
    for n in range(6):
        state.ask(step(str(n)))
    state.dispatch(0.0)
    state.server_seen(server(running=6, seen_at=500.0))
    assert state.tick(500.0) == []
    assert state.load("a") == 6
    state.ask(step("next"))
    assert state.dispatch(500.0) == []


def test_overdue_grants_weigh_no_more_than_the_server_is_occupied() -> None:
    state = fleet()
    for n in range(6):
        state.ask(step(str(n)))
    state.dispatch(0.0)
    state.server_seen(server(running=2, seen_at=50.0))
    state.tick(50.0)
    assert state.load("a") == 2


def test_finished_steps_free_places_before_the_server_tells_its_state_again() -> None:
    state = fleet()
    for n in range(7):
        state.ask(step(str(n)))
    grants = state.dispatch(0.0)
    state.server_seen(server(running=6))
    state.finished("a", grants[0].grant_id, ())
    assert [g.step.step_id for g in state.dispatch(0.0)] == ["6"]


def test_steps_nobody_was_granted_count_too() -> None:
    state = fleet(server(running=5))
    state.ask(step("s"))
    state.ask(step("t"))
    assert len(state.dispatch(0.0)) == 1


class FleetMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = FleetState(3, LIMITS)
        self.now = 0.0
        self.lives = {"a": 1, "b": 1}
        self.asked = 0
        self.granted_ids: set[str] = set()

    names = st.sampled_from(["a", "b"])

    @rule(name=names, running=st.integers(0, 6), restarted=st.booleans())
    def seen(self, name: str, running: int, restarted: bool) -> None:
        self.lives[name] += restarted
        self.state.server_seen(server(name, self.lives[name], running, self.now))

    @rule(name=names)
    def gone(self, name: str) -> None:
        self.state.server_gone(name)

    @rule(window=st.sampled_from(Window), choices=st.integers(1, 3), again=st.booleans())
    def ask(self, window: Window, choices: int, again: bool) -> None:
        self.asked += not again
        asking = step(str(self.asked), self.now, window=window, choices=choices, hashes=(b"x",))
        if self.state.held(asking, self.now) is None:
            self.state.ask(asking)

    @rule()
    def dispatch(self) -> None:
        for grant in self.state.dispatch(self.now):
            assert grant.grant_id not in self.granted_ids, "an id was used twice"
            self.granted_ids.add(grant.grant_id)
            assert grant.expires_at == self.now + LIMITS.start_within_s

    @rule(data=st.data())
    def end_one(self, data: st.DataObject) -> None:
        grants = list(self.state.grants)
        if grants:
            grant = data.draw(st.sampled_from(grants))
            if data.draw(st.booleans()):
                self.state.release(grant.grant_id)
            else:
                self.state.finished(grant.member_id, grant.grant_id, (b"y",))
            assert self.state.release(grant.grant_id) is None

    @rule(seconds=st.floats(0, 20))
    def later(self, seconds: float) -> None:
        self.now += seconds
        self.state.tick(self.now)

    @rule()
    def withdraw(self) -> None:
        self.state.withdraw(str(self.asked))

    @invariant()
    def consistent(self) -> None:
        self.state.check_integrity()

    def teardown(self) -> None:
        """However it went: idle servers and time give every place back."""
        for grant in list(self.state.grants):
            self.state.server_seen(replace(self.state.servers[grant.member_id], running=0))
        self.now += LIMITS.start_within_s + LIMITS.grace_s + 1
        for name, known in list(self.state.servers.items()):
            life = int(known.incarnation.split("-")[1])
            self.state.server_seen(server(name, life, 0, self.now))
        self.state.tick(self.now)
        assert len(self.state.grants) == 0


FleetMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestFleet = FleetMachine.TestCase
