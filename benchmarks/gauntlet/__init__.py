"""Claim: any network goes through every verb, or is refused with a reason; no traceback reaches a user.

One network of every family of torchvision and timm, transformers from their configurations, and hand-written networks
(`networks`, `hostile`) go through every verb in small sizes: `models` lists them, `cells` runs one verb on one of them,
`workers` runs many in processes with a time limit. Each cell of the matrix is ``ok``, ``refused`` (one message with a
reason), ``traceback`` (a defect) or ``timeout``.

Run: python -m benchmarks.gauntlet [--device cuda] [--jobs 24] [--models 'timm:*'] [--verbs bench,profile]
"""
