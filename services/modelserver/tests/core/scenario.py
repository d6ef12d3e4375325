"""The language of testdata/*.txt: commands to a batcher, and what it then says.

    command arguments, one or more lines
    ----
    what is printed
    (blank line)

    pool blocks=8 budget=64 [seqs=8 chunk=N watermark=N external=1]   a new batcher
    add NAME prompt=PART[+PART] max=N [req=R prio=P]
        a part is STREAM:N, the first N tokens of a stream that shares none with others,
        or @NAME, an earlier sequence's prompt and output
    plan | commit | discard | step [N]                                N steps of both
    run                                      step until there is nothing to plan
    abort REQ | finish NAME REASON
    found NAME N | loaded NAME N [wrong=I] | failed NAME              the external tier
    state                                    blocks and queues
    output NAME

The books are checked after every command. Blocks print as their ids.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from services.modelserver.herd.core.batcher import Batcher
from services.modelserver.herd.core.errors import BatcherError, NeverFits
from services.modelserver.herd.core.plan import Finished, FinishReason, StepPlan
from services.modelserver.herd.core.sequence import External, Sequence, Status
from services.modelserver.tests.core.factories import make_batcher, make_sequence, prompt_of
from services.modelserver.tests.core.sim_engine import SimEngine, expected_output


def rewritten(script: Path) -> str:
    """The script's text with its outputs replaced by what happens now."""
    return "\n".join(_run(script.read_text(encoding="utf-8").splitlines()))


def _run(lines: list[str]) -> Iterator[str]:
    scenario = Scenario()
    printed = False
    for line in lines:
        if printed and line:
            continue
        printed = line == "----"
        if printed:
            yield line
            yield from scenario.take_output()
            continue
        if line and not line.startswith("#"):
            scenario.execute(line)
        yield line
    yield ""


