"""The networks of the gauntlet: a member of every family, the smallest, with its smallest input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from math import prod

HERE = "benchmarks.gauntlet"


@dataclass(frozen=True)
class Model:
    """A network by what a user calls it on the command line.

    ``inputs`` are those of ``--input`` (``NAME=DTYPE:SHAPE``, without the batch), or one shape, that of
    ``--input-size``; ``function`` gives the inputs of ``--input-fn`` instead.
    """

    spec: str
    inputs: tuple[str, ...] = ()
    function: str = ""

    @property
    def source(self) -> str:
        package, _, _ = self.spec.partition(":")
        return {f"{HERE}.{file}": title for file, title in OURS.items()}.get(package, package)

    @property
    def name(self) -> str:
        return self.spec.partition(":")[2]

    @property
    def options(self) -> tuple[str, ...]:
        """The options of a command that concern inputs."""
        if self.function:
            return ("--input-fn", self.given)
        if self.size:
            return ("--input-size", self.given)
        return tuple(word for one in self.inputs for word in ("--input", one))

    @property
    def given(self) -> str:
        """The same as one text."""
        return f"{HERE}.inputs:{self.function}" if self.function else " ".join(self.inputs)

    @property
    def size(self) -> tuple[int, ...] | None:
        """The shape of a sample, where that is all there is to say."""
        if len(self.inputs) == 1 and "=" not in self.inputs[0]:
            return tuple(map(int, self.inputs[0].split("x")))
        return None


OURS = {"huggingface": "transformers", "networks": "hand-written", "hostile": "hostile"}
"""What the files of this folder hold."""

TIMM = {
    # The sizes of attention windows and of position embeddings fix the input of the others.
    "3x64x64": """
        test_byobnet convmixer_768_32 test_convnext cpubone_nano crossvit_tiny_240 csatv2 cs3darknet_focus_s
        cspnext_tiny davit_tiny densenet121 dla46x_c dpn48b edgenext_xx_small test_efficientnet efficientvim_m1
        efficientvit_b0 efficientvit_m0 vit_tiny_patch16_dinov3_qkvb fasternet_t0 fastvit_t8 focalnet_tiny_srf
        ghostnet_050 hardcorenas_b hgnetv2_b0 sam2_hiera_tiny hrnet_w18_small iformer_t inception_next_atto
        lcnetv2_small lowformer_b0 test_mambaout poolformerv2_s12 mobilenetv3_small_050 mobilenetv5_base mobilevit_xxs
        mvitv2_tiny naflexvit_base_patch16_parfac_gap nasnetalarge nextvit_small test_nfnet pnasnet5large pvt_v2_b0
        qwen3_vit_88m rdnet_tiny regnetx_002 repghostnet_050 repvit_m1 res2net50_14w_8s resnest14d test_resnet
        resnetv2_18 rexnet_100 selecsls42 legacy_seresnet18 sequencer2d_s shvit_s1 skresnet18 starnet_s050
        swiftformer_xs tiny_vit_5m_224 tresnet_m twins_svt_small vgg11 test_vit samvit_base_patch16_224
        ese_vovnet19b_slim_dw xception xception41p xcit_nano_12_p8_224
        """,
    "3x96x96": "inception_resnet_v2 inception_v3 inception_v4",
    "": """
        test_maxvit test_vit_relpos beit_base_patch16_224 halonet_h1 cait_xxs24_224 coat_tiny convit_tiny
        deit_tiny_distilled_patch16_224 efficientformer_l1 efficientformerv2_s0 gcvit_xxtiny hiera_tiny_224 levit_128s
        gmixer_12_224 jx_nest_tiny pit_ti_224 swin_tiny_patch4_window7_224 swinv2_tiny_window16_256 swinv2_cr_tiny_224
        tnt_s_patch16_224 visformer_tiny vit_tiny_r_s16_p8_224 vitamin_small_224 volo_d1_224
        """,
}
TORCHVISION = {
    "3x64x64": """
        alexnet convnext_tiny densenet121 efficientnet_b0 googlenet mnasnet0_5 mobilenet_v2 mobilenet_v3_small
        regnet_y_400mf resnet18 shufflenet_v2_x0_5 squeezenet1_1 swin_t swin_v2_t vgg11
        segmentation.deeplabv3_mobilenet_v3_large segmentation.fcn_resnet50 segmentation.lraspp_mobilenet_v3_large
        """,
    "3x299x299": "inception_v3",
    "3x8x64x64": "video.r3d_18 video.swin3d_t",
    "3x16x224x224": "video.s3d video.mvit_v2_s",
    "": "maxvit_t vit_b_32",
}
DETECTION = """
    detection.fasterrcnn_mobilenet_v3_large_320_fpn detection.fcos_resnet50_fpn detection.keypointrcnn_resnet50_fpn
    detection.maskrcnn_resnet50_fpn detection.retinanet_resnet50_fpn detection.ssd300_vgg16
    detection.ssdlite320_mobilenet_v3_large
    """
LARGE = """
    timm:nasnetalarge timm:pnasnet5large timm:mobilenetv5_base timm:qwen3_vit_88m timm:samvit_base_patch16_224
    timm:naflexvit_base_patch16_parfac_gap timm:beit_base_patch16_224 timm:vgg11 torchvision:vgg11 torchvision:vit_b_32
    torchvision:video.s3d torchvision:video.mvit_v2_s
    """
"""Networks that take minutes on a CPU, which runs them only when they are named."""

EXCLUDED = {
    "timm:deepseek_vit": "its smallest member has 412 M parameters",
    "timm:gemma4_vit": "its smallest member has 167 M parameters",
    "torchvision:quantization": "eager-mode int8 has no floating-point path and no gradients",
}
"""Families without a member here, and why."""

HUGGINGFACE = {
    # The configuration tells the inputs of the others.
    (): """
        bert bert_classifier roberta distilbert albert electra canine deberta gpt2 gpt_neox opt llama mistral mixtral
        qwen3 gemma phi mamba vit swin dinov2 convnext resnet segformer clip_vision clip whisper_encoder speech_to_text
        codec video wav2vec2 time_series
        """,
    ("input_ids=int64:16", "decoder_input_ids=int64:16"): "t5",
    ("input_ids=int64:32",): "bart",
}
TOKENS, FEATURES, VECTOR = ("tokens=int64:8",), ("8x12",), ("32",)
NETWORKS = {
    ("3x32x32",): """
        residual_gates UNet ShapeBranch InPlace Functional many_convolutions Warped Hyper
        """,
    ("3x16x16",): "Complex",
    ("1x8x8",): "Autoencoder",
    ("1x256",): "sound",
    ("3x8x16x16",): "volume",
    VECTOR: """
        dict_output tuple_output nested_output weight_norm Noise Counter DataDependent Experts Quantized
        """,
    FEATURES: "Attention Encoder gru bidirectional_lstm Cells Recurrence",
    TOKENS: "SharedWeights Rotary",
    (*TOKENS, "mask=bool:8"): "Keywords",
    ("image=float32:3x32x32", "features=float32:12"): "SeveralInputs",
    ("x=float32:3x16x16", "t=float32:"): "Denoiser",
    ("a=float32:1x16x16", "b=float32:1x16x16"): "Siamese",
    ("nodes=float32:6x12", "edges=int64:2x9"): "Graph",
    ("features=float32:12", "items=int64:5"): "Bags",
}
HOSTILE = {
    VECTOR: """
        no_parameters one_parameter_in_two_layers one_module_at_two_paths identity returns_no_tensor returns_a_number
        returns_nothing raises returns_nan returns_integers gradient_within no_gradient_within through_numpy
        autocast_within zero_sized Selected Checkpointed scripted jit_traced fx_traced compiled_within frozen
        scripted_function extra_state half_frozen parametrized hooked tensor_subclass namedtuple_output
        dataclass_output scalar_output Stateful WritesInput Uncopyable Methods deep odd_names double_precision
        mixed_precision expanded vectorized one_class empty huge_values
        """,
    ("3x16x16",): "lazy_layers",
    FEATURES: "Packed",
    ("input=int64:8",): "sparse_embedding",
}


def models() -> tuple[Model, ...]:
    """Every network, hand-written ones first."""
    return tuple(_models())


def _models() -> Iterator[Model]:
    for file, groups in (("networks", NETWORKS), ("hostile", HOSTILE), ("huggingface", HUGGINGFACE)):
        for inputs, names in groups.items():
            yield from (Model(f"{HERE}.{file}:{name}", inputs) for name in names.split())
    for package, sizes in (("timm", TIMM), ("torchvision", TORCHVISION)):
        for size, names in sizes.items():
            yield from (Model(f"{package}:{name}", (size,) if size else ()) for name in names.split())
    yield from (Model(f"torchvision:{name}", function="detection") for name in DETECTION.split())


def chosen(patterns: str, device: str) -> tuple[Model, ...]:
    """The networks that one of the patterns fits; large ones on a GPU, or by their own name."""
    wanted, large = patterns.split(","), () if device != "cpu" else LARGE.split()
    return tuple(
        model
        for model in models()
        if any(fnmatch(model.spec, one) for one in wanted) and (model.spec not in large or model.spec in wanted)
    )


def elements(model: Model) -> int:
    """Elements of a sample, for an order by size."""
    return prod(model.size) if model.size else 3 * 224 * 224
