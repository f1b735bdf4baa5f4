"""The views are the tables joined, and questions find their indices."""

from collections.abc import Callable

import pytest
from sqlalchemy import create_engine, text

from lamina.record import Counter, KernelRun, LayerRun, Run
from lamina.store import Store, open_store
from lamina.store.connect import address
from lamina.store.views import VIEWS

MakeRun = Callable[..., Run]
MakeLayerRun = Callable[..., LayerRun]
RUN = "20260102-abc"


@pytest.fixture
def stocked(store: Store, a_run: MakeRun, a_layer_run: MakeLayerRun) -> Store:
    """Two runs of one layer, each with a kernel, a copy and counters."""
    for run_id in (RUN, "other"):
        layer = a_layer_run()
        store.begin(a_run(run_id))
        store.add(run_id, layer)
        launch = KernelRun(layer.key, 0, "gemm", (7, 2, 3), (128, 2, 1), 96, 4096, 31.25)
        store.add_kernels(run_id, [launch, KernelRun(layer.key, 1, "Memcpy", None, None, None, None, 1.5)])
        store.add_counters(
            run_id, [Counter(layer.key, 0, "bytes", 64.0, "byte"), Counter(layer.key, 0, "x", None, "%")]
        )
    return store


def lines(store: Store, view: str) -> list[dict[str, object]]:
    columns, rows = store.query(f"SELECT * FROM {view} WHERE run_id = '{RUN}' ORDER BY {len(VIEWS)}")
    return [dict(zip(columns, row, strict=True)) for row in rows]


def test_the_kernel_table_says_what_the_record_says(stocked: Store) -> None:
    (kernel, copy) = sorted(lines(stocked, "kernel_table"), key=lambda line: str(line["kernel"]), reverse=True)
    for line, launch in zip((kernel, copy), stocked.kernels(RUN), strict=True):
        values = {**launch.key._asdict(), **vars(launch)}
        shared = values.keys() & line.keys()
        assert {name: line[name] for name in shared} == {name: values[name] for name in shared}
        assert shared == values.keys() - {"key", "name", "grid", "block"}
        assert line["kernel"] == launch.name
    assert [kernel[f"grid_{axis}"] for axis in "xyz"] == [7, 2, 3]
    assert (kernel["blocks"], kernel["threads"]) == (42, 256)
    assert (copy["blocks"], copy["threads"], copy["grid_x"]) == (None, None, None)
    assert (kernel["device"], kernel["torch"], kernel["verb"]) == ("a chip", "2.13.0", "bench")


def test_the_counter_table_says_what_the_record_says(stocked: Store) -> None:
    found = sorted(lines(stocked, "counter_table"), key=lambda line: str(line["metric"]))
    for line, counter in zip(found, stocked.counters(RUN), strict=True):
        values = {**counter.key._asdict(), **vars(counter)}
        assert {name: line[name] for name in values.keys() - {"key"}} == {
            name: value for name, value in values.items() if name != "key"
        }
        assert (line["kernel"], line["duration_us"], line["device"]) == ("gemm", 31.25, "a chip")


QUESTIONS = {
    "slowest kernels": ("kernel", "SELECT * FROM kernel ORDER BY duration_us DESC LIMIT 10", "ix_kernel_duration_us"),
    "one metric over layers": (
        "counter",
        "SELECT * FROM counter_table WHERE metric = 'bytes'",
        "PRIMARY KEY (metric_id",
    ),
    "counters of a kernel": ("counter", "SELECT * FROM counter_table WHERE kernel_id = 1", "ix_counter_kernel_id"),
    "kernels of a phase": (
        "kernel",
        f"SELECT * FROM kernel_table WHERE run_id = '{RUN}' AND layer = 'conv1' AND phase = 'forward'",
        "(layer_id=? AND phase=?)",
    ),
    "one kernel across runs": ("kernel", "SELECT * FROM kernel_table WHERE kernel = 'gemm'", "ix_kernel_name"),
    "runs by device": (
        "environment",
        "SELECT * FROM environment JOIN run ON run.environment_id = environment.id WHERE device = 'a chip'",
        "ix_environment_device",
    ),
}


@pytest.mark.parametrize(("table", "question", "index"), QUESTIONS.values(), ids=QUESTIONS)
def test_a_question_finds_its_index(store_path: str, table: str, question: str, index: str) -> None:
    open_store(store_path).close()
    engine = create_engine(address(store_path))
    with engine.connect() as connection:
        steps = [row[3] for row in connection.execute(text(f"EXPLAIN QUERY PLAN {question}"))]
    engine.dispose()
    step = next(step for step in steps if step.split()[1] == table)
    assert index in step