class Scenario:
    """One batcher and the commands that drive it."""

    def __init__(self) -> None:
        self._engine: SimEngine | None = None
        self._out: list[str] = []

    @property
    def engine(self) -> SimEngine:
        assert self._engine is not None, "start with `pool`"
        return self._engine

    @property
    def batcher(self) -> Batcher:
        return self.engine.batcher

    def take_output(self) -> list[str]:
        out, self._out = self._out or ["ok"], []
        return out

    def execute(self, line: str) -> None:
        command, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        names = [word for word in words if "=" not in word]
        handler: Callable[[list[str], dict[str, str]], None] = getattr(self, f"do_{command}")
        try:
            handler(names, options)
        except (BatcherError, NeverFits, ValueError) as error:
            self._say(f"{type(error).__name__}: {error}")
        except Exception as error:
            error.add_note(f"in scenario line: {line}")
            raise
        self.batcher.check_integrity()

    def do_pool(self, _names: list[str], options: dict[str, str]) -> None:
        self._engine = SimEngine(
            make_batcher(
                int(options["blocks"]),
                int(options["budget"]),
                int(options.get("seqs", "8")),
                prefill_chunk=int(options["chunk"]) if "chunk" in options else None,
                watermark_blocks=int(options.get("watermark", "0")),
                external_tier="external" in options,
            )
        )

    def do_add(self, names: list[str], options: dict[str, str]) -> None:
        seq = make_sequence(
            names[0],
            self._prompt(options["prompt"]),
            int(options["max"]),
            request_id=options.get("req"),
            priority=int(options.get("prio", "0")),
        )
        self.engine.add(seq)

    def do_step(self, names: list[str], _options: dict[str, str]) -> None:
        for _ in range(int(names[0]) if names else 1):
            self.do_plan([], {})
            if self.engine.in_flight is not None:
                self.do_commit([], {})

    def do_run(self, _names: list[str], _options: dict[str, str]) -> None:
        while self.engine.plan() is not None:
            self.do_commit([], {})
            self.batcher.check_integrity()

    def do_plan(self, _names: list[str], _options: dict[str, str]) -> None:
        plan = self.engine.plan()
        if plan is None:
            self._say("nothing to do")
        else:
            self._print_plan(plan)

    def do_commit(self, _names: list[str], _options: dict[str, str]) -> None:
        self._print_ends(self.engine.commit())

    def do_discard(self, _names: list[str], _options: dict[str, str]) -> None:
        plan, self.engine.in_flight = self.engine.in_flight, None
        assert plan is not None, "nothing planned"
        self.batcher.discard(plan)

    def do_abort(self, names: list[str], _options: dict[str, str]) -> None:
        self._print_ends(self.engine.abort(names[0]))

    def do_finish(self, names: list[str], _options: dict[str, str]) -> None:
        self.engine.finish(names[0], FinishReason(names[1]))

    def do_found(self, names: list[str], _options: dict[str, str]) -> None:
        evictions = self.batcher.stats().evictions
        reserved = self.engine.found(names[0], int(names[1]))
        lost = self.batcher.stats().evictions - evictions
        self._say(f"reserved {reserved}, evicting {lost}")

    def do_loaded(self, names: list[str], options: dict[str, str]) -> None:
        wrong_from = int(options["wrong"]) if "wrong" in options else None
        accepted = self.engine.loaded(names[0], int(names[1]), wrong_from=wrong_from)
        self._say(f"accepted {accepted}")

    def do_failed(self, names: list[str], _options: dict[str, str]) -> None:
        self.engine.failed(names[0])

    def do_state(self, _names: list[str], _options: dict[str, str]) -> None:
        stats = self.batcher.stats()
        self._say(
            f"blocks: {stats.free_blocks} free, {stats.used_blocks} used, "
            f"{stats.cached_blocks} cached"
        )
        for seq in self.engine.sequences.values():
            if seq.status is not Status.FINISHED:
                self._say(_sequence_line(seq))

    def do_output(self, names: list[str], _options: dict[str, str]) -> None:
        seq = self.engine.sequences[names[0]]
        wanted = expected_output(seq.tokens[: seq.num_prompt], seq.limits)
        right = seq.output == wanted[: seq.num_output]
        self._say(f"{seq.num_output} tokens, {'all as' if right else 'NOT as'} the model alone")

    def _prompt(self, spec: str) -> list[int]:
        tokens: list[int] = []
        for part in spec.split("+"):
            earlier = part.removeprefix("@")
            tokens += prompt_of(part) if earlier == part else self.engine.sequences[earlier].tokens
        return tokens

    def _say(self, line: str) -> None:
        self._out.append(line)

    def _print_ends(self, ends: list[Finished]) -> None:
        for end in ends:
            self._say(f"end {end.seq_id} {end.reason}")

    def _print_plan(self, plan: StepPlan) -> None:
        self._say(f"step {plan.step}: {plan.num_tokens} tokens")
        for seq_id in plan.preempted:
            self._say(f"  preempt {seq_id}")
        for chunk in plan.chunks:
            end = chunk.start + chunk.count
            blocks = ",".join(map(str, chunk.block_table))
            tail = " sample" if chunk.sample else ""
            self._say(f"  {chunk.seq_id} [{chunk.start}, {end}) blocks {blocks}{tail}")
        for lost in plan.evicted:
            self._say(f"  evict block {lost.block}")
        for lookup in plan.lookups:
            self._say(
                f"  look up {lookup.seq_id}: {len(lookup.keys)} from {lookup.first_block_index}"
            )


def _sequence_line(seq: Sequence) -> str:
    notes = []
    if seq.external is External.PENDING:
        notes.append("asking the tier")
    if seq.num_preemptions:
        notes.append(f"preempted {seq.num_preemptions}x")
    computed = f"{seq.num_computed}/{len(seq.tokens)}"
    return ", ".join([f"{seq.seq_id} {seq.status.name.lower()} {computed}", *notes])
