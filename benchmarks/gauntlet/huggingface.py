"""Networks of Hugging Face's transformers from small configurations, without weights or downloads."""

from __future__ import annotations

from typing import Any

from torch import nn

TEXT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT |= {"intermediate_size": 64, "max_position_embeddings": 64}
IMAGE = {"image_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def _made(name: str, head: str, **settings: Any) -> nn.Module:
    """A network by the beginning of its classes' names: ``Bert`` is ``BertConfig`` and ``BertModel``."""
    import transformers

    config = getattr(transformers, f"{name}Config")(**settings)
    return getattr(transformers, f"{name}{head}")(config)  # type: ignore[no-any-return]


def bert() -> nn.Module:
    return _made("Bert", "Model", **TEXT)


def bert_classifier() -> nn.Module:
    return _made("Bert", "ForSequenceClassification", **TEXT, num_labels=10)


def roberta() -> nn.Module:
    return _made("Roberta", "ForMaskedLM", **TEXT)


def distilbert() -> nn.Module:
    return _made("DistilBert", "Model", vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=64)


def albert() -> nn.Module:
    return _made("Albert", "Model", **TEXT, embedding_size=16)


def electra() -> nn.Module:
    return _made("Electra", "Model", **TEXT, embedding_size=16)


def canine() -> nn.Module:
    """Reads characters, whose hashes are looked up: there is no vocabulary."""
    settings = {key: value for key, value in TEXT.items() if key != "vocab_size"}
    return _made("Canine", "Model", **settings, num_hash_buckets=64)


def deberta() -> nn.Module:
    return _made("DebertaV2", "Model", **TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"])


def gpt2() -> nn.Module:
    return _made("GPT2", "LMHeadModel", vocab_size=99, n_positions=64, n_embd=32, n_layer=2, n_head=4)


def gpt_neox() -> nn.Module:
    return _made("GPTNeoX", "ForCausalLM", **TEXT)


def opt() -> nn.Module:
    return _made("OPT", "ForCausalLM", **{**TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32})


def llama() -> nn.Module:
    return _made("Llama", "ForCausalLM", **TEXT, num_key_value_heads=2)


def mistral() -> nn.Module:
    return _made("Mistral", "ForCausalLM", **TEXT, num_key_value_heads=2, sliding_window=8)


def mixtral() -> nn.Module:
    return _made("Mixtral", "ForCausalLM", **TEXT, num_key_value_heads=2, num_local_experts=4)


def qwen3() -> nn.Module:
    return _made("Qwen3", "ForCausalLM", **TEXT, num_key_value_heads=2, head_dim=8)


def gemma() -> nn.Module:
    return _made("Gemma", "ForCausalLM", **TEXT, num_key_value_heads=1, head_dim=8)


def phi() -> nn.Module:
    return _made("Phi", "ForCausalLM", **TEXT)


def mamba() -> nn.Module:
    return _made("Mamba", "ForCausalLM", vocab_size=99, hidden_size=32, num_hidden_layers=2, state_size=4)


def t5() -> nn.Module:
    return _made(
        "T5", "ForConditionalGeneration",
        vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0,
    )  # fmt: skip


def bart() -> nn.Module:
    return _made(
        "Bart", "Model", vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
    )  # fmt: skip


def vit() -> nn.Module:
    return _made("ViT", "ForImageClassification", **IMAGE, patch_size=8, num_labels=10)


def swin() -> nn.Module:
    return _made(
        "Swin", "ForImageClassification",
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=10,
    )  # fmt: skip


def dinov2() -> nn.Module:
    return _made("Dinov2", "Model", **IMAGE, patch_size=8)


def convnext() -> nn.Module:
    return _made("ConvNext", "ForImageClassification", hidden_sizes=[8, 16, 24, 32], depths=[1] * 4, num_labels=10)


def resnet() -> nn.Module:
    return _made(
        "ResNet", "ForImageClassification", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=10
    )


def segformer() -> nn.Module:
    return _made(
        "Segformer", "ForSemanticSegmentation", depths=[1] * 4, hidden_sizes=[8, 16, 24, 32],
        num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16, num_labels=10,
    )  # fmt: skip


def clip_vision() -> nn.Module:
    return _made("CLIPVision", "Model", **IMAGE, patch_size=8)


def clip() -> nn.Module:
    return _made("CLIP", "Model", text_config=TEXT, vision_config={**IMAGE, "patch_size": 8}, projection_dim=16)


def whisper_encoder() -> nn.Module:
    model = _made(
        "Whisper", "Model", vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=16, max_source_positions=32,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    encoder: nn.Module = model.get_encoder()  # type: ignore[operator]
    return encoder


def speech_to_text() -> nn.Module:
    return _made(
        "Speech2Text", "Model", vocab_size=99, d_model=32, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, conv_channels=32,
        decoder_start_token_id=1,
    )  # fmt: skip


def codec() -> nn.Module:
    return _made(
        "Encodec", "Model", num_filters=4, hidden_size=16, codebook_size=32, codebook_dim=16, upsampling_ratios=[4, 2],
        num_residual_layers=1, num_lstm_layers=1,
    )  # fmt: skip


def video() -> nn.Module:
    return _made("VideoMAE", "Model", **IMAGE, patch_size=8, num_frames=4)


def wav2vec2() -> nn.Module:
    return _made(
        "Wav2Vec2", "Model", **TEXT, conv_dim=[16, 16], conv_stride=[5, 2], conv_kernel=[10, 3],
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
    )  # fmt: skip


def time_series() -> nn.Module:
    return _made("PatchTST", "ForPrediction", num_input_channels=3, context_length=32, patch_length=4, d_model=16,
                 num_hidden_layers=2, num_attention_heads=4, ffn_dim=32, prediction_length=8)  # fmt: skip
