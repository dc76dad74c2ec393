"""flash_backward: the gradients of attention, from q, k, v, the output's gradient and the forward pass's out and lse."""
