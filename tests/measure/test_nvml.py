"""Sensors through a stand-in for pynvml; the real one on a GPU."""

from types import SimpleNamespace

import pytest
import torch

from lamina.measure import nvml
from lamina.record.device_state import DeviceState

CUDA = torch.device("cuda", 0)
UUID = "6f2c6f7e-0000-1111-2222-333344445555"


class NVMLError(Exception):
    pass


class FakeNvml:
    """A card that offers no power reading and no MIG mode."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != f"GPU-{UUID}":
            raise NVMLError(f"no card {uuid}")
        return "card"

    def nvmlDeviceGetClockInfo(self, card: str, which: int) -> int:
        return {1: 1980, 2: 3201}[which]

    def nvmlDeviceGetPowerUsage(self, card: str) -> int:
        raise NVMLError("not supported")

    def nvmlDeviceGetTemperature(self, card: str, which: int) -> int:
        return 41

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: str) -> int:
        return 0x24

    def nvmlDeviceGetMemoryInfo(self, card: str) -> SimpleNamespace:
        return SimpleNamespace(used=10, total=100)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetMigMode(self, card: str) -> list[int]:
        raise NVMLError("not supported")

    def nvmlDeviceGetEccMode(self, card: str) -> list[int]:
        return [1, 0]

    def nvmlDeviceGetPersistenceMode(self, card: str) -> int:
        return 0

    def nvmlDeviceGetEnforcedPowerLimit(self, card: str) -> int:
        return 700_000


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_library", FakeNvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=UUID))


@pytest.mark.usefixtures("card")
def test_a_missing_sensor_is_none_and_the_others_are_read() -> None:
    assert nvml.sample(CUDA) == DeviceState(1980, 3201, None, 41, "power cap, thermal slowdown (software)", 10, 100)
    assert nvml.settings(CUDA) == nvml.Settings("580.1", None, True, False, 700.0)


@pytest.mark.usefixtures("card")
def test_an_unknown_gpu_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="other"))
    assert nvml.sample(CUDA) is None
    assert nvml.settings(CUDA) is None


def test_no_library_and_no_gpu_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_library", lambda: None)
    assert nvml.sample(CUDA) is None
    assert nvml.settings(CUDA) is None
    assert nvml.sample(torch.device("cpu")) is None


def test_a_machine_without_pynvml_has_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert nvml._library.__wrapped__() is None


@pytest.mark.parametrize(
    ("reasons", "text"),
    [(0, ""), (1, "idle"), (0xC, "power cap, hardware slowdown"), (1 << 12, "reason 0x1000")],
)
def test_reasons_are_named(reasons: int, text: str) -> None:
    assert nvml.throttle_text(reasons) == text


@pytest.mark.gpu
def test_a_real_gpu_reports_its_clock_and_driver() -> None:
    pytest.importorskip("pynvml")
    state, settings = nvml.sample(CUDA), nvml.settings(CUDA)
    assert state is not None
    assert settings is not None
    assert state.sm_mhz is not None
    assert 100 < state.sm_mhz < 4000
    total = torch.cuda.get_device_properties(0).total_memory
    assert state.memory_total_bytes == pytest.approx(total, rel=0.05)
    assert settings.driver is not None
    assert settings.driver[0].isdigit()
