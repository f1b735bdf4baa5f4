"""``sweep``: a grid of command lines of any verb, or of simulated designs, on this machine or a cluster.

cells     grid -> cells                           a command line for each configuration, keyed by its content
engines   tasks -> results                        processes, Ray or Dask behind one protocol, with limits
attempts  engine -> outcomes                      what was killed is tried again
run_cell  cell -> exported runs                   a lamina process with a store of its own
flow      cells -> engine -> store                what the store has is not run again
stored    store -> outcomes, status               cells by their keys
"""
