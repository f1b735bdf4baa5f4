"""The recurrence of a long short-term memory in the frequency domain: two launches a step."""
