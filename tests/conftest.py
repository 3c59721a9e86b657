import torch

torch.set_num_threads(1)  # small tensors: a second thread only waits
