from collections.abc import Sequence

from bench.lib.agents import AgentLoad, AgentShape

SHAPE = AgentShape(traces=3, steps=4, head=20, task=5, result=7, answer=6)


class EchoServer:
    """Gives a step's whole answer at once, one step at a time."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, int]] = []
        self.prompts: dict[str, tuple[int, ...]] = {}

    def add(self, step_id: str, prompt: Sequence[int], answer: int) -> None:
        assert step_id not in self.prompts
        self.prompts[step_id] = tuple(prompt)
        self.waiting.append((step_id, answer))

    def advance(self) -> tuple[dict[str, list[int]], list[str]]:
        step_id, answer = self.waiting.pop(0)
        return {step_id: [999] * answer}, [step_id]


def run(seed: int = 1) -> EchoServer:
    server = EchoServer()
    AgentLoad(SHAPE, vocab=100, seed=seed).run(server)
    return server


def test_every_trace_makes_its_steps_and_the_counts_are_those_of_the_shape():
    prompts = run().prompts
    assert len(prompts) == 12
    assert sum(map(len, prompts.values())) == SHAPE.prompt_tokens
    assert SHAPE.answer_tokens == 72


def test_a_step_extends_the_prompt_and_answer_of_the_one_before():
    prompts = run().prompts
    for at in range(1, 4):
        before, after = prompts[f"2.{at - 1}"], prompts[f"2.{at}"]
        assert after[: len(before) + 6] == before + (999,) * 6
        assert len(after) == len(before) + 6 + 7
    assert len(prompts["2.3"]) + 6 + 7 == SHAPE.longest


def test_traces_share_the_head_and_no_more():
    prompts = run().prompts
    first, second = prompts["0.0"], prompts["1.0"]
    assert first[:20] == second[:20]
    assert first != second


def test_a_seed_gives_the_same_load():
    assert run(5).prompts == run(5).prompts
    assert run(5).prompts != run(6).prompts
