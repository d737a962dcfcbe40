"""ResNet-50's training step in PyTorch, as bench/gpu_steps.c measures gridpipe's.

usage: gpu_pytorch.py BATCH STEPS SERIES MATH, where MATH is f32, tf32 or bf16

The same network, mini-batch, optimizer, layout (channels last) and precision; inputs are copied from
page-locked memory beside the computation, as gridpipe does. TF32 is off unless asked for. The last
line is the median of the series, and what a step takes when its inputs are on the GPU already.
"""
import statistics
import sys
import time

import torch
from torch import nn

batch, steps, series = (int(text) for text in sys.argv[1:4])
math = sys.argv[4]
torch.backends.cuda.matmul.allow_tf32 = math == "tf32"
torch.backends.cudnn.allow_tf32 = math == "tf32"
torch.backends.cudnn.benchmark = True


def conv(i, o, k, s=1):
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o))


class Block(nn.Module):
    def __init__(self, i, width, s, project):
        super().__init__()
        o = 4 * width
        self.way = nn.Sequential(conv(i, width, 1), nn.ReLU(), conv(width, width, 3, s), nn.ReLU(),
                                 conv(width, o, 1))
        self.skip = conv(i, o, 1, s) if project else nn.Identity()

    def forward(self, x):
        return torch.relu(self.way(x) + self.skip(x))


def resnet50():
    layers, i = [conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for k in range(blocks):
            layers.append(Block(i, 64 << stage, 2 if k == 0 and stage > 0 else 1, k == 0))
            i = 4 * (64 << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


net = resnet50().cuda().to(memory_format=torch.channels_last)
sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
images = torch.randn(batch, 3, 224, 224).to(memory_format=torch.channels_last).pin_memory()
classes = torch.randint(1000, (batch,)).pin_memory()
on_gpu = images.cuda(), classes.cuda()


def step(copied):
    x, y = on_gpu
    if copied:
        x, y = images.cuda(non_blocking=True), classes.cuda(non_blocking=True)
    sgd.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16, enabled=math == "bf16"):
        loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    sgd.step()


def milliseconds(copied):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step(copied)
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / steps * 1000


def median(copied):
    for _ in range(5):
        step(copied)
    return statistics.median(milliseconds(copied) for _ in range(series))


print("%.2f ms a step, %.2f with inputs on the GPU, PyTorch %s, cuDNN %s" %
      (median(True), median(False), torch.__version__, torch.backends.cudnn.version()))
