"""Training steps and sampling loops of the diffusers library, with tiny networks that start at random."""

from __future__ import annotations

import diffusers
import torch
from diffusers.training_utils import EMAModel
from torch.nn import functional
from truth_facts import (
    ANY,
    GRAD,
    GRADIENT,
    KERNEL,
    LIBRARY,
    SAVED,
    UNNAMED,
    Fact,
    Ran,
    f32,
    pattern,
    var,
)  # fmt: skip

import memwatch

IMAGES, SIDE, WIDE, DEEP = 3, 20, 12, 28
"""Images in a batch, and the pixels of a side; channels at full and at half the resolution."""
FULL, HALF = (IMAGES, WIDE, SIDE, SIDE), (IMAGES, DEEP, SIDE // 2, SIDE // 2)
TEXT, WORDS = 16, 7


def unet(**options):
    return diffusers.UNet2DModel(
        sample_size=SIDE, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(WIDE, DEEP),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4, attention_head_dim=4, **options,
    )  # fmt: skip


def conditioned():
    return diffusers.UNet2DConditionModel(
        sample_size=SIDE, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(WIDE, DEEP),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4, attention_head_dim=4, cross_attention_dim=TEXT,
    )  # fmt: skip


def autoencoder():
    return diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(WIDE, DEEP), norm_num_groups=4, latent_channels=4, sample_size=SIDE,
    )  # fmt: skip


def trained(mark="train"):
    """Facts about the tensors of a forward and its backward: saved by autograd, or held by a call or the backward."""
    return (
        Fact(ANY, "activation", f"{LIBRARY}|{mark}", SAVED, ".*"),
        Fact(ANY, "temporary", f"{LIBRARY}|{mark}", f"{GRADIENT}|{UNNAMED}|local|argument", ".*"),
        Fact(ANY, "gradient|temporary", f"{LIBRARY}|{mark}", f"{GRAD}|{GRADIENT}", ".+", "backward|mm|sum"),
        Fact(ANY, "workspace", f"{LIBRARY}|{mark}", KERNEL, ".*"),
    )


SAMPLED = (
    Fact(ANY, "temporary", f"{LIBRARY}|sample", f"{UNNAMED}|local|argument", ".*"),
    Fact(ANY, "workspace", f"{LIBRARY}|sample", KERNEL, ".*"),
)
"""Facts about all memory that a forward without gradients makes: a running call has it."""


@pattern(
    *trained(),
    Fact(f32(IMAGES, 3, SIDE, SIDE), "input|held", "images", rf"{var('images')}|{SAVED}"),
    Fact(
        f32(IMAGES, 3, SIDE, SIDE),
        "activation|input|temporary",
        f"noise|{LIBRARY}",
        rf"{var('noise')}|{var('noisy')}|{SAVED}",
    ),
)
def unet_training():
    net, scheduler = unet(), diffusers.DDPMScheduler(num_train_timesteps=50)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    with memwatch.profile() as prof:
        for _ in range(2):
            images = torch.randn(IMAGES, 3, SIDE, SIDE)  # peak: images
            noise = torch.randn_like(images)  # peak: noise
            times = torch.randint(50, (IMAGES,))
            noisy = scheduler.add_noise(images, noise, times)
            functional.mse_loss(net(noisy, times).sample, noise).backward()  # peak: train
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})


@pattern(
    *trained(),
    Fact(f32(IMAGES, WORDS, TEXT), "input", "text", f"{var('text')}|{SAVED}"),
    Fact(f32(IMAGES, 4, SIDE, SIDE), "input|activation|temporary", f"latents|{LIBRARY}", rf"local|{SAVED}"),
)
def conditioned_unet_training():
    net, scheduler = conditioned(), diffusers.DDPMScheduler(num_train_timesteps=50)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    with memwatch.profile() as prof:
        for _ in range(2):
            latents = torch.randn(IMAGES, 4, SIDE, SIDE)  # peak: latents
            noise = torch.randn_like(latents)  # peak: latents
            text, times = torch.randn(IMAGES, WORDS, TEXT), torch.randint(50, (IMAGES,))  # peak: text
            noisy = scheduler.add_noise(latents, noise, times)
            guess = net(noisy, times, encoder_hidden_states=text).sample
            functional.mse_loss(guess, noise).backward()  # peak: train
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})


@pattern(*trained(), Fact(f32(2, 3, SIDE, SIDE), "input", "images", f"{var('images')}|{SAVED}"))
def autoencoder_training():
    net = autoencoder()
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    with memwatch.profile() as prof:
        for _ in range(2):
            images = torch.randn(2, 3, SIDE, SIDE)  # peak: images
            posterior = net.encode(images).latent_dist
            decoded = net.decode(posterior.sample()).sample
            loss = functional.mse_loss(decoded, images) + 1e-6 * posterior.kl().mean()  # peak: train
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})


