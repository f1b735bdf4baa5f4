"""All pages show times alike, whichever way they are stored, and escape what they show."""

from lamina.report.html.pages import environment


def test_times_in_sentences_are_spelled_as_those_of_tables() -> None:
    page = environment().from_string("<td>{{ reason }}</td><td>{{ number }}</td>")
    assert page.render(reason="9 us < dense 10.5 us", number=3) == "<td>9 µs &lt; dense 10.5 µs</td><td>3</td>"
