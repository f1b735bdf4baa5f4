"""Write the layers of every network of the zoo, as tracing finds them, to src/lamina/spec/zoo/layers.json.

Run it after changing a network: python tools/describe_zoo.py
"""

import json
from pathlib import Path
from typing import Any

from lamina import build, spec
from lamina.spec.layers import Opaque
from lamina.spec.zoo import BATCH, ZOO

MARK = 97
"""A batch size that is no other size of any network."""


def described(layer: spec.Layer) -> dict[str, Any]:
    """A layer as JSON: its type and what differs from the defaults."""
    fields = {"type": layer.kind, **layer.model_dump(mode="json", exclude_defaults=True)}
    if isinstance(layer, Opaque):
        fields["shape"] = [BATCH if extent == MARK else extent for extent in layer.shape]
        if any(extent > 0 and extent % MARK == 0 for extent in fields["shape"]):
            raise SystemExit(f"{layer.name}: cannot tell the batch from {layer.shape}")
    return fields


def main() -> None:
    """Trace every network and write the file, one layer a line."""
    networks = []
    for name, entry in ZOO.items():
        layers = [json.dumps(described(one.layer)) for one in build.from_zoo(entry).resolve(MARK)]
        networks.append(f"{json.dumps(name)}: [\n" + ",\n".join(layers) + "\n]")
    path = Path(spec.__file__).parent / "zoo" / "layers.json"
    path.write_text("{\n" + ",\n".join(networks) + "\n}\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
