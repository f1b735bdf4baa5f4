"""The journal of a study: nothing that was written is lost."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lamina.pipeline.study.journal import Journal

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_answers_come_back(tmp_path_factory, answers) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("journal") / "deep" / "journal.jsonl"
    journal = Journal(path)
    for question, answer in answers.items():
        assert journal.put(question, answer) == answer
    again = Journal(path)
    assert {question: again[question] for question in answers} == answers


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path).put("first", 1)
    whole = path.read_text()
    for cut in range(1, len(whole)):
        path.write_text(whole + whole[:cut])
        journal = Journal(path)
        assert journal["first"] == 1
        journal.put("second", 2)
        assert Journal(path)["second"] == 2


def test_without_a_file_answers_stay_in_memory() -> None:
    journal = Journal(None)
    assert "first" not in journal
    journal.put("first", [1, 2])
    assert journal["first"] == [1, 2]
