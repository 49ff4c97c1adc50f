"""Readings made by hand: the smallest, hostile names, and a million events."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pandas as pd

from memwatch.analysis.facts.biographies import CutOff
from memwatch.analysis.facts.reserved import ReservedBytes
from memwatch.analysis.tables import TEXT
from memwatch.capture.derived import DERIVED_BY_NAME, PANDAS_DTYPE
from memwatch.kinds.findings import FindingKind
from memwatch.kinds.roles import CATEGORIES
from memwatch.own_code import CodeOwner


def _index_dtype(index):
    return TEXT if isinstance(next(iter(index), None), str) else None


def table(name: str, columns: dict, index=None) -> pd.DataFrame:
    """Make a derived table. Missing columns get a neutral value, and dtypes come from the schema."""
    neutral = {"int": -1, "text": "", "float": 0.0, "bool": True}
    rows = len(next(iter(columns.values()), []))
    spec = DERIVED_BY_NAME[name].columns
    filled = {
        c.name: columns.get(c.name, [0 if c.name.endswith(("_bytes", "calls")) else neutral[c.kind]] * rows)
        for c in spec
    }
    frame = pd.DataFrame({name: pd.Series(list(values), dtype=object) for name, values in filled.items()})
    frame.index = frame.index if index is None else pd.Index(index, dtype=_index_dtype(index))
    return frame.astype({c.name: TEXT if c.kind == "text" else PANDAS_DTYPE[c.kind] for c in spec})


@dataclass
class HandMade:
    """A reading as `memwatch.load` returns it, made from tables."""

    ops: pd.DataFrame
    storages: pd.DataFrame
    timeline: pd.DataFrame
    saved: pd.DataFrame
    modules: pd.DataFrame
    steps: pd.DataFrame
    uses: pd.DataFrame = field(default_factory=lambda: table("uses", {}))
    findings: list = field(default_factory=list)
    small_findings: list = field(default_factory=list)
    ways: pd.DataFrame = field(default_factory=lambda: table("ways", {}))
    process: pd.DataFrame = field(default_factory=lambda: table("process", {}))
    notes: list = field(default_factory=list)
    meta: dict = field(default_factory=dict)
    stacks: dict = field(default_factory=dict)
    holders: dict = field(default_factory=dict)
    device: str = "cpu"
    reserved: ReservedBytes | None = None
    cut_off: CutOff | None = None

    @property
    def devices(self) -> list[str]:
        return [self.device]

    def part(self, table, columns, rows=None, *, coded=False) -> pd.DataFrame:
        frame = getattr(self, table)[list(columns)]
        return frame if rows is None else frame.loc[rows]

    def on(self, device: str) -> HandMade:
        assert device == self.device
        return self

    @property
    def peak_bytes(self) -> int:
        return int(self.timeline["live_bytes"].max())

    @property
    def baseline_bytes(self) -> int:
        return int(self.timeline["live_bytes"].iloc[0])

    @property
    def peak_increase_bytes(self) -> int:
        return self.peak_bytes - self.baseline_bytes

    @property
    def peak_event(self) -> int:
        return int(self.timeline["live_bytes"].to_numpy().argmax())

    @property
    def at_peak(self) -> pd.DataFrame:
        alive = self.live_at(self.peak_event).sort_values("nbytes", ascending=False, kind="stable")
        columns = {name: alive[name] for name in DERIVED_BY_NAME["at_peak"].names if name in alive}
        columns["share_ratio"] = alive["nbytes"] / max(self.peak_bytes, 1)
        for number, name in enumerate(("holder", "holder_kind", "path")):
            columns[name] = [self.holders.get(storage, ("", "", ""))[number] for storage in alive.index]
        return table("at_peak", {"nbytes": alive["nbytes"], **columns}, index=alive.index)

    def live_at(self, event: int) -> pd.DataFrame:
        """Return the storages alive after a row of the timeline."""
        s = self.storages
        alive = (
            (s["birth_event"] <= event) & ((s["death_event"] < 0) | (s["death_event"] > event)) & s["counted"]
        )
        return s[alive]

    def stack(self, stack_id: int) -> list:
        return self.stacks.get(stack_id, [])

    def code_owners(self, stack_id: int) -> list:
        return [CodeOwner.PROGRAM if user else CodeOwner.TORCH for *_, user in self.stack(stack_id)]


def empty() -> HandMade:
    """Return the reading of a block without events."""
    timeline = table(
        "timeline", {"time_ns": [0], "op": [-1], "storage": [-1], "delta_bytes": [0], "live_bytes": [0]}
    )
    return HandMade(
        ops=table("ops", {}),
        storages=table("storages", {}),
        timeline=timeline,
        saved=table("saved", {}),
        modules=table("modules", {}),
        steps=table("steps", {}),
    )


def from_lives(lives: list[dict], baseline: list[dict] = (), **tables) -> HandMade:
    """Make a reading from storages.

    Args:
        lives: storages with `born` and `dies` (instants, any order; `dies` None for alive at the end).
        baseline: storages alive at entry, with `dies` or not.
        tables: more of `HandMade`.
    """
    instants = []
    for storage, life in enumerate([*baseline, *lives]):
        if storage >= len(baseline):
            instants.append((life["born"], storage, life["nbytes"]))
        if life.get("dies") is not None:
            instants.append((life["dies"], storage, -life["nbytes"]))
    instants.sort(key=lambda each: each[0])
    start = sum(life["nbytes"] for life in baseline)
    deltas = [0, *(delta for *_, delta in instants)]
    timeline = table(
        "timeline",
        {
            "time_ns": [0, *(int(at * 1000) for at, *_ in instants)],
            "op": [-1, *range(len(instants))],
            "storage": [-1, *(storage for _, storage, _ in instants)],
            "delta_bytes": deltas,
            "live_bytes": (start + np.cumsum(deltas)).tolist(),
        },
    )
    born = {storage: row for row, (_, storage, delta) in enumerate(instants, 1) if delta > 0}
    dead = {storage: row for row, (_, storage, delta) in enumerate(instants, 1) if delta < 0}
    every = [*baseline, *lives]
    columns = {
        name: [life.get(name, "") for life in every]
        for name in ("name", "module", "op_name", "line", "tensor")
    }
    storages = table(
        "storages",
        {
            **columns,
            "nbytes": [life["nbytes"] for life in every],
            "device": ["cpu"] * len(every),
            "category": [life.get("category", "temporary") for life in every],
            "rule": [life.get("rule", "made by an op") for life in every],
            "origin": ["baseline"] * len(baseline) + ["op"] * len(lives),
            "op": [life.get("op", -1) for life in every],
            "birth_event": [born.get(storage, -1) for storage in range(len(every))],
            "death_event": [dead.get(storage, -1) for storage in range(len(every))],
            "stack": [life.get("stack", -1) for life in every],
        },
    )
    ops = table(
        "ops",
        {
            "name": [f"aten.op{row}.default" for row in range(len(instants))],
            "phase": ["forward"] * len(instants),
            "line": ["train.py:1"] * len(instants),
            "start_ns": [int(at * 1000) for at, *_ in instants],
        },
    )
    defaults = {name: table(name, {}) for name in ("saved", "modules", "steps")}
    return HandMade(**{"ops": ops, "storages": storages, "timeline": timeline, **defaults, **tables})


HOSTILE = [
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "\"quoted\" 'twice' `thrice` & &amp; \\ \\u003c",
    "control \x00\x01\x08\x0b\x1b[31m\x7f\x9f end",
    "line\u2028and\u2029paragraph \u202eoverride",
    "<!--<script>]]>",
    "{{ 7 * 7 }} {% raw %} ${7*7}",
    "file://x/'\"><svg onload=alert(1)>.py",
    "/very/" + "long" * 2498 + "/x",
    "undecodable \udcff name",
]


def hostile() -> HandMade:
    """Names that no user would choose, everywhere a name can stand."""
    lives = [
        {
            "nbytes": 1024 * (index + 1),
            "born": index + 1,
            "name": f"name {text}",
            "module": f"module {text}",
            "op_name": f"op {text}",
            "line": f"{text}:{index}",
            "tensor": f"tensor {text}",
            "rule": f"rule {text}",
            "stack": index,
        }
        for index, text in enumerate(HOSTILE)
    ]
    ops = table(
        "ops",
        {
            "name": HOSTILE,
            "phase": ["forward"] * len(HOSTILE),
            "line": [f"{t}:1" for t in HOSTILE],
            "module": HOSTILE,
        },
    )
    return from_lives(
        lives,
        ops=ops,
        modules=table(
            "modules", {"class_name": HOSTILE, "inclusive_bytes": [1] * len(HOSTILE)}, index=HOSTILE
        ),
        saved=table(
            "saved",
            {
                "op_name": HOSTILE,
                "line": HOSTILE,
                "module": HOSTILE,
                "tensor": HOSTILE,
                "nbytes": [8] * len(HOSTILE),
            },
        ),
        notes=[("hostile", text) for text in HOSTILE],
        findings=[
            SimpleNamespace(
                kind=FindingKind.DRAG,  # memwatch names the kind, not the program
                nbytes=1,
                holder=text,
                holder_at=text.__add__,
                site=f"{text}:1",
                advice=text,
                predicted_peak_bytes=0,
                together_peak_bytes=0,
                path=f"{text}\n{text}",
                edges=(),
                storages=(index,),
                growth_bytes=index,
                added_at=(f"{text}:1",),
                last_used=f"{text}:1",
                remark="",
                variable="",
                change="",
            )
            for index, text in enumerate(HOSTILE)
        ],
        meta={"argv": ["python", *HOSTILE], "versions": {"torch": HOSTILE[0]}},
        holders={index: (f"holder {text}", text, f"root {text}\nedge") for index, text in enumerate(HOSTILE)},
        stacks={index: [(text, 7, text, True), (text, 9, text, False)] for index, text in enumerate(HOSTILE)},
        device=HOSTILE[0],
    )


def many_events(count: int, *, steps: int = 50, seed: int = 0) -> HandMade:
    """A run of `count` events: steps that repeat with jittered times, a fifth of the sizes new."""
    random = np.random.default_rng(seed)
    births = count // 2
    per_step = births // steps
    site = np.tile(np.arange(per_step), steps)[:births]
    births = len(site)
    base = random.integers(1, 4096, per_step) * 512
    nbytes = base[site]
    fresh = random.random(births) < 0.2
    nbytes = np.where(fresh, random.integers(1, 2**21, births), nbytes)
    life = random.geometric(0.02, per_step)[site] + random.integers(0, 3, births)
    key = np.concatenate([np.arange(births), np.arange(births) + life + 0.5])
    order = np.argsort(key, kind="stable")
    storage = np.concatenate([np.arange(births)] * 2)[order]
    is_birth = order < births
    delta = np.where(is_birth, nbytes[storage], -nbytes[storage])
    event = np.arange(1, 2 * births + 1)
    baseline = 10_000_000
    time_ns = np.cumsum(random.integers(200, 90_000, 2 * births))
    op = np.minimum(np.cumsum(is_birth), births) - 1
    timeline = pd.DataFrame(
        {
            "time_ns": np.concatenate([[0], time_ns]),
            "op": np.concatenate([[-1], op]),
            "storage": np.concatenate([[-1], storage]),
            "delta_bytes": np.concatenate([[0], delta]),
            "live_bytes": baseline + np.concatenate([[0], np.cumsum(delta)]),
        }
    )
    birth, death = np.empty(births, dtype=np.int64), np.empty(births, dtype=np.int64)
    birth[storage[is_birth]], death[storage[~is_birth]] = event[is_birth], event[~is_birth]
    names = np.array([f"aten.op{i % 97}.default" for i in range(per_step)], dtype=object)
    lines = np.array([f"/home/user/project/model.py:{i % 400}" for i in range(per_step)], dtype=object)
    modules = np.array([f"layers.{i % 24}.block.{i % 7}" for i in range(per_step)], dtype=object)
    kinds = np.array(CATEGORIES, dtype=object)[random.integers(0, 9, per_step)]
    storages = pd.DataFrame(
        {
            "nbytes": nbytes,
            "device": "cpu",
            "category": kinds[site],
            "rule": "made by an op",
            "name": (names + " at " + lines)[site],
            "tensor": np.array([f"float32[{i}, 64]" for i in range(per_step)], dtype=object)[site],
            "origin": "op",
            "module": modules[site],
            "op": np.arange(births),
            "op_name": names[site],
            "line": lines[site],
            "own_line": lines[site],
            "birth_event": birth,
            "death_event": death,
            "birth_ns": 0,
            "death_ns": 0,
            "first_use_op": np.arange(births) + 1,
            "last_use_op": np.arange(births) + life,
            "address": 0,
            "stack": site,
            "counted": True,
            **dict.fromkeys(("lag_ns", "use_ns", "drag_ns", "void_ns"), 0),
        }
    )
    entered = storages.iloc[[0]].assign(
        nbytes=baseline, category="parameter", name="weight", op=-1, birth_event=-1, death_event=-1
    )
    storages = pd.concat([storages, entered], ignore_index=True)
    ops = pd.DataFrame(
        {
            "name": names[site],
            "phase": "forward",
            "module": modules[site],
            "module_class": "Block",
            "line": lines[site],
            "own_line": lines[site],
            "function": "forward",
            "stack": site,
            "step": np.repeat(np.arange(steps), per_step),
            "start_ns": time_ns[is_birth],
            "duration_ns": 1000,
            "born_bytes": nbytes,
            "workspace_bytes": 0,
            "live_bytes": 0,
            "peak_bytes": 0,
            "failed": False,
        }
    )
    starts = np.arange(steps) * per_step
    saved = table(
        "saved",
        {
            "storage": np.arange(0, births, 4),
            "nbytes": nbytes[::4],
            "op": np.arange(0, births, 4),
            "op_name": names[site][::4],
            "module": modules[site][::4],
            "line": lines[site][::4],
            "tensor": storages["tensor"].to_numpy()[:births:4],
            "saved_op": np.arange(0, births, 4),
            "used_op": np.arange(0, births, 4) + 50,
            "released_op": np.arange(0, births, 4) + 50,
            "at_peak": np.zeros(len(range(0, births, 4)), dtype=bool),
        },
    )
    return HandMade(
        ops=ops,
        storages=storages,
        timeline=timeline,
        saved=saved,
        modules=table("modules", {"class_name": ["Block"] * 24}, index=[f"layers.{i}" for i in range(24)]),
        steps=table(
            "steps",
            {"start_op": starts, "end_op": starts + per_step, "peak_op": starts, "peak_bytes": starts},
        ),
        stacks={
            i: [
                ("/home/user/project/model.py", i % 400, "forward", True),
                *(("/site/torch/nn/modules/module.py", 1700 + d, "_call_impl", False) for d in range(30)),
            ]
            for i in range(per_step)
        },
    )
