"""The LSTM layer and its recurrence in the frequency domain, in two launches per time step."""
