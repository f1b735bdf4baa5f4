"""Train, stop, and resume from the checkpoint.

Run: python examples/train_and_resume.py
"""

import tempfile
from pathlib import Path

from lamina import pipeline
from lamina.record import Epoch
from lamina.spec.training import Training
from lamina.store import open_store


class Stop(Exception):
    pass


def main() -> None:
    target, _ = pipeline.find("lenet5")
    settings = Training(epochs=2, batch=100)

    def stop_after_an_epoch(event: object) -> None:
        if isinstance(event, Epoch):
            raise Stop

    with tempfile.TemporaryDirectory() as folder, open_store(Path(folder) / "lamina.db") as store:
        checkpoint = Path(folder) / "lenet5.safetensors"
        try:
            pipeline.train(target, "fashion-mnist", settings, store, checkpoint=checkpoint, watch=stop_after_an_epoch)
        except Stop:
            print("stopped after one epoch")
        pipeline.train(target, "fashion-mnist", settings, store, checkpoint=checkpoint, resume=True)
        (run,) = store.runs(limit=1)
        for epoch in store.epochs(run.id):
            print(f"epoch {epoch.epoch + 1}: test accuracy {epoch.test_accuracy:.1%}")


if __name__ == "__main__":
    main()