@pattern(
    *trained(),
    Fact(ANY, "held", LIBRARY, "shadow_params", "", "clone"),
    Fact(f32(1, 3, SIDE, SIDE), "input", "images", f"{var('images')}|{SAVED}"),
)
def unet_with_averaged_weights():
    net, scheduler = unet(), diffusers.DDPMScheduler(num_train_timesteps=50)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with memwatch.profile() as prof:
        average = EMAModel(net.parameters(), decay=0.99)
        for _ in range(2):
            images = torch.randn(1, 3, SIDE, SIDE)  # peak: images
            noise, times = torch.randn_like(images), torch.randint(50, (1,))  # peak: images
            noisy = scheduler.add_noise(images, noise, times)
            functional.mse_loss(net(noisy, times).sample, noise).backward()  # peak: train
            optimizer.step()
            optimizer.zero_grad()
            average.step(net.parameters())
            prof.step()
    return Ran(prof, {"net": net})


@pattern(
    *SAMPLED, Fact(f32(2, 3, SIDE, SIDE), "input|temporary|held", f"{LIBRARY}|sample", "image|local|argument")
)
def ddpm_pipeline():
    net = unet().eval()
    pipeline = diffusers.DDPMPipeline(net, diffusers.DDPMScheduler(num_train_timesteps=50))
    pipeline.set_progress_bar_config(disable=True)
    with memwatch.profile() as prof:
        images = pipeline(batch_size=2, num_inference_steps=3, output_type="np").images  # peak: sample
    assert images.shape == (2, SIDE, SIDE, 3)
    return Ran(prof, {"net": net})


@pattern(
    *trained(),
    Fact(ANY, "recomputed", LIBRARY, f"checkpoint|{SAVED}|{UNNAMED}|local|argument", ".*"),
    Fact(ANY, "activation", LIBRARY, "checkpoint", ".*"),
    Fact(
        f32(IMAGES, 3, SIDE, SIDE),
        "input|activation|temporary",
        f"images|{LIBRARY}",
        f"local|argument|{SAVED}|checkpoint",
    ),
)
def checkpointed_unet_training():
    net = unet().train()
    net.enable_gradient_checkpointing()
    with memwatch.profile() as prof:
        for _ in range(2):
            images = torch.randn(IMAGES, 3, SIDE, SIDE)  # peak: images
            functional.mse_loss(net(images, 7).sample, images).backward()  # peak: train
            net.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})


@pattern(
    *SAMPLED,
    Fact(f32(5, 4, SIDE, SIDE), "input|held", "latents to decode", "local|argument"),
    Fact(
        f32(1, 3, 2 * SIDE, 2 * SIDE),
        "held|temporary",
        f"{LIBRARY}|sample",
        "local|argument|comprehension",
        ".*",
    ),
)
def sliced_decoding():
    net = autoencoder().eval()
    net.enable_slicing()
    with torch.no_grad(), memwatch.profile() as prof:
        latents = torch.randn(5, 4, SIDE, SIDE)  # peak: latents to decode
        images = net.decode(latents).sample  # peak: sample
    assert images.shape == (5, 3, 2 * SIDE, 2 * SIDE)
    return Ran(prof, {"net": net})


@pattern(
    *SAMPLED,
    Fact(f32(IMAGES, 4, SIDE, SIDE), "input|temporary|held", f"latents|{LIBRARY}", "local|argument"),
    Fact(f32(2 * IMAGES, 4, SIDE, SIDE), "input|temporary", "twice", "local|argument"),
    Fact(f32(2 * IMAGES, WORDS, TEXT), "input|held", "text", "local|argument"),
)
def guided_sampling():
    net, scheduler = conditioned().eval(), diffusers.DDIMScheduler(num_train_timesteps=50)
    scheduler.set_timesteps(3)
    with torch.no_grad(), memwatch.profile() as prof:
        latents = torch.randn(IMAGES, 4, SIDE, SIDE)  # peak: latents
        text = torch.randn(2 * IMAGES, WORDS, TEXT)  # peak: text
        for time in scheduler.timesteps:
            twice = torch.cat([latents, latents])  # peak: twice
            guess = net(twice, time, encoder_hidden_states=text).sample  # peak: sample
            without, given = guess.chunk(2)
            guess = without + 3.0 * (given - without)  # peak: sample
            latents = scheduler.step(guess, time, latents).prev_sample
    return Ran(prof, {"net": net})


@pattern(
    *SAMPLED,
    Fact(f32(IMAGES, 4, SIDE, SIDE), "input", "latents", "local|argument"),
    Fact(f32(IMAGES, WORDS, TEXT), "input", "latents", "local|argument"),
)
def sliced_attention():
    net = conditioned().eval()
    net.set_attention_slice(1)
    with torch.no_grad(), memwatch.profile() as prof:
        for _ in range(2):
            latents = torch.randn(IMAGES, 4, SIDE, SIDE)  # peak: latents
            text = torch.randn(IMAGES, WORDS, TEXT)  # peak: latents
            net(latents, 7, encoder_hidden_states=text)  # peak: sample
    return Ran(prof, {"net": net})
