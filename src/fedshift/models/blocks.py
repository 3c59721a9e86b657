"""The two blocks that plain networks are stacked from."""

from torch import nn


def conv_block(
    before: int,
    after: int,
    kernel: int,
    *,
    stride: int = 1,
    padding: int | None = None,
    bias: bool = True,
    norm: bool = True,
    pool: nn.Module | None = None,
) -> nn.Sequential:
    """Convolution, BatchNorm unless `norm` is off, ReLU, and the pooling if there is one."""
    near = kernel // 2 if padding is None else padding
    conv = nn.Conv2d(before, after, kernel, stride, near, bias=bias)
    norms = [nn.BatchNorm2d(after)] if norm else []
    return nn.Sequential(conv, *norms, nn.ReLU(), *([] if pool is None else [pool]))


def dense_block(before: int, after: int, *, bias: bool = True, norm: bool = True) -> nn.Sequential:
    """Linear, BatchNorm unless `norm` is off, ReLU."""
    norms = [nn.BatchNorm1d(after)] if norm else []
    return nn.Sequential(nn.Linear(before, after, bias=bias), *norms, nn.ReLU())
